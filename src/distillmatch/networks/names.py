"""Networks by name: `wrn-28-2` is the paper's, `resnet-18` that of later papers.

`efficientnet-lite0` is a pretrained one; others have a colon.
"""

import re
from threading import RLock
from typing import Any, Literal, get_args

import torch
from torch import nn

from distillmatch.errors import ConfigError
from distillmatch.networks import efficientnet_lite, resnet
from distillmatch.networks.efficientnet_lite import EfficientNetLite0
from distillmatch.networks.foreign import find_maker, make_backbone, with_own_normalization
from distillmatch.networks.initial_weights import InitialWeights
from distillmatch.networks.network import DeconfHead, Detector, LinearHead, Network
from distillmatch.networks.pretrained import PretrainedWeights
from distillmatch.networks.resnet import ResNet18
from distillmatch.networks.wide_resnet import WideResNet

Head = Literal["linear", "cosine", "scaled-cosine"]

_global_numbers = RLock()
"""Held while a network is made: foreign modules draw from torch's global generator."""


def check_network(name: str) -> None:
    """Raise if the name of a network is wrong."""
    if ":" in name:
        find_maker(name)
    elif name not in (efficientnet_lite.NAME, resnet.NAME):
        parse_network(name)


def parse_network(name: str) -> tuple[int, int]:
    """Return depth and width of a network name such as `wrn-28-2`."""
    match = re.fullmatch(r"wrn-([0-9]{1,4})-([0-9]{1,3})", name)
    if match is None:
        raise ConfigError(
            "network must be wrn-DEPTH-WIDTH, for example 'wrn-28-2', resnet-18, "
            "efficientnet-lite0, torchvision:NAME, timm:NAME, or your own as module:name, not "
            f"{name!r}"
        )
    depth, width = int(match[1]), int(match[2])
    if depth < 10 or depth % 6 != 4:
        raise ConfigError(
            f"network {name!r}: the depth must be 6k + 4 and at least 10, such as 10, 16 or 28"
        )
    if width < 1:
        raise ConfigError(f"network {name!r}: the width must be at least 1")
    return depth, width


def build_network(
    name: str,
    classes: int,
    head: Head = "linear",
    generator: torch.Generator | None = None,
    *,
    image_size: int = 32,
    weights: PretrainedWeights | None = None,
    initial_weights: InitialWeights = "normal",
) -> Network:
    """Build a network by name with this many class slots; a DeConf head gives a `Detector`.

    The weights depend on the state of `generator` (torch's global one if none) and nothing else;
    with `weights` the backbone has those. `image_size` is that of the images it will be shown.
    `initial_weights` says how the layers of ours are drawn; other backbones draw their own.
    """
    if classes < 1:
        raise ConfigError(f"a network must have at least 1 class, not {classes}")
    if head not in get_args(Head):
        raise ConfigError(f"head must be one of {', '.join(get_args(Head))}, not {head!r}")
    drawn: dict[str, Any] = {"generator": generator, "initial_weights": initial_weights}
    with _global_numbers:
        backbone: nn.Module
        if ":" in name:
            backbone, features = make_backbone(name, image_size, generator)
        else:
            backbone = _our_backbone(name, **drawn)
            features = backbone.feature_count
        # Before its normalization is exchanged, so that the file's names are the library's.
        if weights is not None:
            weights.load_into(backbone, name)
        backbone = with_own_normalization(backbone, name) if ":" in name else backbone
        if head == "linear":
            return Network(backbone, LinearHead(features, classes, **drawn))
        return Detector(backbone, DeconfHead(features, classes, head, **drawn))


def _our_backbone(name: str, **drawn: Any) -> EfficientNetLite0 | ResNet18 | WideResNet:
    if name == efficientnet_lite.NAME:
        return efficientnet_lite.pretrained_network()
    return ResNet18(**drawn) if name == resnet.NAME else WideResNet(*parse_network(name), **drawn)
