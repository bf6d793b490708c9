"""Videos and cameras as unlabeled images."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_world import GOLDFISH, images_of, write_images

from distillmatch.errors import DistillMatchError, LearnerError
from distillmatch.learner import Camera, Video, video
from distillmatch.learner.environment import Environment, read_unlabeled
from distillmatch.learner.inputs import PixelReader

SIDE, SECONDS, RATE = 48, 70, 4


def look(given: Any, limit: int = 1000) -> Environment:
    return read_unlabeled(given, PixelReader(SIDE), limit, seed=1, task=0)


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


@pytest.mark.parametrize("every", [0.1, 0.5, 1, 7, 30])
def test_a_video_is_thinned_to_a_frame_every_so_many_seconds(every: float, film: Path) -> None:
    found = look(Video(film, every))
    expected = [int(number * every + 1e-6) for number in range(round(np.ceil(SECONDS / every)))]
    wrong = np.abs(np.subtract(seconds_of(found), expected))
    assert wrong.max() <= (every < 1 / RATE), "between frames, the next one is shown"
    assert (found.seen, found.unreadable) == (len(expected), 0)


def test_a_video_is_found_by_its_name_alone_or_in_a_folder(film: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "camera", images_of(GOLDFISH, count=2))
    (tmp_path / "camera" / "may.MP4").write_bytes(film.read_bytes())
    (tmp_path / "camera" / "torn.mp4").write_bytes(film.read_bytes()[:500])
    found = look(tmp_path / "camera")
    assert (found.seen, found.unreadable) == (2 + SECONDS + 1, 1)
    assert found.problems[0].count("torn.mp4") == 1
    drawn = look(str(film), limit=5)
    assert drawn.seen == SECONDS and len(set(seconds_of(drawn))) == 5
    with pytest.raises(LearnerError, match=r"torn\.mp4: "):
        look(tmp_path / "camera" / "torn.mp4")
    with pytest.raises(LearnerError, match="every must be more than 0"):
        Video(film, 0)


def test_a_video_that_ends_before_its_head_says_gives_what_it_has(
    film: Path, tmp_path: Path
) -> None:
    torn = tmp_path / "torn.avi"
    av = pytest.importorskip("av")
    with av.open(str(film)) as old, av.open(str(torn), "w") as new:
        copied = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(old.streams.video[0]):
            if packet.dts is not None:
                packet.stream = copied
                new.mux(packet)
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    found = look(torn)
    assert 10 < len(found.images) < SECONDS
    assert len(found.images) + found.unreadable == found.seen


def test_a_video_of_a_turned_camera_is_turned_back(film: Path, tmp_path: Path) -> None:
    """Its head says to turn it clockwise, so that the white left edge comes to the top."""
    content = bytearray(film.read_bytes())
    matrix = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    place = content.index(matrix, content.index(b"tkhd"))
    turned = (0, 1 << 16, 0, -1 << 16, 0, 0, SIDE << 16, 0, 1 << 30)
    content[place : place + len(matrix)] = struct.pack(">9i", *turned)
    (tmp_path / "turned.mp4").write_bytes(content)
    first = look(tmp_path / "turned.mp4").images[0].astype(int)
    assert first[:6].min() > 200 and first[12:].max() < 50


def test_a_camera_is_watched_for_a_while(film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A video stands for the camera; its frames come without pause."""
    monkeypatch.setattr(Camera, "_source", lambda camera: (str(film), None))
    clock = iter(np.arange(0, 1e6, 1 / RATE))
    monkeypatch.setattr(video, "monotonic", lambda: float(next(clock)))
    found = look([Camera("camera:3", every=2, minutes=0.5)])
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
    write_images(tmp_path, images_of(GOLDFISH, count=2))
    (tmp_path / "may.mp4").write_bytes(film.read_bytes())
    found = look(tmp_path)
    assert (len(found.images), found.unreadable) == (2, 1)
    assert "distillmatch[video]" in found.problems[0]
