import io
import itertools
import os
import queue
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_world import BOAT, GOLDFISH, images_of, write_images
from PIL import Image

from distillmatch.errors import LearnerError
from distillmatch.learner.environment import look_around
from distillmatch.learner.inputs import (
    SMALLEST,
    PixelReader,
    natural_side,
    open_images,
    read_all,
)

PIXELS = images_of(GOLDFISH, BOAT, count=2)


@pytest.fixture(name="pipe")
def pipe_fixture(tmp_path: Path) -> Iterator[Path]:
    """A pipe that nobody writes to; who waits for it all the same is woken and fails the test."""
    path = tmp_path / "pipe.png"
    os.mkfifo(path)
    done, woken = threading.Event(), threading.Event()

    def wake() -> None:
        if not done.wait(300):
            woken.set()
        while not done.wait(0.1):
            os.close(os.open(path, os.O_RDWR))

    waker = threading.Thread(target=wake)
    waker.start()
    yield path
    done.set()
    waker.join()
    assert not woken.is_set(), "the pipe was waited for"


def test_an_environment_larger_than_the_limit_is_drawn_from_at_random(tmp_path: Path) -> None:
    images = images_of(GOLDFISH, count=30)
    write_images(tmp_path, images)
    for given in (images, [*images], tmp_path, [tmp_path]):
        found = look_around(given, PixelReader(16), 12, seed=1, task=0)
        assert (len(found.images), found.seen, found.unreadable) == (12, 30, 0)
        kept = {image.tobytes() for image in found.images}
        assert len(kept) == 12 and kept <= {image.tobytes() for image in images}
    first, again, later = (
        look_around(images, PixelReader(16), 12, 1, task).images for task in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != later).any()


def test_an_environment_may_be_empty_or_missing(tmp_path: Path) -> None:
    nothing: list[Any] = [None, [], tmp_path, iter(()), PIXELS[:0]]
    for given in nothing:
        found = look_around(given, PixelReader(16), 12, 1, 0)
        assert found.images.shape == (0, 16, 16, 3)
        assert found.seen == 0


def test_files_in_the_environment_that_are_no_images_are_counted(tmp_path: Path) -> None:
    write_images(tmp_path / "deep" / "er", PIXELS)
    (tmp_path / "notes.txt").write_text("rain")
    for given in (tmp_path, iter([tmp_path / "notes.txt", *sorted(tmp_path.rglob("*.png"))])):
        found = look_around(given, PixelReader(16), 12, 1, 0)
        assert (len(found.images), found.seen, found.unreadable) == (4, 5, 1)
    with pytest.raises(LearnerError, match="found nothing"):
        look_around(tmp_path / "nowhere", PixelReader(16), 12, 1, 0)
    with pytest.raises(LearnerError, match="unlabeled must be"):
        look_around(3, PixelReader(16), 12, 1, 0)


def test_a_pipe_among_images_is_counted_and_not_waited_for(tmp_path: Path, pipe: Path) -> None:
    write_images(tmp_path / "few", PIXELS)
    files = sorted((tmp_path / "few").iterdir())
    lists: list[Any] = [[tmp_path / "few", pipe], [*files, (str(pipe), 3)]]
    for given in (*lists, iter([*files, pipe])):
        found = look_around(given, PixelReader(16), 12, 1, 0)
        assert (len(found.images), found.seen, found.unreadable) == (4, 5, 1)
    found = look_around(pipe, PixelReader(16), 12, 1, 0)
    assert (len(found.images), found.seen, found.unreadable) == (0, 1, 1)


