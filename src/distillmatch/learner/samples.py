"""What a stream of unlabeled images gives: images, batches of them, or samples that hold one.

Loaders and webdatasets made for labeled data give an image together with other things, which a
learner has no use for.
"""

import io
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from PIL import Image

from distillmatch.errors import LearnerError
from distillmatch.sources.images import ImageFile

KEYS = ("image", "images", "jpg", "jpeg", "png", "webp", "ppm", "bmp", "tif", "tiff", "gif", "avif")
"""Under which a sample with names has its image; of a name with dots, the last part counts."""


class Queue(Protocol):
    """What images can be taken from as they come, in this process or from another."""

    def get(self) -> Any:
        """Return the next one, when there is one."""

    def put(self, item: Any) -> None:
        """Add one."""


def is_queue(given: object) -> bool:
    """Tell whether images are to be taken by `get`."""
    return all(callable(getattr(given, name, None)) for name in ("get", "put"))


def until_none(queue: Queue) -> Iterator[Any]:
    """Yield what a queue gives; None ends it."""
    while (item := queue.get()) is not None:
        yield item


def images_in(sample: Any, what: str) -> Any:
    """Return the image or the batch that a sample holds, without what stands beside it.

    That is the image under its name in a mapping, and the first entry of a tuple. A list is a batch
    if all its entries may be images; else it is taken as a tuple is. Bytes are an encoded image.
    """
    if isinstance(sample, Mapping):
        for key in sample:
            if str(key).rpartition(".")[2].lower() in KEYS:
                return images_in(sample[key], what)
        raise LearnerError(
            f"{what} with names must have an image under a key such as 'image' or 'jpg', not "
            f"{', '.join(map(repr, sample))}"
        )
    if isinstance(sample, list | tuple):
        if not sample:
            raise LearnerError(f"samples of {what} must hold an image, but one is empty")
        if isinstance(sample, list) and all(map(_may_be_image, sample)):
            return [images_in(one, what) for one in sample]
        return images_in(sample[0], what)
    if isinstance(sample, bytes):
        return ImageFile(f"{what} that came as bytes", partial(_opened, sample))
    return sample


def is_batch(images: Any) -> bool:
    """Tell several images from one."""
    return isinstance(images, list) or (
        isinstance(images, np.ndarray | torch.Tensor) and images.ndim == 4
    )


def _may_be_image(one: Any) -> bool:
    if isinstance(one, np.ndarray | torch.Tensor):
        return one.ndim in (2, 3)
    return isinstance(one, str | bytes | Path | Image.Image)


def _opened(content: bytes) -> BinaryIO:
    return io.BytesIO(content)
