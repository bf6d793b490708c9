"""The seam to `distillmatch.fast`, the kernels for GPUs: the only module that imports it.

Each function returns nothing, or False, where the kernels cannot be used, and its caller then
computes the same with plain torch. So it is on a CPU, in float32, and if the folder is deleted.
"""

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from distillmatch.networks.wide_resnet import WideResNet


def backbone_features(backbone: "WideResNet", images: Tensor) -> Tensor | None:
    """Return the features of images by the kernels, or None where they cannot be used."""
    if not images.is_cuda:
        return None
    fast = _fast()
    return None if fast is None else fast.backbone_features(backbone, images)


def descend(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    rate: Tensor,
    momentum: float,
    weight_decay: float,
    clip: float | None,
) -> bool:
    """Take a step of gradient descent by the kernels; return whether it was taken."""
    if not rate.is_cuda:
        return False
    fast = _fast()
    return fast is not None and fast.descend(
        weights, gradients, velocities, rate, momentum, weight_decay, clip
    )


@functools.cache
def _fast() -> ModuleType | None:
    """Import the kernels when a GPU first asks for them."""
    try:
        import distillmatch.fast as fast  # noqa: PLC0415, PLR0402  only where there is a GPU
    except ModuleNotFoundError as error:
        if error.name != "distillmatch.fast":
            raise
        return None
    return fast
