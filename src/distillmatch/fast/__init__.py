"""CUDA kernels and their launchers: without this folder the product computes the same, slower.

Only `distillmatch.networks.acceleration` imports it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules import module

from distillmatch.fast import frozen, parameters, trained
from distillmatch.fast.operators import is_usable
from distillmatch.fast.walk import Layers
from distillmatch.networks.normalization import BatchNorm
from distillmatch.networks.wide_resnet import WideResNet


def backbone_features(backbone: WideResNet, images: Tensor) -> Tensor | None:
    """Return the features of images in bfloat16, or None where a network goes layer by layer.

    That is in another precision, on a GPU without kernels, for sizes that they do not take, and
    where something else happens when a layer is called.
    """
    if not is_bfloat16() or not is_usable(images.get_device()):
        return None
    layers = Layers.of(backbone)
    if has_hooks(backbone) or not is_plain(layers, images.device):
        return None
    for way in (trained, frozen):
        if way.takes(layers, images):
            with torch.no_grad():
                rounded = parameters.round_to_bfloat16([one.weight for one in layers.convolutions])
            weights = dict(zip(layers.convolutions, rounded, strict=True))
            features: Tensor = way.features(layers, as_maps(images), weights)
            return features
    return None


def descend(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    rate: Tensor,
    momentum: float,
    weight_decay: float,
    clip: float | None,
) -> bool:
    """Take a step of gradient descent; return whether the kernels could."""
    lists = weights, gradients, velocities
    if not is_usable(rate.get_device()) or not parameters.descends(*lists):
        return False
    parameters.descend(*lists, rate, momentum, weight_decay, clip)
    return True


def as_maps(images: Tensor) -> Tensor:
    """Return images as the kernels read them; `to` alone would keep a strided view as it is."""
    return images.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)


def is_bfloat16() -> bool:
    """Return whether convolutions on CUDA are to be in bfloat16."""
    if not torch.is_autocast_enabled("cuda"):
        return False
    return torch.get_autocast_dtype("cuda") == torch.bfloat16


def has_hooks(backbone: WideResNet) -> bool:
    """Return whether something else happens, too, when a layer is called."""
    # torch has no public way to ask.
    return module._has_any_global_hook() or any(  # type: ignore[no-untyped-call]
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        for layer in backbone.modules()
        if layer is not backbone
    )


def is_plain(layers: Layers, device: torch.device) -> bool:
    """Return whether layers are as they were made, and normalizations in float32 on a device.

    A layer whose parameters are computed, as by `torch.nn.utils.parametrize`, is of another class.
    """
    return (
        all(map(is_plain_convolution, layers.convolutions))
        and all(type(one) is BatchNorm for one in layers.norms)
        and all(
            tensor.dtype == torch.float32 and tensor.device == device and tensor.is_contiguous()
            for one in layers.norms
            for tensor in (one.weight, one.bias, one.running_mean, one.running_var)
        )
    )


def is_plain_convolution(layer: nn.Module) -> bool:
    """Return whether a convolution is square, padded by half of its side, and nothing more."""
    return (
        type(layer) is nn.Conv2d
        and layer.bias is None
        and layer.kernel_size[0] == layer.kernel_size[1]
        and layer.stride[0] == layer.stride[1]
        and layer.padding == (layer.kernel_size[0] // 2,) * 2
        and (layer.dilation, layer.groups, layer.padding_mode) == ((1, 1), 1, "zeros")
    )
