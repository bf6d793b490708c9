"""Where and in which precision a run computes, and the networks that are made there."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.networks import (
    Head,
    InitialWeights,
    PretrainedWeights,
    build_network,
    named_generator,
)
from distillmatch.views import to_device


@dataclass(frozen=True)
class Placement:
    """A device, and the precision of convolutions on it; weights and statistics are float32."""

    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, config: RunConfig) -> "Placement":
        """Return what the configuration asks for, or say that this machine lacks it."""
        available = torch.cuda.is_available()
        if config.device == "cuda" and not available:
            raise ConfigError("device is 'cuda', but torch sees no CUDA device here")
        on_cuda = available and config.device != "cpu"
        if config.precision == "bfloat16" and not on_cuda:
            raise ConfigError("precision 'bfloat16' needs a CUDA device, and torch sees none here")
        half = on_cuda and config.precision != "float32"
        if on_cuda:
            # Else some of cuDNN's weight gradients are summed in whatever order they come.
            torch.backends.cudnn.deterministic = True
        device = torch.device("cuda" if on_cuda else "cpu")
        return cls(device, torch.bfloat16 if half else torch.float32)

    @property
    def name(self) -> str:
        """The device as a person would call it."""
        cuda = self.device.type == "cuda"
        return torch.cuda.get_device_name(self.device) if cuda else "CPU"

    @property
    def captures(self) -> bool:
        """Whether work is captured as CUDA graphs, and epochs are made ahead."""
        return self.device.type == "cuda"

    @property
    def scoring_batch(self) -> int:
        """How many images are scored at once: to fill a GPU, or to fit the cache of a CPU."""
        return 2048 if self.device.type == "cuda" else 128

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """Copy an array to the device, without waiting for what is queued there."""
        return to_device(torch.from_numpy(np.ascontiguousarray(array)), self.device)

    def place(self, network: nn.Module) -> nn.Module:
        """Move a network to the device, its convolutions in the layout that is fast there."""
        return network.to(self.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context in which networks run."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def wait(self) -> None:
        """Wait until all that was asked of the device is done, for measurements."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_memory(self) -> int | None:
        """Return the most bytes that were allocated on the device, where that is counted."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return None


@dataclass(frozen=True)
class NetworkFactory:
    """Builds networks whose first weights are decided by the seed and their name alone.

    With `weights` all backbones start from those instead. It holds no data: a method keeps it, and
    must not find the truth through it.
    """

    network: str
    classes: int
    seed: int
    placement: Placement
    image_size: int = 32
    weights: PretrainedWeights | None = None

    @classmethod
    def of(
        cls, config: RunConfig, classes: int, image_size: int, placement: Placement
    ) -> "NetworkFactory":
        """Return the factory that a configuration asks for, its pretrained weights read."""
        weights = None if config.pretrained is None else PretrainedWeights.read(config.pretrained)
        return cls(config.network, classes, config.seed, placement, image_size, weights)

    def __call__(
        self, name: str, head: Head = "linear", initial_weights: InitialWeights = "normal"
    ) -> nn.Module:
        """Return a fresh network, with a linear head or a detector's."""
        network: nn.Module = build_network(
            self.network,
            self.classes,
            head,
            named_generator(self.seed, name),
            image_size=self.image_size,
            weights=self.weights,
            initial_weights=initial_weights,
        )
        return self.placement.place(network).eval()
