"""Optimizers as a captured step can take them, and the average of weights over the steps."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from distillmatch.networks.acceleration import descend

BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(eq=False)
class Optimizer(ABC):
    """torch's update by the function that it is made of, with all state in place.

    An object of torch.optim imports torch's compiler, which takes seconds and is not used. The rate
    is a tensor, so that a captured step reads it. `state` is all that a resumed training needs.
    """

    parameters: Sequence[nn.Parameter]
    rate: Tensor
    weight_decay: float = 0.0
    clip: float | None = None
    state: list[Tensor] = field(init=False)

    @abstractmethod
    def step(self) -> None:
        """Update the parameters that have gradients, clipped together to a norm."""

    def forget_gradients(self) -> None:
        """Drop the last step's gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(one) for one in self.parameters]

    def _given(self, *states: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return the parameters with gradients, the gradients, and their state."""
        rows = [
            row for row in zip(self.parameters, *states, strict=True) if row[0].grad is not None
        ]
        weights, *kept = ([row[n] for row in rows] for n in range(1 + len(states)))
        return [weights, [one.grad for one in weights if one.grad is not None], *kept]

    def _clip(self) -> None:
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)


@dataclass(eq=False)
class Descent(Optimizer):
    """SGD with momentum, by kernels where there are any.

    Its state is the velocities, at first 0, from which a step makes what torch makes of none.
    """

    momentum: float = 0.0

    def __post_init__(self) -> None:
        self.state = self._zeros()

    @torch.no_grad()
    def step(self) -> None:
        """Take a step."""
        weights, gradients, velocities = self._given(self.state)
        how = self.rate, self.momentum, self.weight_decay, self.clip
        if descend(weights, gradients, velocities, *how):
            return
        self._clip()
        sgd(
            weights,
            gradients,
            [*velocities],
            fused=True,
            lr=self.rate,  # type: ignore[arg-type]  # a tensor is taken too
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


@dataclass(eq=False)
class AdamW(Optimizer):
    """AdamW with torch's defaults; its state is means, squares and numbers of steps."""

    def __post_init__(self) -> None:
        self.means, self.squares = self._zeros(), self._zeros()
        self.steps = [torch.zeros((), device=self.rate.device) for _ in self.parameters]
        self.state = [*self.means, *self.squares, *self.steps]

    @torch.no_grad()
    def step(self) -> None:
        """Take a step."""
        self._clip()
        weights, gradients, means, squares, steps = self._given(
            self.means, self.squares, self.steps
        )
        adamw(
            weights,
            gradients,
            means,
            squares,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=self.rate,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )


class WeightAverage:
    """The exponential average of a network's weights and statistics, one update a step.

    After t steps it is Σ_s d^(t-s) θ_s / Σ_s d^(t-s) over the weights θ_1 … θ_t after each step,
    with decay d. The initial weights do not count, so it serves short trainings too. All of it lies
    on the device and is changed in place, so that an update can be captured with the step.
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
        """Give the network the average as its weights."""
        torch._foreach_copy_(list(self.current.values()), list(self.averaged.values()))

    def tensors(self) -> dict[str, Tensor]:
        """Return all that the average depends on, by name."""
        return {"total": self.total, **{f"of {n}": value for n, value in self.averaged.items()}}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back, in place, what `tensors` gave."""
        for name, value in self.tensors().items():
            value.copy_(tensors[name])
