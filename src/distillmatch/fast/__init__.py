"""CUDA kernels and their launchers: the product computes the same without this folder, slower.

Only `distillmatch.networks.acceleration` imports it.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules import module

from distillmatch.fast import frozen, parameters, trained
from distillmatch.fast.compiled import is_new_enough
from distillmatch.fast.parameters import descend as descend
from distillmatch.networks.wide_resnet import WideResNet


def backbone_features(backbone: WideResNet, images: Tensor) -> Tensor | None:
    """Return the features of images in bfloat16, or None where a network goes layer by layer.

    That is in another precision, on an old GPU, for sizes that the kernels are not made for, and
    where someone watches single layers.
    """
    if not is_bfloat16(images.device) or not is_plain(backbone):
        return None
    walk = next((one for one in (trained, frozen) if one.takes(backbone, images)), None)
    if walk is None:
        return None
    weights = parameters.rounded([one.weight for one in backbone.convolutions])
    features: Tensor = walk.features(
        backbone, images, dict(zip(backbone.convolutions, weights, strict=True))
    )
    return features


def is_bfloat16(device: torch.device) -> bool:
    """Return whether convolutions on a device are to be in bfloat16, and the kernels can be."""
    wanted = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
    return wanted == torch.bfloat16 and is_new_enough(device)


def is_plain(backbone: WideResNet) -> bool:
    """Return whether nothing happens when a layer is called but its own computation."""
    # torch has no public way to ask for hooks, or whether a parameter is computed from others.
    return not module._has_any_global_hook() and not any(  # type: ignore[no-untyped-call]
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or (isinstance(layer, nn.Conv2d) and "weight" not in layer._parameters)
        for layer in backbone.modules()
        if layer is not backbone
    )
