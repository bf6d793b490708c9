"""The optimizer: stochastic gradient descent with momentum."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from distillmatch.networks.kernels import parameters as kernel


class Descent:
    """torch's descent, two launches of ours on CUDA; the rate is where a captured step can find it.

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
        if kernel.descends(weights, gradients, velocities):
            how = self.rate, self.momentum, self.weight_decay, self.clip
            kernel.descend(weights, gradients, velocities, *how)
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
