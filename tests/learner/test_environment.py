"""Where unlabeled images may come from, and what is taken of them."""

import io
import itertools
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_world import BOAT, GOLDFISH, images_of, write_images
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from distillmatch.errors import LearnerError
from distillmatch.learner.environment import Environment, read_unlabeled
from distillmatch.learner.inputs import PixelReader, natural_side, open_images, read_all

PIXELS = images_of(GOLDFISH, BOAT, count=2)
TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
NUMBERS = torch.zeros(len(PIXELS))


def look(given: Any, limit: int = 20, task: int = 0) -> Environment:
    return read_unlabeled(given, PixelReader(16), limit, seed=1, task=task)


def counts(found: Environment) -> tuple[int, int, int]:
    """Return how many images were read, seen, and unreadable."""
    return len(found.images), found.seen, found.unreadable


def test_more_images_than_the_limit_are_drawn_from_at_random(tmp_path: Path) -> None:
    images = images_of(GOLDFISH, count=30)
    write_images(tmp_path, images)
    for given in (images, [*images], tmp_path, [tmp_path]):
        found = look(given, limit=12)
        assert counts(found) == (12, 30, 0)
        kept = {image.tobytes() for image in found.images}
        assert len(kept) == 12 and kept <= {image.tobytes() for image in images}
    first, again, later = (look(images, limit=12, task=task).images for task in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != later).any()


def test_nothing_may_be_given(tmp_path: Path) -> None:
    nothing: list[Any] = [None, [], tmp_path, iter(()), PIXELS[:0]]
    for given in nothing:
        found = look(given)
        assert found.images.shape == (0, 16, 16, 3) and found.seen == 0


def test_what_is_no_image_is_counted_and_no_pipe_is_waited_for(tmp_path: Path) -> None:
    """A camera's folder may have notes, a pipe, and a link to nothing; a labeled one may not."""
    camera, pipe = tmp_path / "camera", tmp_path / "camera" / "pipe.png"
    files = sorted(write_images(camera / "few", PIXELS).iterdir())
    (camera / "notes.txt").write_text("rain")
    (camera / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (camera / "again").symlink_to(camera / "few")
    os.mkfifo(pipe)
    for given in (camera, [camera]):
        assert counts(look(given)) == (4, 7, 3)
    with pytest.raises(LearnerError, match=r"gone\.png: a link to nothing|pipe\.png: neither"):
        open_images(camera)
    for some in ([camera / "few", pipe], [*files, (str(pipe), 3)], iter([*files, pipe])):
        assert counts(look(some)) == (4, 5, 1)
    assert natural_side(open_images([pipe, PIXELS[0]])) == 16
    with pytest.raises(LearnerError, match=r"pipe\.png: .*found a pipe"):
        read_all(open_images(pipe), PixelReader(16))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("no such place", "found nothing"),
        ([PIXELS[0], "no such place"], "expected unlabeled images there, found nothing"),
        ("no such/*.jpg", r"\*\.jpg: expected .* that fit this pattern, found none"),
        (3, "unlabeled must be"),
        ([{"json": {}, "cls": 3}], "under a key such as 'image' or 'jpg', not 'json', 'cls'"),
        ([(3, PIXELS[0])], "the list has an int"),
    ],
)
def test_what_is_no_source_of_images_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(LearnerError, match=sentence):
        look(given)


def test_a_pattern_stands_for_the_files_that_fit_it(tmp_path: Path) -> None:
    deep = write_images(tmp_path / "camera" / "may" / "1", PIXELS[:3])
    write_images(tmp_path / "camera", PIXELS[3:4])
    write_images(tmp_path / "camera" / ".thumbnails", PIXELS)
    (deep / "notes.txt").write_text("rain")
    for pattern, expected, hidden in (
        ("**/*.png", (4, 4, 0), 0),
        ("**", (4, 5, 1), 1),
        ("may/*/[01].png", (2, 2, 0), 0),
    ):
        found = look(str(tmp_path / "camera" / pattern))
        assert (counts(found), found.hidden) == (expected, hidden), pattern
    (problem,) = look([str(tmp_path / "camera" / "*" / "1")]).problems
    assert problem.endswith("not an image in a format that can be read")


