"""Optimizers as a captured step can take them, and the average of weights over the steps."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from distillmatch.networks.acceleration import descend

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Descent:
    """torch's SGD, by kernels where there are any; its rate is a tensor that a graph can read.

    An object of torch.optim brings torch's compiler with it, which takes seconds to import and is
    not used; the function that it calls does not. Velocities are 0 at first, from which a step
    makes what torch makes of none.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        rate: Tensor,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        clip: float | None = None,
    ) -> None:
        self.parameters = parameters
        self.rate = rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.clip = clip
        self.velocities = [torch.zeros_like(one) for one in parameters]

    @property
    def state(self) -> list[Tensor]:
        """All that a resumed training needs of it."""
        return self.velocities

    def forget_gradients(self) -> None:
        """Let go of the last step's gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters that have gradients by them, all together cut to a length."""
        weights: list[Tensor] = []
        gradients: list[Tensor] = []
        velocities: list[Tensor] = []
        for weight, velocity in zip(self.parameters, self.velocities, strict=True):
            if weight.grad is not None:
                weights.append(weight)
                gradients.append(weight.grad)
                velocities.append(velocity)
        how = self.rate, self.momentum, self.weight_decay, self.clip
        if descend(weights, gradients, velocities, *how):
            return
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
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


class AdamW:
    """torch's AdamW by the function that it is made of, with all state in place."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        rate: Tensor,
        weight_decay: float = 0.0,
        clip: float | None = None,
    ) -> None:
        self.parameters = parameters
        self.rate = rate
        self.weight_decay = weight_decay
        self.clip = clip
        self.means = [torch.zeros_like(one) for one in parameters]
        self.squares = [torch.zeros_like(one) for one in parameters]
        self.steps = [torch.zeros((), device=rate.device) for _ in parameters]

    @property
    def state(self) -> list[Tensor]:
        """All that a resumed training needs of it."""
        return [*self.means, *self.squares, *self.steps]

    def forget_gradients(self) -> None:
        """Drop the last step's gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have gradients, clipped together to a norm if asked."""
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        rows = zip(self.parameters, self.means, self.squares, self.steps, strict=True)
        given = [row for row in rows if row[0].grad is not None]
        adamw(
            [row[0] for row in given],
            [row[0].grad for row in given if row[0].grad is not None],
            [row[1] for row in given],
            [row[2] for row in given],
            [],
            [row[3] for row in given],
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
