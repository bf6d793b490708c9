"""Backbones whose normalizations are as different from each other as trained ones'."""

import torch

from distillmatch.networks import BatchNorm, WideResNet


def drawn_backbone(depth: int, width: int) -> WideResNet:
    generator = torch.Generator().manual_seed(1)
    backbone = WideResNet(depth, width, generator=generator)
    for layer in backbone.modules():
        if isinstance(layer, BatchNorm):
            with torch.no_grad():
                layer.weight.normal_(1, 0.3, generator=generator)
                layer.bias.normal_(0, 0.2, generator=generator)
                layer.running_mean.normal_(0, 0.2, generator=generator)
                layer.running_var.uniform_(0.5, 1.5, generator=generator)
    return backbone


def frozen_backbone(depth: int, width: int) -> WideResNet:
    """Make a backbone in evaluation, none of whose parameters learn."""
    return drawn_backbone(depth, width).eval().requires_grad_(False)
