"""Pictures of the streams that were learned, where their images are at hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from distillmatch.config import RunConfig
from distillmatch.errors import DistillMatchError
from distillmatch.report.comparison import Result
from distillmatch.report.paper_figures import stream_words
from distillmatch.report.stream_picture import draw_stream
from distillmatch.sources import load_source
from distillmatch.streams import build_stream
from distillmatch.suite.ledger import config_of

ALWAYS_THERE = ("shapes",)
STREAM = ("source", "image_size", "order", "tasks", "unlabeled", "labels_per_class")


@dataclass(frozen=True)
class StreamPicture:
    """A stream in words, and its picture as PNG, or why there is none."""

    title: str
    picture: bytes | None
    reason: str = ""


def stream_pictures(
    results: Sequence[Result], folders: Mapping[str, Path], most: int = 8
) -> list[StreamPicture]:
    """Draw each kind of stream once, at its lowest seed; `folders` says where sources' files are.

    A bound learns the stream's labelled images only, so streams of other methods come first.
    """
    chosen: dict[str, Result] = {}
    learned = [result for result in results if result["method"] != "offline"] or list(results)
    for result in sorted(learned, key=lambda result: int(result["seed"])):
        chosen.setdefault(repr([result["config"].get(key) for key in STREAM]), result)
    pictures: list[StreamPicture] = []
    for result in chosen.values():
        full = sum(one.picture is not None for one in pictures) == most
        pictures.append(
            StreamPicture(_title(result), None, f"because only {most} are drawn")
            if full
            else _drawn(result, folders)
        )
    return pictures


def _title(result: Result) -> str:
    """Return the stream in words; what a learner stores of it is no part of the picture."""
    without = {**result, "config": {**result["config"], "coreset": 0}}
    return f"{stream_words(without)}, seed {result['seed']}"


def _drawn(result: Result, folders: Mapping[str, Path]) -> StreamPicture:
    config = config_of(result, Path("result"))
    title = _title(result)
    if config.source in folders:
        config = config.replace(data_dir=folders[config.source])
    elif config.source not in ALWAYS_THERE:
        return StreamPicture(
            title, None, f"for the images are not at hand (give --data {config.source}=DIR)"
        )
    if "/" in result["stream"]["fingerprint"]:
        return StreamPicture(title, None, "for it was read from a file of index lists")
    try:
        return StreamPicture(title, _picture(config))
    except DistillMatchError as error:
        return StreamPicture(title, None, f"for {error}")


def _picture(config: RunConfig) -> bytes:
    dataset = load_source(config)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "stream.png"
        draw_stream(dataset, build_stream(dataset, config), path)
        return path.read_bytes()
