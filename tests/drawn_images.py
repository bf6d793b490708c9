"""Images drawn by a seed, and networks that are shown them in one forward and in several."""

import torch
from torch import Tensor, nn

from distillmatch.networks import separate_statistics


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, size: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, size, size, generator=seeded(seed))


def together_and_apart(one: nn.Module, two: nn.Module) -> tuple[Tensor, Tensor]:
    """Show equal networks two batches, in one forward and in two: they must end alike."""
    first, second = images(4), 3 * images(5, seed=1) + 1
    with separate_statistics(one, [4, 5]):
        together = one(torch.cat([first, second]))
    apart = [two(first)]
    with separate_statistics(two, [5], 0):
        apart.append(two(second))
    torch.testing.assert_close(together, torch.cat(apart))
    for name, value in one.named_buffers():
        torch.testing.assert_close(value, dict(two.named_buffers())[name])
    return together, torch.cat(apart)
