"""Images read as rows of features: decoded ahead in threads, shown to a network in batches."""

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from distillmatch.errors import LearnerError
from distillmatch.learner.backbone import Backbone
from distillmatch.learner.feature_cache import FeatureCache, Features, content_key
from distillmatch.learner.inputs import Items, Pixels, Reader, decoded
from distillmatch.sources.images import ImageFile, decode_file
from distillmatch.terminal import show_progress

AHEAD = 2
"""Batches that are prepared at once, the one that is used next among them."""


@dataclass
class _Prepared:
    """An image ready for the network: its features if they are known, else its pixels."""

    key: bytes | None
    features: Features | None = None
    pixels: Pixels | None = None
    problem: str = ""


@dataclass(frozen=True)
class FeatureReader(Reader):
    """Reads images as float32 features of shape (count, dimension), by a cache if it has one."""

    backbone: Backbone
    cache: FeatureCache | None = field(default_factory=FeatureCache.of_user)

    def room(self, count: int) -> Features:
        """Return an array with room for the features of so many images."""
        return np.empty((count, self.backbone.dimension), np.float32)

    def results(self, items: Items, what: str = "images") -> Iterator[Features | str]:
        """Yield the features of each image, or the reason why it cannot be read."""
        done = 0
        with (
            show_progress(f"computing features of the {what}", len(items)) as progress,
            self.backbone.workers() as pool,
        ):
            try:
                for batch, parts in self._batches(pool, items, what):
                    prepared = [one for part in parts for one in part.result()]
                    self._compute(prepared, self.backbone.batch)
                    for one in prepared:
                        yield one.problem if one.features is None else one.features
                    done += len(batch)
                    progress(done)
            finally:
                pool.shutdown(cancel_futures=True)
                if self.cache is not None:
                    self.cache.close()

    def _batches(
        self, pool: ThreadPoolExecutor, items: Items, what: str
    ) -> Iterator[tuple[Items, list[Future[list[_Prepared]]]]]:
        """Yield batches of images with the threads that prepare them, some started ahead."""
        ahead: deque[tuple[Items, list[Future[list[_Prepared]]]]] = deque()
        for start in range(0, len(items), self.backbone.batch):
            batch = items[start : start + self.backbone.batch]
            # Frames of a video, which are decoded in a row, are not divided.
            files = all(type(item) is ImageFile for item in batch)
            step = self.backbone.share if files else len(batch)
            parts = [batch[cut : cut + step] for cut in range(0, len(batch), step)]
            ahead.append((batch, [pool.submit(self._prepare, part, what) for part in parts]))
            if len(ahead) == AHEAD:
                yield ahead.popleft()
        yield from ahead

    def _prepare(self, items: Items, what: str) -> list[_Prepared]:
        """Look images up by their content and decode those that are not known.

        On a CPU their features are computed here, too: several threads with an image or two each
        are faster than one with many.
        """
        if all(type(item) is ImageFile for item in items):
            prepared = [self._of_file(item) for item in items]
        else:
            prepared = [self._of_pixels(one) for one in decoded(items, self.backbone.side, what)]
        if self.backbone.on_cpu:
            self._compute(prepared, self.backbone.share)
        return prepared

    def _of_file(self, file: ImageFile) -> _Prepared:
        key = None
        try:
            with file.open() as opened:
                content = hashlib.file_digest(opened, "sha256")  # type: ignore[arg-type]
                key = content_key(self.backbone.key, b"file", content.digest())
        except OSError:  # decoding it says what is wrong
            pass
        if (known := self._known(key)) is not None:
            return _Prepared(key, known)
        found = decode_file(file, self.backbone.side)
        if isinstance(found, str):
            return _Prepared(key, problem=found)
        return _Prepared(key, pixels=found)

    def _of_pixels(self, found: Pixels | str) -> _Prepared:
        if isinstance(found, str):
            return _Prepared(None, problem=found)
        content = np.ascontiguousarray(found).tobytes()
        key = content_key(self.backbone.key, b"pixels", content)
        return _Prepared(key, self._known(key), found)

    def _known(self, key: bytes | None) -> Features | None:
        if key is None or self.cache is None:
            return None
        found = self.cache.get(key)
        return found if found is not None and len(found) == self.backbone.dimension else None

    def _compute(self, prepared: list[_Prepared], at_once: int) -> None:
        """Compute the features that are not known, and keep them."""
        todo = [one for one in prepared if one.features is None and one.pixels is not None]
        for start in range(0, len(todo), at_once):
            part = todo[start : start + at_once]
            pixels = [one.pixels for one in part if one.pixels is not None]
            rows = self.backbone.features(np.stack(pixels))
            for one, row in zip(part, rows, strict=True):
                one.features = row
            if self.cache is not None:
                pairs = zip(part, rows, strict=True)
                self.cache.put({one.key: row for one, row in pairs if one.key is not None})


class VectorReader(FeatureReader):
    """Takes the rows of a table as features that somebody computed already."""

    def read(self, items: Items, what: str = "images") -> tuple[Features, dict[int, str]]:
        """Return a table of vectors as it is; refuse anything else."""
        if not len(items):
            return self.room(0), {}
        if not all(isinstance(item, np.ndarray) and item.ndim == 1 for item in items):
            raise LearnerError(f"with network 'identity', {what} must be an array of vectors")
        rows, dimension = np.stack([*items]).astype(np.float32), self.backbone.dimension
        if rows.shape[1] != dimension:
            raise LearnerError(
                f"{what} must be vectors of {dimension} numbers, not of {rows.shape[1]}"
            )
        if not np.isfinite(rows).all():
            raise LearnerError(f"{what} must be vectors of finite numbers, without NaN and inf")
        return rows, {}
