"""Frames of a video file or a camera, thinned: one a second, unless another interval is given."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from PIL import Image

from distillmatch.errors import ConfigError, LearnerError
from distillmatch.sources.walk import shown

SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".ts", ".3gp")
"""Of files that are taken for videos."""
CAMERA, STREAMS = "camera:", ("rtsp://", "rtmp://")
"""How the name of a camera begins, on this machine or in the network."""
DEVICES = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}")}
"""Format and name of the camera with a number, by platform."""
_EARLY = 1e-6
"""Seconds by which a frame may come before its time."""


@dataclass(frozen=True)
class Video:
    """A video file, of which one frame every so many seconds is used."""

    path: Path
    every: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).expanduser())
        _check_positive(every=self.every)

    def frames(self) -> list["VideoFrame"]:
        """Return the frames that are used, none of them decoded yet."""
        with _opened(str(self.path), None, what=shown(self.path)) as (container, stream):
            if stream.duration is not None:
                seconds = float(stream.duration * stream.time_base)
            elif container.duration is not None:
                seconds = container.duration / 1e6
            else:  # its head does not say, but its packets do
                times = [packet.pts for packet in container.demux(stream) if packet.pts is not None]
                seconds = float((max(times) - min(times)) * stream.time_base) if times else 0.0
        count = max(1, math.ceil(seconds / self.every - _EARLY))
        return [VideoFrame(self, number * self.every) for number in range(count)]


class VideoFrame(NamedTuple):
    """What a video shows at a time, in seconds from its beginning; not decoded yet."""

    video: Video
    at: float

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f"{shown(self.video.path)}, second {self.at:g}"


@dataclass(frozen=True)
class Camera:
    """A camera that is watched for some minutes; iterating over it gives its frames.

    `name` is `camera:0` for the first camera of this machine, or an address such as `rtsp://…`.
    """

    name: str = "camera:0"
    every: float = 1.0
    minutes: float = 10.0

    def __post_init__(self) -> None:
        _check_positive(every=self.every, minutes=self.minutes)

    @property
    def frames(self) -> int:
        """How many frames it gives, if it is as fast as that."""
        return math.ceil(60 * self.minutes / self.every)

    def __iter__(self) -> Iterator[Image.Image]:
        """Yield a frame every so many seconds; those in between are thrown away."""
        with _opened(*self._source(), what=self.name) as (container, stream):
            due = began = monotonic()
            for frame in container.decode(stream):
                now = monotonic()
                if now - began >= 60 * self.minutes:
                    return
                if now >= due:
                    due = max(due + self.every, now)
                    yield _upright(frame)

    def _source(self) -> tuple[str, str | None]:
        if self.name.startswith(STREAMS):
            return self.name, None
        format_name, place = DEVICES.get(sys.platform, ("dshow", "video={}"))
        return place.format(self.name.removeprefix(CAMERA)), format_name


def is_video(path: Path) -> bool:
    """Return whether a file's name is that of a video."""
    return path.suffix.lower() in SUFFIXES


def is_camera(name: str) -> bool:
    """Return whether this names a camera rather than a place on the disk."""
    return name.startswith((CAMERA, *STREAMS))


def decode_frames(frames: Sequence[VideoFrame]) -> Iterator[Image.Image | str]:
    """Yield frames of one video, in the order of time, or the reason why there is none.

    Shortly after its end, the last picture is given.
    """
    video, reason, done = frames[0].video, "the video ends before", 0
    try:
        with _opened(str(video.path), None, what=shown(video.path)) as (container, stream):
            start = float((stream.start_time or 0) * stream.time_base)
            pictures, picture, at = container.decode(stream), None, 0.0
            for frame in frames:
                while picture is None or at < frame.at - _EARLY:
                    following = next(pictures, None)
                    if following is None:
                        break
                    picture = following
                    at = 0.0 if picture.time is None else picture.time - start
                if picture is None or at + max(1.0, video.every) < frame.at:
                    break
                yield _upright(picture)
                done += 1
    except LearnerError as error:
        reason = f"the video is damaged ({error})"
    yield from [reason] * (len(frames) - done)


@contextmanager
def _opened(place: str, format_name: str | None, what: str) -> Iterator[tuple[Any, Any]]:
    """Open a video or a camera; explain why one cannot be opened."""
    if find_spec("av") is None:
        raise ConfigError(
            f"{what}: reading videos and cameras needs av, not installed here: "
            "pip install 'distillmatch[video]'"
        )
    import av  # noqa: PLC0415  an extra

    try:
        with av.open(place, format=format_name) as container:
            if not container.streams.video:
                raise LearnerError(f"{what}: expected a video, found no pictures in it")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            yield container, stream
    except av.FFmpegError as error:
        raise LearnerError(f"{what}: {error.strerror or error}") from None


def _upright(frame: Any) -> Image.Image:
    """Return a frame as a camera that was turned should have shown it."""
    image: Image.Image = frame.to_image()
    turn = getattr(frame, "rotation", 0) % 360
    return image.rotate(turn, expand=True) if turn else image


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise LearnerError(f"{name} must be more than 0, not {value}")
