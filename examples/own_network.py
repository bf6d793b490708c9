"""A network of your own: images in, one vector of features per image out.

distillmatch run --network own_network:SmallNet --out result
"""

from torch import Tensor, nn


class SmallNet(nn.Module):
    """Three convolutions, each halving the resolution, and the mean over all positions."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels_in, channels_out in ((3, 16), (16, 32), (32, 64)):
            layers += [
                nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(channels_out),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, 3, height, width) to features (N, 64)."""
        maps: Tensor = self.layers(images)
        return maps.mean(dim=(2, 3))
