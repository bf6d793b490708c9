"""Colour jitter: the change of brightness and contrast with which both kinds of views begin."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from distillmatch.views.draws import coin, uniform
from distillmatch.views.photometry import brighten_, change_contrast_, to_bytes

BRIGHTNESS_SPREAD = 63 / 255
CONTRAST_SPREAD = 0.8


@dataclass(frozen=True, eq=False)
class Jitter:
    """One brightness and one contrast factor per image, and which of the two comes first."""

    brightness: Tensor
    contrast: Tensor
    bright_first: Tensor

    @classmethod
    def draw(cls, brightness: Tensor, contrast: Tensor, order: Tensor) -> Self:
        """Make the jitter from random words, one of each per image."""
        return cls(
            brightness=_around_one(brightness, BRIGHTNESS_SPREAD),
            contrast=_around_one(contrast, CONTRAST_SPREAD),
            bright_first=coin(order),
        )

    def apply(self, pixels: Tensor, piece: slice) -> Tensor:
        """Return jittered copies of the uint8 pixels, which are the given piece of the batch."""
        brightness, first = self.brightness[piece], self.bright_first[piece]
        one = torch.ones_like(brightness)
        values = pixels.to(torch.float32)
        # A factor of one changes nothing, so brightness can stand on both sides of contrast.
        brighten_(values, torch.where(first, brightness, one)).floor_()
        change_contrast_(values, self.contrast[piece]).floor_()
        return to_bytes(brighten_(values, torch.where(first, one, brightness)))


def _around_one(words: Tensor, spread: float) -> Tensor:
    return uniform(words).mul_(2 * spread).add_(1 - spread)
