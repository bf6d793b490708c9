"""The average of a network's weights over the steps of a training."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class WeightAverage:
    """The exponential average of a network's weights and statistics, one update a step.

    After t steps it is Σ_s d^(t-s) θ_s / Σ_s d^(t-s) over the weights θ_1 … θ_t that the steps
    left, with decay d: the weights from before the first step have no part in it, so it is of use
    in short trainings too. All of it lies on the device and is changed in place, so that an update
    can be captured with the step.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = network
        self.decay = decay
        self.current = {
            name: value for name, value in network.state_dict().items() if value.is_floating_point()
        }
        self.averaged = {
            name: value.clone(memory_format=torch.preserve_format)
            for name, value in self.current.items()
        }
        first = next(iter(self.current.values()))
        self.total = torch.zeros((), device=first.device)

    @torch.no_grad()
    def update(self) -> None:
        """Count the weights as they are now."""
        self.total.mul_(self.decay).add_(1)
        averaged = list(self.averaged.values())
        ways = torch._foreach_sub(list(self.current.values()), averaged)
        torch._foreach_mul_(ways, self.total.reciprocal())
        torch._foreach_add_(averaged, ways)

    @torch.no_grad()
    def put_in_place(self) -> None:
        """Let the network have the average as its weights."""
        torch._foreach_copy_(list(self.current.values()), list(self.averaged.values()))

    def tensors(self) -> dict[str, Tensor]:
        """Return all that the average depends on, by name."""
        return {"total": self.total, **{f"of {n}": value for n, value in self.averaged.items()}}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back, in place, what `tensors` gave."""
        for name, value in self.tensors().items():
            value.copy_(tensors[name])
