"""`distillmatch predict`: what a learner says of image files."""

import argparse
import csv
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from distillmatch.cli.options import add_common
from distillmatch.cli.parser import Commands, Parser, add_command, option
from distillmatch.errors import ConfigError
from distillmatch.sources.walk import list_files, shown
from distillmatch.terminal import clean, safe_cell, tell

if TYPE_CHECKING:
    from distillmatch.learner.prediction import Prediction

COLUMNS = ("image", "label", "probability", "error")


def add_parser(commands: Commands) -> Parser:
    """Describe the command."""
    parser = add_command(commands, "predict", run)
    add_common(parser, "state")
    said = "files and folders; - or nothing: names from standard input, one per line"
    option(parser, "images IMAGES", said, nargs="*")
    form = parser.add_mutually_exclusive_group()
    option(form, "--json", "print one JSON object per line")
    option(form, "--csv", "print CSV with a header")
    option(parser, "--reject", "label images that look like no learned class 'unknown'")
    said = "with --reject: share of known images to accept (default: the learner's, 0.95)"
    option(parser, "--accept X", said, float)
    add_common(parser, "device", "allow_import")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Label images with a learner of your own.

    distillmatch predict learner photos --reject
    distillmatch predict learner camera --csv
    """
    if "" in arguments.images:
        raise ConfigError("expected files or folders of images, not an empty name")
    if arguments.accept is not None and not arguments.reject:
        raise ConfigError("--accept is for --reject, which was not given")
    from distillmatch.learner.estimator import ContinualLearner
    from distillmatch.learner.prediction import predict_files

    learner = ContinualLearner.load(
        arguments.state, device=arguments.device, allow_import=arguments.allow_import
    )
    empty: list[str] = []
    names = _names(arguments.images or ["-"], empty)
    predictions = predict_files(learner, names, arguments.reject, arguments.accept)
    row = _json if arguments.json else _csv if arguments.csv else _plain
    out = sys.stdout.buffer
    if arguments.csv:
        out.write(_as_csv(COLUMNS))
    failed = total = 0
    for answered in predictions:
        out.write(b"".join(map(row, answered)))
        out.flush()
        total += len(answered)
        for prediction in answered:
            if prediction.error:
                failed += 1
                tell(f"{shown(prediction.name)}: {prediction.reason}")
    if not (failed or empty):
        return 0
    images = f"{failed} image{'s' if failed > 1 else ''} could not be read"
    places = f"{len(empty)} place{'s' if len(empty) > 1 else ''} had nothing to read"
    tell(", ".join([images] * bool(failed) + [places] * bool(empty)))
    return 2 if failed == total else 1


def _names(given: list[str], empty: list[str]) -> Iterator[str]:
    """Yield the names of files; a folder stands for all files below it.

    Folders without files, and links to nothing, are reported and added to `empty`.
    """
    for name in given:
        if name == "-":
            yield from names_on_stdin()
        elif Path(name).is_dir():
            found = list_files(Path(name))
            yield from found.files
            problems = found.problems
            if not found.files and not problems:
                problems = [f"{shown(name)}: no files there"]
            for problem in problems:
                tell(problem)
            empty.extend(problems)
        else:
            yield name


def names_on_stdin() -> Iterator[str]:
    """Yield the names on standard input, one per line, whatever bytes they are made of."""
    for line in sys.stdin.buffer:
        if name := line.rstrip(b"\r\n"):
            yield os.fsdecode(name)


def _plain(one: "Prediction") -> bytes:
    said = f"error: {one.error}"
    if one.probability is not None:
        said = f"{one.probability:6.1%}  {shown(one.label or '')}"
    return f"{shown(one.name)}  {said}\n".encode()


def _json(one: "Prediction") -> bytes:
    """Return one line of ASCII; bytes of a name that are no UTF-8 become lone surrogates."""
    values = (one.name, one.label, one.probability, one.error)
    return (json.dumps(dict(zip(COLUMNS, values, strict=True))) + "\n").encode()


def _csv(one: "Prediction") -> bytes:
    probability = "" if one.probability is None else f"{one.probability:.6f}"
    return _as_csv((one.name, one.label or "", probability, one.error or ""))


def _as_csv(cells: tuple[str, ...]) -> bytes:
    """Return a row; except on a terminal, a name keeps the bytes it has on the disk."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(map(safe_cell, cells))
    row = text.getvalue()
    return (clean(row) if sys.stdout.isatty() else row).encode("utf-8", "surrogateescape")
