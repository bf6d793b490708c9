"""The picture of a stream: what each task shows, and the tree that its classes belong to."""

from pathlib import Path

import numpy as np

from distillmatch.report.canvas import (
    FUTURE,
    INK,
    MUTED,
    PAST,
    PRESENT,
    Canvas,
    Color,
    check_picture_name,
    shortened,
)
from distillmatch.sources.dataset import UNKNOWN, ClassTree, Dataset
from distillmatch.streams import Stream, Task

MARGIN = 24
SIDE = 40
GAP = 8
EXAMPLES = 16
LABEL_WIDTH = 250
TASK_HEIGHT = 2 * (SIDE + GAP) + 22
HEAD_HEIGHT = 84
CLASS_WIDTH = 124
PARENT_HEIGHT = SIDE + 30


def draw_stream(dataset: Dataset, stream: Stream, path: Path) -> None:
    """Draw example images per task, labelled above unlabelled, and below them the class tree."""
    check_picture_name(path)
    tree = dataset.tree
    width = LABEL_WIDTH + EXAMPLES * (SIDE + GAP) + 2 * MARGIN
    tree_height = 0
    if tree is not None:
        widest = max(len(tree.classes_of_parent(p)) for p in range(len(tree.parent_names)))
        width = max(width, 2 * MARGIN + 2 * 170 + widest * CLASS_WIDTH)
        tree_height = 60 + len(tree.parent_names) * PARENT_HEIGHT
    height = HEAD_HEIGHT + len(stream) * TASK_HEIGHT + tree_height + MARGIN
    canvas = Canvas(width, height)
    _head(canvas, dataset, stream)
    for number, task in enumerate(stream.tasks):
        _task(canvas, dataset, stream, task, number, HEAD_HEIGHT + number * TASK_HEIGHT)
    if tree is not None:
        _tree(canvas, dataset, tree, HEAD_HEIGHT + len(stream) * TASK_HEIGHT + 12)
    canvas.save(path)


def color_of_class(place: int, first: int, last: int) -> Color:
    """Return the colour of a class by its place in the learning order: past, present or future."""
    if place == UNKNOWN:
        return INK
    return PAST if place < first else PRESENT if place < last else FUTURE


def _head(canvas: Canvas, dataset: Dataset, stream: Stream) -> None:
    config = stream.config
    title = (
        f"{dataset.name}: {len(stream)} tasks, order {config.order}, "
        f"unlabelled {config.unlabeled}, seed {config.seed}"
    )
    canvas.words(MARGIN, MARGIN - 4, title, size=20)
    x = MARGIN
    legend = [(PAST, "past classes"), (PRESENT, "present"), (FUTURE, "future")]
    if UNKNOWN in dataset.train.labels:
        legend.append((INK, "no known class"))
    for color, word in legend:
        canvas.box(x, MARGIN + 28, 14, 14, color)
        canvas.words(x + 20, MARGIN + 28, word)
        x += 130
    canvas.words(x, MARGIN + 28, "upper row: labelled, lower row: unlabelled", color=MUTED)


def _task(
    canvas: Canvas, dataset: Dataset, stream: Stream, task: Task, number: int, y: int
) -> None:
    first = sum(stream.task_sizes[:number])
    last = first + len(task.classes)
    names = ", ".join(dataset.class_names[c] for c in task.classes)
    room = LABEL_WIDTH - 16
    canvas.line([(MARGIN, y - 9), (canvas.page.width - MARGIN, y - 9)], color=(225, 228, 232))
    canvas.words(MARGIN, y, f"task {number + 1}: {len(task.classes)} classes", size=15)
    canvas.words(MARGIN, y + 20, shortened(names, room, 11), size=11, color=MUTED)
    canvas.words(MARGIN, y + SIDE + GAP + 4, f"{len(task.labeled):,} labelled images", size=12)
    canvas.words(MARGIN, y + SIDE + GAP + 20, f"{len(task.unlabeled):,} unlabelled images", size=12)
    canvas.words(
        MARGIN,
        y + SIDE + GAP + 36,
        f"of {len(task.unlabeled_classes)} classes",
        size=11,
        color=MUTED,
    )
    for row, images in enumerate((task.labeled, task.unlabeled)):
        places = stream.slots(dataset.train.labels[images])
        for column, i in enumerate(_examples(places)):
            color = color_of_class(int(places[i]), first, last)
            x = MARGIN + LABEL_WIDTH + column * (SIDE + GAP)
            pixels = dataset.train.images[images[i]]
            canvas.picture(x, y + row * (SIDE + GAP), pixels, SIDE, color)


def _examples(places: np.ndarray) -> list[int]:
    """Choose images spread over the classes in learning order, so that all kinds are shown."""
    order = np.argsort(places, kind="stable")
    count = min(EXAMPLES, len(order))
    return [int(order[(2 * i + 1) * len(order) // (2 * count)]) for i in range(count)]


def _tree(canvas: Canvas, dataset: Dataset, tree: ClassTree, y: int) -> None:
    canvas.words(MARGIN, y, "super-class, parent, class", size=20)
    y += 40
    for number, name in enumerate(tree.super_class_names):
        parents = tree.parents_of_super_class(number)
        middle = y + len(parents) * PARENT_HEIGHT / 2 - 12
        trunk = MARGIN + 156
        canvas.words(MARGIN, middle, shortened(name, 140, 14), size=14, anchor="lm")
        for parent in parents:
            level = y + SIDE / 2
            canvas.line(
                [(MARGIN + 144, middle), (trunk, middle), (trunk, level), (trunk + 12, level)]
            )
            canvas.words(
                trunk + 16, level, shortened(tree.parent_names[parent], 150, 13), 13, anchor="lm"
            )
            for column, c in enumerate(tree.classes_of_parent(parent)):
                x = MARGIN + 340 + column * CLASS_WIDTH
                example = int(np.flatnonzero(dataset.train.labels == c)[0])
                canvas.picture(x, y, dataset.train.images[example], SIDE)
                label = shortened(dataset.class_names[c], CLASS_WIDTH - 8, 11)
                canvas.words(x, y + SIDE + 3, label, size=11, color=MUTED)
            y += PARENT_HEIGHT
