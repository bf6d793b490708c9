"""The seam to `distillmatch.fast`, the kernels for GPUs: the only module that imports it.

Each function returns nothing, or False, where the kernels cannot be used, and its caller then
computes the same with plain torch. So it is on a CPU, in float32, and if the folder is deleted.
"""

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from distillmatch.networks.wide_resnet import WideResNet


def backbone_features(backbone: "WideResNet", images: Tensor) -> Tensor | None:
    """Return the features of images by the kernels, or None where they cannot be used."""
    fast = _fast() if images.is_cuda else None
    return None if fast is None else fast.backbone_features(backbone, images)


def descend(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    rate: Tensor,
    *options: float | None,
) -> bool:
    """Take a step of gradient descent by the kernels; return whether it was taken.

    The options are momentum, weight decay, and the largest norm of the gradients, if there is one.
    """
    fast = _fast() if rate.is_cuda else None
    return fast is not None and fast.descend(weights, gradients, velocities, rate, *options)


@cache
def _fast() -> ModuleType | None:
    """Import the kernels when a GPU first asks for them."""
    try:
        import distillmatch.fast as fast  # noqa: PLC0415, PLR0402  only where there is a GPU
    except ModuleNotFoundError as error:
        if error.name != "distillmatch.fast":
            raise
        return None
    return fast
