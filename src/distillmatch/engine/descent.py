"""The optimizer: stochastic gradient descent with momentum."""

from typing import Any

import torch
from torch import Tensor

from distillmatch.networks.kernels import parameters as kernel


class Descent(torch.optim.SGD):
    """torch's SGD, whose step is one launch of ours on CUDA once there are velocities.

    Its rate must be a tensor, where a captured step can find a new one.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change the parameters by their gradients."""
        (group,) = self.param_groups
        weights: list[Tensor] = group["params"]
        gradients = [weight.grad for weight in weights]
        velocities: list[Any] = [self.state.get(one, {}).get("momentum_buffer") for one in weights]
        if kernel.descends(weights, gradients, velocities):
            how = group["lr"], group["momentum"], group["weight_decay"]
            kernel.descend(weights, gradients, velocities, *how)  # type: ignore[arg-type]
        else:
            super().step(closure)
