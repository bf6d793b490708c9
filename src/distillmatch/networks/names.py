"""Networks by name: `wrn-28-2` is the paper's, `wrn-10-1` a small one for a CPU."""

import re
from typing import Literal, get_args, overload

import torch

from distillmatch.config.run import Similarity
from distillmatch.errors import ConfigError
from distillmatch.networks.deconf import Detector
from distillmatch.networks.wide_resnet import WideResNet

Head = Literal["linear", "cosine", "inner", "euclidean", "scaled-cosine"]


def parse_network(name: str) -> tuple[int, int]:
    """Return depth and width of a network name such as `wrn-28-2`."""
    match = re.fullmatch(r"wrn-([0-9]{1,4})-([0-9]{1,3})", name)
    if match is None:
        raise ConfigError(
            f"network must be named wrn-DEPTH-WIDTH, for example 'wrn-28-2', not {name!r}"
        )
    depth, width = int(match[1]), int(match[2])
    if depth < 10 or depth % 6 != 4:
        below = max(10, depth - (depth - 4) % 6)
        near = f"{below}" if depth < 10 else f"{below} or {below + 6}"
        raise ConfigError(
            f"network {name!r}: the depth must be 6k + 4 and at least 10; "
            f"near {depth} that is {near}"
        )
    if width < 1:
        raise ConfigError(f"network {name!r}: the width must be at least 1")
    return depth, width


@overload
def build_network(
    name: str,
    classes: int,
    head: Literal["linear"] = "linear",
    generator: torch.Generator | None = None,
) -> WideResNet: ...


@overload
def build_network(
    name: str, classes: int, head: Similarity, generator: torch.Generator | None = None
) -> Detector: ...


def build_network(
    name: str, classes: int, head: Head = "linear", generator: torch.Generator | None = None
) -> WideResNet:
    """Build a network by name with so many class slots; any head but `linear` gives a `Detector`.

    The weights depend on the state of `generator` (torch's global one if none) and nothing else.
    """
    depth, width = parse_network(name)
    if classes < 1:
        raise ConfigError(f"a network must have at least 1 class, not {classes}")
    if head not in get_args(Head):
        raise ConfigError(f"head must be one of {', '.join(get_args(Head))}, not {head!r}")
    if head == "linear":
        return WideResNet(depth, width, classes, generator=generator)
    return Detector(depth, width, classes, similarity=head, generator=generator)
