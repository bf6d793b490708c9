"""ResNet-18 (He et al., 2016) for small images, as later papers on this setting have it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from distillmatch.networks.initial_weights import InitialWeights, initialize
from distillmatch.networks.normalization import BatchNorm
from distillmatch.networks.wide_resnet import convolution

NAME = "resnet-18"
WIDTHS = (64, 128, 256, 512)


class ResNet18(nn.Module):
    """ResNet-18 without its head, its stem a 3×3 convolution of stride 1 and no pooling.

    Four groups of two blocks with 64, 128, 256 and 512 channels, each group but the first at half
    the resolution of the one before; then the mean over all positions, 512 features.
    """

    feature_count = WIDTHS[-1]

    def __init__(
        self,
        *,
        generator: torch.Generator | None = None,
        initial_weights: InitialWeights = "normal",
    ) -> None:
        super().__init__()
        self.first = convolution(3, WIDTHS[0], 3, 1)
        self.norm = BatchNorm(WIDTHS[0])
        blocks: list[nn.Module] = []
        channels = WIDTHS[0]
        for width in WIDTHS:
            blocks += [Block(channels, width), Block(width, width)]
            channels = width
        self.blocks = nn.Sequential(*blocks)
        initialize(self, generator, initial_weights)

    def forward(self, images: Tensor) -> Tensor:
        """Return one vector of 512 numbers for each image."""
        maps: Tensor = self.blocks(self.norm.activate(self.first(images)))
        return maps.mean(dim=(2, 3))


class Block(nn.Module):
    """Two 3×3 convolutions with normalization, added to a shortcut before the last ReLU.

    Where the channels change, so does the resolution, and the shortcut is a normalized 1×1
    convolution.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        stride = 1 if channels_in == channels_out else 2
        self.conv1 = convolution(channels_in, channels_out, 3, stride)
        self.norm1 = BatchNorm(channels_out)
        self.conv2 = convolution(channels_out, channels_out, 3, 1)
        self.norm2 = BatchNorm(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if channels_in != channels_out:
            shortcut = convolution(channels_in, channels_out, 1, stride)
            self.shortcut = nn.Sequential(shortcut, BatchNorm(channels_out))

    def forward(self, maps: Tensor) -> Tensor:
        """Return the maps of the next block."""
        inner = self.norm1.activate(self.conv1(maps))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(maps))
