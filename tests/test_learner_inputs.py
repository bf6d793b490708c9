import io
import itertools
import os
import queue
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_world import BOAT, GOLDFISH, images_of, small_learner, write_images
from PIL import Image

from distillmatch.errors import LearnerError
from distillmatch.learner.environment import look_around
from distillmatch.learner.inputs import SMALLEST, natural_side, open_images, read_images
from distillmatch.learner.labels import class_folders, labeled_images
from distillmatch.sources import decoders
from distillmatch.sources.images import decode_image

PIXELS = images_of(GOLDFISH, BOAT, count=2)


@pytest.fixture(name="pipe")
def pipe_fixture(tmp_path: Path) -> Iterator[Path]:
    """A pipe that nobody writes to; who waits for it all the same is woken and fails the test."""
    path = tmp_path / "pipe.png"
    os.mkfifo(path)
    done, woken = threading.Event(), threading.Event()

    def wake() -> None:
        if not done.wait(30):
            woken.set()
        while not done.wait(0.1):
            os.close(os.open(path, os.O_RDWR))

    waker = threading.Thread(target=wake)
    waker.start()
    yield path
    done.set()
    waker.join()
    assert not woken.is_set(), "the pipe was waited for"


def read(given: Any, side: int = 16) -> Any:
    return read_images(open_images(given), side)