def test_streams_and_lists_may_mix_images_batches_and_folders(tmp_path: Path) -> None:
    found = look(iter([PIXELS[0], PIXELS[1:3], Image.fromarray(PIXELS[3]), TENSOR]), limit=6)
    np.testing.assert_array_equal(found.images, np.concatenate([PIXELS, PIXELS[:2]]))
    assert found.seen == 8
    write_images(tmp_path / "few", PIXELS)
    found = look([PIXELS[0], tmp_path, TENSOR, (str(tmp_path), 3)])
    np.testing.assert_array_equal(found.images, np.concatenate([PIXELS[:1], *[PIXELS] * 3]))


def test_a_stream_that_never_ends_is_taken_up_to_the_limit(tmp_path: Path) -> None:
    taken = 0

    def camera() -> Iterator[Any]:
        nonlocal taken
        for taken in itertools.count(1):
            yield PIXELS[taken % 4]

    assert counts(look(camera())) == (20, 20, 0) and taken == 20
    (tmp_path / "notes.txt").write_text("rain")
    assert counts(look(itertools.repeat(tmp_path / "notes.txt"))) == (0, 20, 20)


def encoded(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    "samples",
    [
        [(Image.fromarray(one), "boat", {"width": 16}) for one in PIXELS],
        [[Image.fromarray(one) for one in PIXELS]],
        [{"__key__": "1", "cls": b"3", "left.PNG": encoded(one)} for one in PIXELS],
        [{"image": TENSOR, "label": NUMBERS}],
        [encoded(one) for one in PIXELS],
    ],
    ids=["tuples", "lists", "webdataset", "named", "bytes"],
)
def test_what_loaders_give_beside_an_image_is_left_out(samples: list[Any]) -> None:
    for given in (iter(samples), samples):
        found = look(given)
        np.testing.assert_array_equal(found.images, PIXELS)
        assert found.seen == len(PIXELS)
    assert counts(look(samples, limit=2)) == (2, len(PIXELS), 0)


class OneByOne(IterableDataset[Any]):
    """A stream that, as torch has it, inherits from data sets that can be indexed."""

    def __iter__(self) -> Iterator[Any]:
        return ((image, 3) for image in TENSOR)

    def __len__(self) -> int:
        return len(TENSOR)


class Endless(Dataset[Any]):
    """More large images than fit in memory, made when asked for."""

    def __getitem__(self, number: int) -> Any:
        return np.full((480, 640, 3), number % 251, np.uint8)

    def __len__(self) -> int:
        return 1_000_000


@pytest.mark.parametrize(
    "given",
    [
        TensorDataset(TENSOR, NUMBERS),
        DataLoader(TensorDataset(TENSOR, NUMBERS), batch_size=3),
        OneByOne(),
        DataLoader(OneByOne(), batch_size=3),
    ],
    ids=["map-style", "loader", "iterable", "loader-of-iterable"],
)
def test_data_sets_and_loaders_of_torch_are_read(given: Any) -> None:
    found = look(given)
    np.testing.assert_array_equal(found.images, PIXELS)
    assert counts(found) == (4, 4, 0)


@pytest.mark.parametrize(
    ("given", "seen"), [(Endless(), 1_000_000), (map(Endless().__getitem__, range(10**6)), 60)]
)
def test_large_images_are_never_held_as_they_came(given: Any, seen: int) -> None:
    tracemalloc.start()
    try:
        found = look(given, limit=60)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counts(found) == (60, seen, 0)
    assert len({int(image[0, 0, 0]) for image in found.images}) > 30
    assert peak < 40 * 2**20  # the numbers of the images, and a handful of them
