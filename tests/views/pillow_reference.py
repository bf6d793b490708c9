"""Views made image by image with Pillow: the slow reference of ours."""

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from distillmatch.views.normalization import Normalization
from distillmatch.views.operations import OPERATIONS
from distillmatch.views.views import OperationDraw, StrongDraw, WeakDraw

Picture = Image.Image


class JitterParameters(NamedTuple):
    brightness: float
    contrast: float
    bright_first: bool


class WeakParameters(NamedTuple):
    jitter: JitterParameters
    flip: bool
    row: int
    column: int
    padding: int


class StrongParameters(NamedTuple):
    jitter: JitterParameters
    operations: tuple[tuple[str, float], ...]
    row: int
    column: int


def weak_parameters(draw: WeakDraw) -> list[WeakParameters]:
    """Take a batch's draw apart into the parameters of each view."""
    rows = zip(_jitters(draw), draw.flip.tolist(), *_places(draw), strict=True)
    return [WeakParameters(*row, draw.padding) for row in rows]


def strong_parameters(draw: StrongDraw) -> list[StrongParameters]:
    """Take a batch's draw apart into the parameters of each view."""
    names = list(OPERATIONS)
    drawn = [
        zip((names[c] for c in op.choice.tolist()), magnitudes(op).tolist(), strict=True)
        for op in draw.operations
    ]
    rows = zip(_jitters(draw), zip(*drawn, strict=True), *_places(draw), strict=True)
    return [StrongParameters(*row) for row in rows]


def magnitudes(draw: OperationDraw) -> Tensor:
    """Return every image's magnitude, whatever operation it drew: float32, (count,)."""
    every = [op.magnitude(draw.share, draw.negative) for op in OPERATIONS.values()]
    return torch.stack(every).gather(0, draw.choice.unsqueeze(0)).squeeze(0)


def weak_picture(picture: Picture, parameters: WeakParameters) -> Picture:
    """Jitter, flip and crop one picture."""
    picture = jitter(picture, parameters.jitter)
    if parameters.flip:
        picture = ImageOps.mirror(picture)
    side = picture.width
    bordered = ImageOps.expand(picture, border=parameters.padding, fill=0)
    left, top = parameters.column, parameters.row
    return bordered.crop((left, top, left + side, top + side))


def strong_picture(picture: Picture, parameters: StrongParameters) -> Picture:
    """Jitter one picture and apply its operations."""
    picture = jitter(picture, parameters.jitter)
    for name, magnitude in parameters.operations:
        picture = PILLOW_OPERATIONS[name](picture, magnitude)
    return picture


def weak_view(
    image: NDArray[np.uint8], parameters: WeakParameters, normalization: Normalization
) -> NDArray[np.float32]:
    """Make one weak view, (3, side, side), of a uint8 image (side, side, 3)."""
    return normalized(weak_picture(Image.fromarray(image), parameters), normalization)


def strong_view(
    image: NDArray[np.uint8], parameters: StrongParameters, normalization: Normalization
) -> NDArray[np.float32]:
    """Make one strong view, (3, side, side), of a uint8 image (side, side, 3)."""
    view = normalized(strong_picture(Image.fromarray(image), parameters), normalization)
    side = view.shape[1]
    top, left = parameters.row - side // 2 // 2, parameters.column - side // 2 // 2
    bottom, right = top + side // 2, left + side // 2
    view[:, max(0, top) : bottom, max(0, left) : right] = 0
    return view


def normalized(picture: Picture, normalization: Normalization) -> NDArray[np.float32]:
    """Turn a picture into normalized float32 values (3, side, side)."""
    values = np.asarray(picture).transpose(2, 0, 1).astype(np.float32)
    values /= 255
    values -= np.asarray(normalization.mean, dtype=np.float32)[:, None, None]
    values /= np.asarray(normalization.std, dtype=np.float32)[:, None, None]
    return values


def jitter(picture: Picture, parameters: JitterParameters) -> Picture:
    """Change brightness and contrast in the drawn order."""
    if parameters.bright_first:
        picture = ImageEnhance.Brightness(picture).enhance(parameters.brightness)
        return ImageEnhance.Contrast(picture).enhance(parameters.contrast)
    picture = ImageEnhance.Contrast(picture).enhance(parameters.contrast)
    return ImageEnhance.Brightness(picture).enhance(parameters.brightness)


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


def _jitters(draw: WeakDraw | StrongDraw) -> list[JitterParameters]:
    drawn = draw.jitter
    columns = (drawn.brightness.tolist(), drawn.contrast.tolist(), drawn.bright_first.tolist())
    return [JitterParameters(*row) for row in zip(*columns, strict=True)]


def _places(draw: WeakDraw | StrongDraw) -> tuple[list[int], list[int]]:
    return draw.row.tolist(), draw.column.tolist()
