"""Where unlabeled images may come from: patterns, data sets, loaders, videos, cameras."""

import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_world import BOAT, GOLDFISH, images_of, write_images
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from distillmatch.errors import DistillMatchError, LearnerError
from distillmatch.learner import Camera, Video, video
from distillmatch.learner.environment import Environment, look_around
from distillmatch.learner.inputs import PixelReader

PIXELS = images_of(GOLDFISH, BOAT, count=4)
TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
SIDE, SECONDS, RATE = 48, 70, 4


def look(given: Any, limit: int = 100, side: int = 16) -> Environment:
    return look_around(given, PixelReader(side), limit, seed=1, task=0)


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
        TensorDataset(TENSOR, torch.zeros(len(TENSOR))),
        DataLoader(TensorDataset(TENSOR, torch.zeros(len(TENSOR))), batch_size=3),
        OneByOne(),
        DataLoader(OneByOne(), batch_size=3),
    ],
    ids=["map-style", "loader", "iterable", "loader-of-iterable"],
)
def test_data_sets_and_loaders_of_torch_are_read(given: Any) -> None:
    found = look(given)
    np.testing.assert_array_equal(found.images, PIXELS)
    assert (found.seen, found.unreadable) == (len(PIXELS), 0)


def test_of_a_large_data_set_only_what_is_drawn_is_loaded() -> None:
    tracemalloc.start()
    try:
        found = look(Endless(), limit=30)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(found.images), found.seen) == (30, 1_000_000)
    assert len({int(image[0, 0, 0]) for image in found.images}) > 15
    assert peak < 40 * 2**20  # the numbers of the images, and a handful of them


def test_a_pattern_stands_for_the_files_that_fit_it(tmp_path: Path) -> None:
    deep = write_images(tmp_path / "camera" / "may" / "1", PIXELS[:3])
    write_images(tmp_path / "camera", PIXELS[3:4])
    write_images(tmp_path / "camera" / ".thumbnails", PIXELS)
    (deep / "notes.txt").write_text("rain")
    for pattern, seen, unreadable, hidden in (
        ("**/*.png", 4, 0, 0),
        ("**", 5, 1, 1),
        ("may/*/[01].png", 2, 0, 0),
    ):
        found = look(str(tmp_path / "camera" / pattern))
        counts = (found.seen, found.unreadable, found.hidden)
        assert counts == (seen, unreadable, hidden), pattern
    assert (
        look([str(tmp_path / "camera" / "*" / "1")])
        .problems[0]
        .endswith("not an image in a format that can be read")
    )
    with pytest.raises(LearnerError, match=r"\*\.jpg: expected .* that fit this pattern, found no"):
        look(str(tmp_path / "*.jpg"))


@pytest.fixture(name="film", scope="module")
def film_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video whose brightness counts the seconds, three levels each; its left edge is white."""
    av = pytest.importorskip("av")
    path: Path = tmp_path_factory.mktemp("films") / "film.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.width = stream.height = SIDE
        stream.pix_fmt, stream.bit_rate = "yuv420p", 2_000_000
        for number in range(SECONDS * RATE):
            picture = np.full((SIDE, SIDE, 3), 3 * (number // RATE), np.uint8)
            picture[:, :8] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def seconds_of(found: Environment) -> list[int]:
    middle = found.images[:, 20:40, 20:40].mean(axis=(1, 2, 3))
    return [round(level / 3) for level in middle.tolist()]


@pytest.mark.parametrize("every", [0.5, 1, 7, 30])
def test_a_video_is_thinned_to_a_frame_every_so_many_seconds(every: float, film: Path) -> None:
    found = look(Video(film, every), side=SIDE, limit=1000)
    expected = [int(number * every) for number in range(round(np.ceil(SECONDS / every)))]
    assert (seconds_of(found), found.seen, found.unreadable) == (expected, len(expected), 0)


def test_a_video_is_found_by_its_name_alone_or_in_a_folder(film: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "camera", PIXELS[:2])
    (tmp_path / "camera" / "may.MP4").write_bytes(film.read_bytes())
    (tmp_path / "camera" / "torn.mp4").write_bytes(film.read_bytes()[:500])
    found = look(tmp_path / "camera")
    assert (found.seen, found.unreadable) == (2 + SECONDS + 1, 1)
    assert "torn.mp4" in found.problems[0]
    drawn = look(str(film), limit=5, side=SIDE)
    assert drawn.seen == SECONDS and len(set(seconds_of(drawn))) == 5
    with pytest.raises(LearnerError, match=r"torn\.mp4: "):
        look(tmp_path / "camera" / "torn.mp4")
    with pytest.raises(LearnerError, match="every must be more than 0"):
        Video(film, 0)


def test_a_video_of_a_turned_camera_is_turned_back(film: Path, tmp_path: Path) -> None:
    """Its head says to turn it clockwise, so that the white left edge comes to the top."""
    content = bytearray(film.read_bytes())
    matrix = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    place = content.index(matrix, content.index(b"tkhd"))
    turned = (0, 1 << 16, 0, -1 << 16, 0, 0, SIDE << 16, 0, 1 << 30)
    content[place : place + len(matrix)] = struct.pack(">9i", *turned)
    (tmp_path / "turned.mp4").write_bytes(content)
    first = look(tmp_path / "turned.mp4", side=SIDE).images[0].astype(int)
    assert first[:6].min() > 200 and first[12:].max() < 50


def test_a_camera_is_watched_for_a_while(film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A video stands for the camera; its frames come without pause."""
    monkeypatch.setattr(Camera, "_source", lambda camera: (str(film), None))
    clock = iter(np.arange(0, 1e6, 1 / RATE))
    monkeypatch.setattr(video, "monotonic", lambda: float(next(clock)))
    found = look([Camera("camera:3", every=2, minutes=0.5)], side=SIDE)
    assert len(found.images) == found.seen == 15
    assert seconds_of(found) == [0, *range(1, 28, 2)]  # the clock ticks once before the first
    with pytest.raises(LearnerError, match="a camera must be the only source"):
        look(["camera:0", film])


def test_without_the_extra_one_sentence_says_how_to_get_it(
    film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    for given in (film, "camera:0"):
        with pytest.raises(DistillMatchError, match=r"pip install 'distillmatch\[video\]'"):
            look(given)
    write_images(tmp_path, PIXELS[:2])
    (tmp_path / "may.mp4").write_bytes(film.read_bytes())
    found = look(tmp_path)
    assert (len(found.images), found.unreadable) == (2, 1)
    assert "distillmatch[video]" in found.problems[0]
