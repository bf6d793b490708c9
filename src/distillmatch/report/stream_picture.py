"""The picture of a stream: example images of each task, and the tree that its classes belong to."""

from pathlib import Path

import numpy as np

from distillmatch.report.canvas import (
    FUTURE,
    INK,
    MARGIN,
    MUTED,
    PAST,
    PRESENT,
    RULE,
    Canvas,
    Color,
    check_picture_name,
    shortened,
)
from distillmatch.sources.dataset import UNKNOWN, ClassTree, Dataset
from distillmatch.streams import Stream, Task

SIDE = 44
STEP = SIDE + 8
EXAMPLES = 8
CLASS_WIDTH = 84
HEAD_HEIGHT = 108
TASK_HEIGHT = 2 * STEP + 58
PARENT_HEIGHT = SIDE + 52


def draw_stream(dataset: Dataset, stream: Stream, path: Path) -> None:
    """Draw labeled above unlabeled images of each task, and below the tasks the class tree."""
    check_picture_name(path)
    tree, tasks_end = dataset.tree, HEAD_HEIGHT + len(stream) * TASK_HEIGHT
    width, tree_height = EXAMPLES * STEP, 0
    if tree is not None:
        widest = max(len(tree.classes_of_parent(p)) for p in range(len(tree.parent_names)))
        width = max(width, widest * CLASS_WIDTH)
        tree_height = 64 + len(tree.parent_names) * PARENT_HEIGHT
    canvas = Canvas(width + 2 * MARGIN, tasks_end + tree_height + MARGIN)
    _head(canvas, dataset, stream)
    for number, task in enumerate(stream.tasks):
        _task(canvas, dataset, stream, task, number, HEAD_HEIGHT + number * TASK_HEIGHT)
    if tree is not None:
        _tree(canvas, dataset, tree, tasks_end)
    canvas.save(path)


def color_of_class(place: int, first: int, last: int) -> Color:
    """Return the color of a class by its place in the learning order: past, present or future."""
    if place == UNKNOWN:
        return INK
    return PAST if place < first else PRESENT if place < last else FUTURE


def _head(canvas: Canvas, dataset: Dataset, stream: Stream) -> None:
    config, room = stream.config, canvas.page.width - 2 * MARGIN
    title = shortened(f"{dataset.name}: {len(stream)} tasks", room, 20)
    canvas.words(MARGIN, MARGIN - 4, title, size=20)
    below = f"order {config.order}, unlabeled {config.unlabeled}, seed {config.seed}"
    canvas.words(MARGIN, MARGIN + 24, below, color=MUTED)
    legend = [(PAST, "past"), (PRESENT, "present"), (FUTURE, "future classes")]
    if UNKNOWN in dataset.train.labels:
        legend.append((INK, "no class"))
    x: float = MARGIN
    for color, word in legend:
        canvas.box(x, MARGIN + 48, 14, 14, color)
        x = canvas.words(x + 20, MARGIN + 48, word) + 14
    canvas.words(MARGIN, MARGIN + 70, "upper row: labeled, lower row: unlabeled", color=MUTED)


def _task(
    canvas: Canvas, dataset: Dataset, stream: Stream, task: Task, number: int, y: int
) -> None:
    first = sum(stream.task_sizes[:number])
    last, room = first + len(task.classes), canvas.page.width - 2 * MARGIN
    canvas.line([(MARGIN, y), (MARGIN + room, y)], color=RULE)
    title = f"task {number + 1}: {len(task.labeled):,} labeled, {len(task.unlabeled):,} unlabeled"
    canvas.words(MARGIN, y + 8, f"{title} of {len(task.unlabeled_classes)} classes", size=14)
    names = ", ".join(dataset.class_names[c] for c in task.classes)
    names = shortened(f"{len(task.classes)} classes: {names}", room, 12)
    canvas.words(MARGIN, y + 28, names, size=12, color=MUTED)
    for row, images in enumerate((task.labeled, task.unlabeled)):
        places = stream.slots(dataset.train.labels[images])
        for column, i in enumerate(_examples(places)):
            color = color_of_class(int(places[i]), first, last)
            pixels = dataset.train.images[images[i]]
            canvas.picture(MARGIN + 2 + column * STEP, y + 52 + row * STEP, pixels, SIDE, color)


def _examples(places: np.ndarray) -> list[int]:
    """Choose images spread over the classes in learning order, so that all kinds are shown."""
    order = np.argsort(places, kind="stable")
    count = min(EXAMPLES, len(order))
    return [int(order[(2 * i + 1) * len(order) // (2 * count)]) for i in range(count)]


def _tree(canvas: Canvas, dataset: Dataset, tree: ClassTree, y: int) -> None:
    canvas.line([(MARGIN, y), (canvas.page.width - MARGIN, y)], color=RULE)
    canvas.words(MARGIN, y + 10, "The tree: super-class, parent, classes", size=16)
    y += 44
    for number, name in enumerate(tree.super_class_names):
        for parent in tree.parents_of_super_class(number):
            label = f"{name} › {tree.parent_names[parent]}"
            room = canvas.page.width - 2 * MARGIN
            canvas.words(MARGIN, y, shortened(label, room, 13))
            for column, c in enumerate(tree.classes_of_parent(parent)):
                x = MARGIN + column * CLASS_WIDTH
                example = int(np.flatnonzero(dataset.train.labels == c)[0])
                canvas.picture(x, y + 20, dataset.train.images[example], SIDE)
                label = shortened(dataset.class_names[c], CLASS_WIDTH - 6, 12)
                canvas.words(x, y + 20 + SIDE + 3, label, size=12, color=MUTED)
            y += PARENT_HEIGHT