def test_what_lies_in_the_environment_and_is_no_file_is_counted(tmp_path: Path) -> None:
    """A camera's folder may have a link to nothing; what is labeled is refused with one."""
    camera = tmp_path / "camera"
    write_images(camera / "few", PIXELS)
    (camera / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (camera / "again").symlink_to(camera / "few")
    os.mkfifo(camera / "pipe.png")
    for given in (camera, [camera]):
        found = look_around(given, PixelReader(16), 12, 1, 0)
        assert (len(found.images), found.seen, found.unreadable) == (4, 6, 2)
    with pytest.raises(LearnerError, match=r"gone\.png: a link to nothing|pipe\.png: neither"):
        open_images(camera)


def test_a_folder_of_the_environment_that_cannot_be_listed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = write_images(tmp_path / "camera" / "closed", PIXELS)
    listed = os.scandir

    def scandir(folder: str) -> Any:
        if folder == str(closed):
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr("distillmatch.sources.walk.os.scandir", scandir)
    with pytest.raises(LearnerError, match="closed: Permission denied"):
        look_around(tmp_path / "camera", PixelReader(16), 12, 1, 0)


def test_a_pipe_named_as_an_image_is_refused(pipe: Path) -> None:
    for given, side in ((pipe, SMALLEST), ([str(pipe)], SMALLEST), ([pipe, PIXELS[0]], 16)):
        assert natural_side(open_images(given)) == side
        with pytest.raises(LearnerError, match=r"pipe\.png: neither a file nor a folder"):
            read_all(open_images(given), PixelReader(16))


def test_a_stream_of_nothing_readable_comes_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("rain")
    found = look_around(itertools.repeat(tmp_path / "notes.txt"), PixelReader(16), 20, 1, 0)
    assert (len(found.images), found.seen, found.unreadable) == (0, 20, 20)


def test_a_stream_may_mix_images_and_batches() -> None:
    def stream() -> Iterator[Any]:
        yield PIXELS[0]
        yield PIXELS[1:3]
        yield Image.fromarray(PIXELS[3])
        yield torch.from_numpy(PIXELS).permute(0, 3, 1, 2)

    found = look_around(stream(), PixelReader(16), 6, 1, 0)
    np.testing.assert_array_equal(found.images, np.concatenate([PIXELS, PIXELS[:2]]))
    assert found.seen == 8


def test_a_queue_is_taken_from_until_it_gives_none() -> None:
    camera: queue.Queue[Any] = queue.Queue()
    for one in (*PIXELS, None, PIXELS[0]):
        camera.put(one)
    found = look_around(camera, PixelReader(16), 20, 1, 0)
    np.testing.assert_array_equal(found.images, PIXELS)
    assert camera.qsize() == 1


def encoded(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    "samples",
    [
        [(one, 3) for one in PIXELS],
        [(Image.fromarray(one), "boat", {"width": 16}) for one in PIXELS],
        [[TENSOR[:2], torch.zeros(2)], [TENSOR[2:], torch.zeros(len(PIXELS) - 2)]],
        [[Image.fromarray(one) for one in PIXELS]],
        [{"__key__": "1", "cls": 3, "jpg": one} for one in PIXELS],
        [{"__key__": "1", "cls": b"3", "left.PNG": encoded(one)} for one in PIXELS],
        [{"image": TENSOR, "label": torch.zeros(len(PIXELS))}],
        [encoded(one) for one in PIXELS],
    ],
    ids=["pairs", "tuples", "loader", "lists", "webdataset", "undecoded", "named", "bytes"],
)
def test_what_loaders_give_beside_an_image_is_left_out(samples: list[Any]) -> None:
    for given in (iter(samples), samples):
        found = look_around(given, PixelReader(16), 20, 1, 0)
        np.testing.assert_array_equal(found.images, PIXELS)
        assert found.seen == len(PIXELS)
    drawn = look_around(samples, PixelReader(16), 2, 1, 0)
    assert (len(drawn.images), drawn.seen) == (2, len(PIXELS))


def test_a_list_may_mix_folders_with_images_and_batches(tmp_path: Path) -> None:
    write_images(tmp_path / "few", PIXELS)
    found = look_around(
        [PIXELS[0], tmp_path, TENSOR, (str(tmp_path), 3)], PixelReader(16), 20, 1, 0
    )
    np.testing.assert_array_equal(found.images, np.concatenate([PIXELS[:1], *[PIXELS] * 3]))
    with pytest.raises(LearnerError, match=r"expected unlabel+ed images there, found nothing"):
        look_around([PIXELS[0], tmp_path / "nowhere"], PixelReader(16), 20, 1, 0)


def test_bytes_of_a_stream_that_are_no_image_are_counted() -> None:
    samples = [b"rain", encoded(PIXELS[0])]
    for given in (iter(samples), samples):
        found = look_around(given, PixelReader(16), 20, 1, 0)
        assert (len(found.images), found.seen, found.unreadable) == (1, 2, 1)


@pytest.mark.parametrize(
    ("sample", "sentence"),
    [
        (
            {"json": {}, "cls": 3},
            "an image under a key such as 'image' or 'jpg', not 'json', 'cls'",
        ),
        ((), "must hold an image, but one is empty"),
        ((3, PIXELS[0]), "the list has an int"),
    ],
)
def test_a_sample_without_an_image_is_refused(sample: Any, sentence: str) -> None:
    with pytest.raises(LearnerError, match=sentence):
        look_around(iter([sample]), PixelReader(16), 20, 1, 0)
    with pytest.raises(LearnerError, match=sentence):
        look_around([sample], PixelReader(16), 20, 1, 0)


def test_a_stream_of_large_images_is_never_held_as_it_came() -> None:
    frame = 480 * 640 * 3

    def camera() -> Iterator[Any]:
        for number in range(1_000_000):
            yield np.full((480, 640, 3), number % 256, np.uint8)

    tracemalloc.start()
    try:
        found = look_around(camera(), PixelReader(16), 60, 1, 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.seen == len(found.images) == 60
    assert found.images[:, 0, 0, 0].tolist() == list(range(60))
    assert peak < 15 * frame
