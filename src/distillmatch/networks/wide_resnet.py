"""Wide residual networks (Zagoruyko and Komodakis, 2016), the pre-activation kind."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from distillmatch.networks.acceleration import backbone_features
from distillmatch.networks.initial_weights import InitialWeights, initialize
from distillmatch.networks.normalization import BatchNorm


class WideResNet(nn.Module):
    """A wide residual network WRN-`depth`-`width` without its head, for images of any size.

    A first convolution to 16 channels; three groups of (depth - 4) / 6 residual blocks with
    16, 32 and 64 times `width` channels, the second and third at half the resolution of the one
    before; then the mean over all positions, a vector of 64 times `width` features.
    """

    blocks: Sequence["Block"]

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        generator: torch.Generator | None = None,
        initial_weights: InitialWeights = "normal",
    ) -> None:
        super().__init__()
        blocks = (depth - 4) // 6
        self.feature_count = 64 * width
        self.first = convolution(3, 16, 3, 1)
        groups: list[nn.Module] = []
        channels = 16
        for group_channels, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            for block in range(blocks):
                groups.append(Block(channels, group_channels, stride if block == 0 else 1))
                channels = group_channels
        self.blocks = nn.ModuleList(groups)  # type: ignore[assignment]
        self.last_norm = BatchNorm(channels)
        initialize(self, generator, initial_weights)

    def forward(self, images: Tensor) -> Tensor:
        """Return one vector of `feature_count` numbers for each image."""
        features = backbone_features(self, images)
        if features is not None:
            return features
        maps: Tensor = self.first(images)
        shortcut: Tensor | None = None
        for block in self.blocks:
            maps, shortcut = block(maps, shortcut)
        assert shortcut is not None
        activated = self.last_norm.add_and_activate(maps, shortcut)[1]
        return activated.mean(dim=(2, 3))


class Block(nn.Module):
    """Two 3×3 convolutions, each after normalization and ReLU, to be added to a shortcut.

    Where the shape changes the shortcut is a 1×1 convolution of the activated input, else the
    input itself. The two are added where the next block normalizes them, in the same pass.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = BatchNorm(channels_in)
        self.conv1 = convolution(channels_in, channels_out, 3, stride)
        self.norm2 = BatchNorm(channels_out)
        self.conv2 = convolution(channels_out, channels_out, 3, 1)
        same_shape = channels_in == channels_out and stride == 1
        self.shortcut = None if same_shape else convolution(channels_in, channels_out, 1, stride)

    def forward(self, maps: Tensor, shortcut: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return maps and the shortcut that the next block adds to them."""
        if shortcut is None:
            activated = self.norm1.activate(maps)
        else:
            maps, activated = self.norm1.add_and_activate(maps, shortcut)
        kept = maps if self.shortcut is None else self.shortcut(activated)
        return self.conv2(self.norm2.activate(self.conv1(activated))), kept


def convolution(channels_in: int, channels_out: int, side: int, stride: int) -> nn.Conv2d:
    """Make a square convolution without bias, its input padded by half of its side."""
    return nn.Conv2d(channels_in, channels_out, side, stride, padding=side // 2, bias=False)
