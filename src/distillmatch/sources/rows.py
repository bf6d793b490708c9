"""Images of a file that is mapped from disk, each read when it is indexed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


class MappedRows:
    """Rows of an array of images that stay on disk until they are indexed.

    It replaces an array where a copy of all its images might not fit in memory.
    """

    def __init__(self, images: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        self.images = images
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"MappedRows({len(self):,} images of {self.images.shape[1]} px)"

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        return (np.asarray(self.images[row]) for row in self.rows)

    def __getitem__(self, chosen: Any) -> NDArray[np.uint8]:
        return np.asarray(self.images[self.rows[chosen]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or np.uint8, copy=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that this replaces."""
        return (len(self), *self.images.shape[1:])

    @property
    def nbytes(self) -> int:
        """The bytes that the images take."""
        return int(np.prod(self.shape))


ImageRows = NDArray[np.uint8] | MappedRows
"""Images in memory, or images that are read when they are indexed."""


def choose_rows(images: NDArray[np.uint8], rows: NDArray[np.int64]) -> ImageRows:
    """Return a copy of some images, or, if they are mapped from disk, rows to read later."""
    return MappedRows(images, rows) if isinstance(images, np.memmap) else images[rows]