@pytest.mark.parametrize(
    "given",
    [
        PIXELS,
        PIXELS.astype(np.int64),
        PIXELS / 255,
        (PIXELS / 255).astype(np.float32),
        PIXELS.transpose(0, 3, 1, 2),
        torch.from_numpy(PIXELS).permute(0, 3, 1, 2),
        torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float() / 255,
        [*PIXELS],
        [torch.from_numpy(image).permute(2, 0, 1) for image in PIXELS],
        [Image.fromarray(image) for image in PIXELS],
        (PIXELS[0], Image.fromarray(PIXELS[1]), *PIXELS[2:]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_the_same_images_are_read_from_whatever_holds_them(given: Any) -> None:
    np.testing.assert_array_equal(read(given), PIXELS)


def test_files_are_read_by_path(tmp_path: Path) -> None:
    write_images(tmp_path / "a", PIXELS)
    paths = sorted((tmp_path / "a").iterdir())
    np.testing.assert_array_equal(read(paths), PIXELS)
    np.testing.assert_array_equal(read([str(path) for path in paths]), PIXELS)
    np.testing.assert_array_equal(read(np.array([str(path) for path in paths])), PIXELS)
    np.testing.assert_array_equal(read(tmp_path), PIXELS)
    np.testing.assert_array_equal(read([paths[0], PIXELS[1]]), PIXELS[:2])


def test_grey_images_get_three_equal_channels() -> None:
    grey = PIXELS[..., 0]
    for given in (grey, grey[..., None], grey[:, None], [*grey], torch.from_numpy(grey)):
        np.testing.assert_array_equal(read(given), np.repeat(grey[..., None], 3, axis=3))


def test_sizes_may_differ_and_are_fitted_as_files_are(tmp_path: Path) -> None:
    wide = np.random.default_rng(1).integers(0, 256, (20, 40, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(wide).save(buffer, "PNG")
    expected = decode_image(buffer, 16)
    got = read([wide, torch.from_numpy(wide).permute(2, 0, 1), Image.fromarray(wide), PIXELS[0]])
    for image in got[:3]:
        np.testing.assert_array_equal(image, expected)
    np.testing.assert_array_equal(got[3], PIXELS[0])
    np.testing.assert_array_equal(read(wide[None])[0], expected)


def test_transparency_is_laid_over_white() -> None:
    clear = Image.new("RGBA", (16, 16), (10, 20, 30, 0))
    assert (read([clear]) == 255).all()


@pytest.mark.parametrize(
    ("shape", "side"),
    [((50, 41, 3), 40), ((30, 33), 32), ((3000, 4000, 3), 64), ((5, 9, 3), 8), ((16, 16, 3), 16)],
)
def test_the_first_image_suggests_a_size(shape: tuple[int, ...], side: int) -> None:
    assert natural_side(open_images([np.zeros(shape, np.uint8)])) == side


def test_the_size_of_a_first_file_is_read_without_decoding_it(tmp_path: Path) -> None:
    Image.new("RGB", (47, 90)).save(tmp_path / "a.png")
    assert natural_side(open_images(tmp_path)) == 48


def test_a_first_file_that_claims_to_be_huge_suggests_no_side(tmp_path: Path) -> None:
    """A PNG of a few bytes whose head says 60,000 by 60,000 pixels."""
    head = struct.pack(">4sIIBBBBB", b"IHDR", 60_000, 60_000, 8, 2, 0, 0, 0)
    size = struct.pack(">I", len(head) - 4)
    start = b"\x89PNG\r\n\x1a\n" + size + head + struct.pack(">I", zlib.crc32(head))
    (tmp_path / "huge.png").write_bytes(start)
    assert natural_side(open_images(tmp_path)) == SMALLEST


@pytest.mark.parametrize("content", [b"P6\n", b"P6\n4 x\n255\n", b"", b"no image"])
def test_a_damaged_first_file_suggests_no_side_and_is_named_when_read(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "00.ppm").write_bytes(content)
    assert natural_side(open_images(tmp_path)) == SMALLEST
    with pytest.raises(LearnerError, match=r"00\.ppm: ") as error:
        read(tmp_path)
    (tmp_path / "boat").mkdir()
    (tmp_path / "00.ppm").rename(tmp_path / "boat" / "00.ppm")
    for size in (None, 16):
        with pytest.raises(LearnerError) as other:
            small_learner(image_size=size).partial_fit(tmp_path)
        assert str(other.value) == str(error.value).replace("00.ppm", "boat/00.ppm")


def test_an_image_given_by_its_size_alone_is_brought_to_that_of_the_first() -> None:
    learner = small_learner(image_size=None, epochs=1)
    learner.partial_fit(np.zeros((2, 23, 30, 3), np.uint8), ["a", "b"])
    assert learner.image_size_ == 24
    assert len(learner.predict([PIXELS[0], np.zeros((90, 70), np.uint8)])) == 2
    assert learner.predict([]).shape == (0,)
    assert learner.predict_proba(PIXELS[:0]).shape == (0, 2)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (np.zeros((2, 9, 9, 4), np.uint8), "1 or 3 channels"),
        ([np.zeros((9, 9, 2), np.uint8)], "1 or 3 channels"),
        (np.zeros((9, 9, 3), np.uint8), "put it in a list"),
        (np.zeros((4, 7), np.uint8), "must have the shape"),
        ([np.zeros(7, np.uint8)], "in a list must have the shape"),
        (np.zeros((2, 0, 9, 3), np.uint8), "must have pixels"),
        (np.full((1, 9, 9, 3), 1.5), "from 0 to 1"),
        (np.full((1, 9, 9, 3), np.nan), "no NaN"),
        (np.full((1, 9, 9, 3), 256), "from 0 to 255"),
        (np.zeros((1, 9, 9, 3), bool), "whole numbers or floats"),
        (7, "not an int"),
        ([7], "the list has an int"),
        ("no such place", "found nothing"),
        (["no such file.png"], "no such file.png: No such file"),
    ],
)
def test_what_is_no_image_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(LearnerError, match=sentence):
        read(given)


def test_a_folder_of_class_folders_brings_its_labels(tmp_path: Path) -> None:
    write_images(tmp_path / "boat", PIXELS[2:])
    write_images(tmp_path / "gold\nfish", PIXELS[:2])
    files, labels = labeled_images(tmp_path, None)
    assert labels == ["boat", "boat", "gold�fish", "gold�fish"]
    np.testing.assert_array_equal(read_images(files, 16), PIXELS[[2, 3, 0, 1]])
    with pytest.raises(LearnerError, match="labels cannot be given beside a folder"):
        labeled_images(tmp_path, ["a"])


def test_a_file_that_is_no_image_is_named_on_one_line(tmp_path: Path) -> None:
    write_images(tmp_path / "boat", PIXELS[2:])
    (tmp_path / "boat" / "a\nb.png").write_bytes(b"nothing")
    with pytest.raises(LearnerError, match=r"a�b\.png: not an image") as error:
        small_learner().partial_fit(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match="one folder of images for each class, found none"):
        class_folders(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LearnerError, match="a class without images"):
        class_folders(tmp_path)
    with pytest.raises(LearnerError, match="expected a folder with one folder for each class"):
        class_folders(tmp_path / "nowhere")


def test_an_environment_larger_than_the_limit_is_drawn_from_at_random(tmp_path: Path) -> None:
    images = images_of(GOLDFISH, count=30)
    write_images(tmp_path, images)
    for given in (images, [*images], tmp_path, [tmp_path]):
        found = look_around(given, 16, 12, seed=1, task=0)
        assert (len(found.images), found.seen, found.unreadable) == (12, 30, 0)
        kept = {image.tobytes() for image in found.images}
        assert len(kept) == 12 and kept <= {image.tobytes() for image in images}
    first, again, later = (look_around(images, 16, 12, 1, task).images for task in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != later).any()


def test_an_environment_may_be_empty_or_missing(tmp_path: Path) -> None:
    nothing: list[Any] = [None, [], tmp_path, iter(()), PIXELS[:0]]
    for given in nothing:
        found = look_around(given, 16, 12, 1, 0)
        assert found.images.shape == (0, 16, 16, 3)
        assert found.seen == 0


def test_files_in_the_environment_that_are_no_images_are_counted(tmp_path: Path) -> None:
    write_images(tmp_path / "deep" / "er", PIXELS)
    (tmp_path / "notes.txt").write_text("rain")
    for given in (tmp_path, iter([tmp_path / "notes.txt", *sorted(tmp_path.rglob("*.png"))])):
        found = look_around(given, 16, 12, 1, 0)
        assert (len(found.images), found.seen, found.unreadable) == (4, 5, 1)
    with pytest.raises(LearnerError, match="found nothing"):
        look_around(tmp_path / "nowhere", 16, 12, 1, 0)
    with pytest.raises(LearnerError, match="unlabeled must be"):
        look_around(3, 16, 12, 1, 0)


def test_a_pipe_among_images_is_counted_and_not_waited_for(
    tmp_path: Path, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "few", PIXELS)
    files = sorted((tmp_path / "few").iterdir())
    lists: list[Any] = [[tmp_path / "few", pipe], [*files, (str(pipe), 3)]]
    for given in (*lists, iter([*files, pipe])):
        found = look_around(given, 16, 12, 1, 0)
        assert (len(found.images), found.seen, found.unreadable) == (4, 5, 1)
    found = look_around(pipe, 16, 12, 1, 0)
    assert (len(found.images), found.seen, found.unreadable) == (0, 1, 1)
    monkeypatch.setattr(decoders, "PROCESSES_FROM", 2)
    monkeypatch.setattr(decoders, "_processors", lambda: 2)
    for given in lists:
        found = look_around(given, 16, 12, 1, 0)
        assert (len(found.images), found.seen, found.unreadable) == (4, 5, 1)


def test_what_lies_in_the_environment_and_is_no_file_is_counted(tmp_path: Path) -> None:
    """A camera's folder may have a link to nothing; what is labelled is refused with one."""
    camera = tmp_path / "camera"
    write_images(camera / "few", PIXELS)
    (camera / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (camera / "again").symlink_to(camera / "few")
    os.mkfifo(camera / "pipe.png")
    for given in (camera, [camera]):
        found = look_around(given, 16, 12, 1, 0)
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
        look_around(tmp_path / "camera", 16, 12, 1, 0)


def test_a_pipe_named_as_an_image_is_refused(pipe: Path) -> None:
    for given in (pipe, [str(pipe)], [pipe, PIXELS[0]]):
        assert natural_side(open_images(given)) == SMALLEST
        with pytest.raises(LearnerError, match=r"pipe\.png: neither a file nor a folder"):
            read(given)


def test_a_stream_of_nothing_readable_comes_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("rain")
    found = look_around(itertools.repeat(tmp_path / "notes.txt"), 16, 20, 1, 0)
    assert (len(found.images), found.seen, found.unreadable) == (0, 20, 20)


def test_a_stream_may_mix_images_and_batches() -> None:
    def stream() -> Iterator[Any]:
        yield PIXELS[0]
        yield PIXELS[1:3]
        yield Image.fromarray(PIXELS[3])
        yield torch.from_numpy(PIXELS).permute(0, 3, 1, 2)

    found = look_around(stream(), 16, 6, 1, 0)
    np.testing.assert_array_equal(found.images, np.concatenate([PIXELS, PIXELS[:2]]))
    assert found.seen == 8


def test_a_queue_is_taken_from_until_it_gives_none() -> None:
    camera: queue.Queue[Any] = queue.Queue()
    for one in (*PIXELS, None, PIXELS[0]):
        camera.put(one)
    found = look_around(camera, 16, 20, 1, 0)
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
        found = look_around(given, 16, 20, 1, 0)
        np.testing.assert_array_equal(found.images, PIXELS)
        assert found.seen == len(PIXELS)
    drawn = look_around(samples, 16, 2, 1, 0)
    assert (len(drawn.images), drawn.seen) == (2, len(PIXELS))


def test_a_list_may_mix_folders_with_images_and_batches(tmp_path: Path) -> None:
    write_images(tmp_path / "few", PIXELS)
    found = look_around([PIXELS[0], tmp_path, TENSOR, (str(tmp_path), 3)], 16, 20, 1, 0)
    np.testing.assert_array_equal(found.images, np.concatenate([PIXELS[:1], *[PIXELS] * 3]))
    with pytest.raises(LearnerError, match="expected unlabelled images there, found nothing"):
        look_around([PIXELS[0], tmp_path / "nowhere"], 16, 20, 1, 0)


def test_bytes_of_a_stream_that_are_no_image_are_counted() -> None:
    samples = [b"rain", encoded(PIXELS[0])]
    for given in (iter(samples), samples):
        found = look_around(given, 16, 20, 1, 0)
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
        look_around(iter([sample]), 16, 20, 1, 0)
    with pytest.raises(LearnerError, match=sentence):
        look_around([sample], 16, 20, 1, 0)


def test_a_stream_of_large_images_is_never_held_as_it_came() -> None:
    frame = 480 * 640 * 3

    def camera() -> Iterator[Any]:
        for number in range(1_000_000):
            yield np.full((480, 640, 3), number % 256, np.uint8)

    tracemalloc.start()
    try:
        found = look_around(camera(), 16, 60, 1, 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.seen == len(found.images) == 60
    assert found.images[:, 0, 0, 0].tolist() == list(range(60))
    assert peak < 15 * frame
