"""A frozen network that turns images into features."""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.engine import Placement
from distillmatch.engine.outputs import piece_size
from distillmatch.errors import LearnerError
from distillmatch.learner.inputs import SMALLEST, Pixels
from distillmatch.networks import (
    PretrainedWeights,
    build_network,
    efficientnet_lite,
    named_generator,
)
from distillmatch.runs.checkpoints import checksum
from distillmatch.sources.images import worker_count
from distillmatch.views import Normalization, plain_views

IMAGE_SIZE = 224
IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""By which most networks trained on ImageNet take their images."""
FORM = 1
"""To be raised when images are decoded or shown in another way, or old features would be used."""
SHARE_PIXELS = 2 * 224 * 224
"""Size of the images that a core shows to the network at once."""
LITE = Normalization((efficientnet_lite.MEAN,) * 3, (efficientnet_lite.STD,) * 3)


@dataclass(frozen=True, eq=False)
class Backbone:
    """A network in evaluation, the images it takes, and the weights that must be kept with it.

    `digest` is a hash of its weights. Published ones are `weights` of a package, so none are kept.
    """

    network: nn.Module
    side: int
    normalization: Normalization
    dimension: int
    digest: str
    weights: Mapping[str, Tensor]
    placement: Placement

    @classmethod
    def of(cls, config: RunConfig, placement: Placement) -> "Backbone":
        """Return the network that a configuration names, with published weights or a file's."""
        side = config.image_size or IMAGE_SIZE
        if config.network == efficientnet_lite.NAME and config.pretrained is None:
            dimension = efficientnet_lite.EfficientNetLite0.feature_count
            network, digest = _published(placement), efficientnet_lite.SHA256
            return cls(network, side, LITE, dimension, digest, {}, placement)
        return cls._ready(_fresh(config, side), config.network, side, placement)

    @classmethod
    def of_vectors(cls, dimension: int, placement: Placement) -> "Backbone":
        """Return what stands for a network where vectors of features are given."""
        return cls(nn.Identity(), SMALLEST, IMAGENET, dimension, "", {}, placement)

    @classmethod
    def stored(
        cls, config: RunConfig, side: int, weights: Mapping[str, Tensor], placement: Placement
    ) -> "Backbone":
        """Return the network that a configuration names, with weights that were kept."""
        network = _fresh(config.replace(pretrained=None), side)
        try:
            network.load_state_dict(dict(weights))
        except RuntimeError:
            raise LearnerError(
                f"network '{config.network}' is not as it was: the weights that the learner keeps "
                "of it do not fit"
            ) from None
        return cls._ready(network, config.network, side, placement)

    @classmethod
    def _ready(cls, network: nn.Module, name: str, side: int, placement: Placement) -> "Backbone":
        weights = {key: value.detach().clone() for key, value in network.state_dict().items()}
        normalization = LITE if name == efficientnet_lite.NAME else _normalization(network)
        network.requires_grad_(False).eval()
        if isinstance(network, efficientnet_lite.EfficientNetLite0):
            efficientnet_lite.fold(network)
        with torch.no_grad():
            dimension = network(torch.zeros(1, 3, side, side)).shape[1]
        placed, digest = placement.place(network), checksum("", weights)
        return cls(placed, side, normalization, dimension, digest, weights, placement)

    @property
    def on_cpu(self) -> bool:
        """Whether the network is on a CPU."""
        return self.placement.device.type == "cpu"

    @property
    def batch(self) -> int:
        """How many images are read before the next are started."""
        return 32 if self.on_cpu else max(16, piece_size(self.placement.scoring_batch, self.side))

    @property
    def share(self) -> int:
        """How many images a thread prepares at once: as many as fit into the cache."""
        return max(1, SHARE_PIXELS // self.side**2) if self.on_cpu else 4

    @contextmanager
    def workers(self) -> Iterator[ThreadPoolExecutor]:
        """Yield threads that prepare images; on a CPU they run the network, each on one core."""
        if not self.on_cpu:
            with ThreadPoolExecutor(worker_count()) as pool:
                yield pool
            return
        threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(min(16, threads), initializer=_use_one_core) as pool:
                yield pool
        finally:
            torch.set_num_threads(threads)

    @property
    def key(self) -> bytes:
        """What the features of an image depend on beside the image."""
        parts = (FORM, self.digest, self.side, self.normalization, str(self.placement.dtype))
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()

    def features(self, images: Pixels) -> NDArray[np.float32]:
        """Return a row of features for each image of shape (side, side, 3)."""
        pixels = self.placement.tensor(images).permute(0, 3, 1, 2)
        views = plain_views(pixels, self.normalization, self.placement.dtype)
        with torch.no_grad(), self.placement.autocast():
            rows: NDArray[np.float32] = self.network(views).float().cpu().numpy()
        if not np.isfinite(rows).all():
            raise LearnerError("the pretrained network gives features that are not finite numbers")
        return rows


@cache
def _published(placement: Placement) -> nn.Module:
    """Return the published network; it does not change, so all learners of a process share it."""
    return placement.place(efficientnet_lite.frozen_network())


def _use_one_core() -> None:
    """Let the operators of the calling thread use no further threads."""
    torch.set_num_threads(1)


def _fresh(config: RunConfig, side: int) -> nn.Module:
    """Return the backbone that a configuration names, with weights from its file if it has one."""
    weights = None if config.pretrained is None else PretrainedWeights.read(config.pretrained)
    if config.network == efficientnet_lite.NAME:
        network = efficientnet_lite.EfficientNetLite0()
        if weights is not None:
            weights.load_into(network, config.network)
        return network
    generator = named_generator(config.seed, "features")
    return build_network(
        config.network, 1, generator=generator, image_size=side, weights=weights
    ).backbone


def _normalization(network: Any) -> Normalization:
    """Return the one that a network of timm notes, or ImageNet's."""
    noted = getattr(network, "pretrained_cfg", None) or {}
    try:
        return Normalization(tuple(noted["mean"]), tuple(noted["std"]))
    except (KeyError, TypeError, ValueError):
        return IMAGENET
