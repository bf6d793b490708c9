"""Networks: a backbone by name, with a linear or a DeConf head."""

from distillmatch.networks.initial_weights import InitialWeights, named_generator
from distillmatch.networks.names import Head, build_network, check_network
from distillmatch.networks.network import DeconfHead, Detector, LinearHead, Network
from distillmatch.networks.normalization import (
    BatchNorm,
    StatisticsGroups,
    by_batch_statistics,
    separate_statistics,
)
from distillmatch.networks.pretrained import PretrainedWeights, weights_digest
from distillmatch.networks.wide_resnet import WideResNet

__all__ = [
    "BatchNorm", "DeconfHead", "Detector", "Head", "InitialWeights", "LinearHead", "Network",
    "PretrainedWeights", "StatisticsGroups", "WideResNet", "build_network", "by_batch_statistics",
    "check_network", "named_generator", "separate_statistics", "weights_digest",
]  # fmt: skip
