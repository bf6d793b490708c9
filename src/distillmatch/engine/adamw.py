"""AdamW, as a captured step can take it: the learning rate lies on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

BETAS = (0.9, 0.999)
EPSILON = 1e-8


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
