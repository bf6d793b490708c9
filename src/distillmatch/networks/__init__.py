"""Networks: wide residual networks by name, with a linear or a DeConf head."""

from distillmatch.networks.deconf import DeconfHead, Detector
from distillmatch.networks.names import Head, build_network, parse_network
from distillmatch.networks.normalization import (
    BatchNorm,
    frozen_statistics,
    separate_statistics,
)
from distillmatch.networks.wide_resnet import WideResNet

__all__ = [
    "BatchNorm",
    "DeconfHead",
    "Detector",
    "Head",
    "WideResNet",
    "build_network",
    "frozen_statistics",
    "parse_network",
    "separate_statistics",
]
