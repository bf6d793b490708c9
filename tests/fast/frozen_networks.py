"""Frozen networks whose normalizations are as different from each other as trained ones'."""

import torch

from distillmatch.networks import BatchNorm, WideResNet, build_network


def frozen_backbone(name: str, seed: int = 1) -> WideResNet:
    """Make a backbone in evaluation, with drawn statistics, none of whose parameters learn."""
    generator = torch.Generator().manual_seed(seed)
    backbone = build_network(name, 10, generator=generator).backbone
    assert isinstance(backbone, WideResNet)
    for layer in backbone.modules():
        if isinstance(layer, BatchNorm):
            with torch.no_grad():
                layer.weight.normal_(1, 0.3, generator=generator)
                layer.bias.normal_(0, 0.2, generator=generator)
                layer.running_mean.normal_(0, 0.2, generator=generator)
                layer.running_var.uniform_(0.5, 1.5, generator=generator)
    return backbone.eval().requires_grad_(False)
