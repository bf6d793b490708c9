"""One picture of a learner's first tasks: what it was given, what it recognized, how it did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distillmatch.learner.explanation import Example
from distillmatch.report.canvas import FUTURE, MUTED, PAST, PRESENT, Canvas, shortened
from distillmatch.report.learner_text import measured, plural

COLUMN, MARGIN, SIDE, GAP = 276, 20, 44, 8
ROWS = 5
BAR = 150


@dataclass(frozen=True)
class TaskShown:
    """A task's record, an image of each new class, and some that the environment contributed."""

    record: Mapping[str, Any]
    labeled: Sequence[NDArray[np.uint8]]
    examples: Sequence[Example]


def draw_learner(tasks: Sequence[TaskShown], path: Path) -> None:
    """Draw the tasks from left to right, each with its labels above and its environment below."""
    canvas = Canvas(MARGIN + COLUMN * len(tasks), 318)
    for number, task in enumerate(tasks):
        _draw_task(canvas, MARGIN + COLUMN * number, task)
    canvas.save(path)


def _draw_task(canvas: Canvas, left: int, task: TaskShown) -> None:
    record, width = task.record, COLUMN - MARGIN
    canvas.words(left, 14, shortened(str(record["name"]).capitalize(), width, 18), 18)
    added = plural(len(record["added"]), "new class", "new classes")
    canvas.words(left, 42, f"{added}, {plural(record['labeled'], 'label')}", 13, PRESENT)
    _draw_row(canvas, left, 66, task.labeled, PRESENT)
    taken = f", {record['accepted']:,} taken for known" if record["accepted"] else ""
    canvas.words(left, 130, f"camera: {record['seen']:,} seen{taken}", 13, PAST)
    if task.examples:
        _draw_row(canvas, left, 154, [example.image for example in task.examples], PAST)
    else:
        said = "nothing to recognize yet" if record["number"] == 1 else "no examples"
        canvas.words(left, 166, said, 13, MUTED)
    canvas.words(left, 220, "test accuracy", 13)
    _draw_bar(canvas, left, 246, "older", measured(record, "old"), PAST)
    _draw_bar(canvas, left, 274, "new", measured(record, "new"), PRESENT)


def _draw_row(
    canvas: Canvas,
    left: int,
    top: int,
    images: Sequence[NDArray[np.uint8]],
    frame: tuple[int, int, int],
) -> None:
    for number, image in enumerate(images[:ROWS]):
        canvas.picture(left + 2 + number * (SIDE + GAP), top, image, SIDE, frame)


def _draw_bar(
    canvas: Canvas,
    left: int,
    top: int,
    name: str,
    value: float | None,
    color: tuple[int, int, int],
) -> None:
    canvas.words(left, top, name, 13)
    if value is None:
        canvas.words(left + 50, top, "none yet", 13, FUTURE)
        return
    canvas.box(left + 50, top + 1, BAR, 14, (235, 237, 240))
    canvas.box(left + 50, top + 1, BAR * value / 100, 14, color)
    canvas.words(left + 58 + BAR, top, f"{value:.0f} %", 13)
