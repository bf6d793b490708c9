"""Views made image by image with Pillow: the slow reference of ours."""

from collections.abc import Callable
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from distillmatch.views.operations import OPERATIONS
from distillmatch.views.views import PADDING, Jitter, OperationDraw, StrongDraw, WeakDraw

Picture = Image.Image
Pixels = NDArray[np.uint8]


def weak_view(image: Pixels, draw: WeakDraw, number: int) -> Pixels:
    """Make the weak view that an image drew, (side, side, 3)."""
    picture = jittered(Image.fromarray(image), draw.jitter, number)
    if draw.flip[number]:
        picture = ImageOps.mirror(picture)
    side = picture.width
    bordered = ImageOps.expand(picture, border=PADDING, fill=0)
    left, top = int(draw.column[number]), int(draw.row[number])
    return np.asarray(bordered.crop((left, top, left + side, top + side)))


def strong_view(image: Pixels, draw: StrongDraw, number: int) -> Pixels:
    """Make the strong view that an image drew, (side, side, 3), black where it is cut out."""
    picture = jittered(Image.fromarray(image), draw.jitter, number)
    for operation in draw.operations:
        apply = list(PILLOW_OPERATIONS.values())[operation.choice[number]]
        picture = apply(picture, float(magnitudes(operation)[number]))
    view, half = np.array(picture), picture.width // 2
    top, left = int(draw.row[number]) - half // 2, int(draw.column[number]) - half // 2
    view[max(0, top) : top + half, max(0, left) : left + half] = 0
    return view


def magnitudes(draw: OperationDraw) -> Tensor:
    """Return every image's magnitude, whatever operation it drew: float32, (count,)."""
    every = [op.magnitude(draw.share, draw.negative) for op in OPERATIONS.values()]
    return torch.stack(every).gather(0, draw.choice.unsqueeze(0)).squeeze(0)


def jittered(picture: Picture, jitter: Jitter, number: int) -> Picture:
    """Change brightness and contrast in the drawn order."""
    changes: list[tuple[Callable[[Picture], ImageEnhance._Enhance], Tensor]] = [
        (ImageEnhance.Brightness, jitter.brightness), (ImageEnhance.Contrast, jitter.contrast)
    ]  # fmt: skip
    for enhance, factors in changes if jitter.bright_first[number] else changes[::-1]:
        picture = enhance(picture).enhance(float(factors[number]))
    return picture


def _affine(picture: Picture, matrix: tuple[float, float, float, float, float, float]) -> Picture:
    return picture.transform(
        picture.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.NEAREST
    )


PILLOW_OPERATIONS: dict[str, Callable[[Picture, float], Picture]] = {
    "identity": lambda picture, _: picture,
    "shear_x": lambda picture, slope: _affine(picture, (1, slope, 0, 0, 1, 0)),
    "shear_y": lambda picture, slope: _affine(picture, (1, 0, 0, slope, 1, 0)),
    "translate_x": lambda picture, share: _affine(picture, (1, 0, share * picture.width, 0, 1, 0)),
    "translate_y": lambda picture, share: _affine(picture, (1, 0, 0, 0, 1, share * picture.height)),
    "rotate": lambda picture, degrees: picture.rotate(degrees),
    "mirror": lambda picture, _: ImageOps.mirror(picture),
    "autocontrast": lambda picture, _: ImageOps.autocontrast(picture),
    "equalize": lambda picture, _: ImageOps.equalize(picture),
    "solarize": lambda picture, threshold: ImageOps.solarize(picture, ceil(threshold)),
    "posterize": lambda picture, bits: ImageOps.posterize(picture, int(bits)),
    "invert": lambda picture, _: ImageOps.invert(picture),
    "contrast": lambda picture, factor: ImageEnhance.Contrast(picture).enhance(factor),
    "color": lambda picture, factor: ImageEnhance.Color(picture).enhance(factor),
    "brightness": lambda picture, factor: ImageEnhance.Brightness(picture).enhance(factor),
    "sharpness": lambda picture, factor: ImageEnhance.Sharpness(picture).enhance(factor),
}
