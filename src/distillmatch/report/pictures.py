"""What a stream, its views and a learner's tasks look like, as pictures of their images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distillmatch.randomness import shuffled
from distillmatch.report.sheet import (
    DISTRACTOR,
    FUTURE,
    GAP,
    INK,
    MUTED,
    PAST,
    PRESENT,
    RULE,
    SIDE,
    Color,
    Pixels,
    Sheet,
)
from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.streams import Stream

EXAMPLES = 8
VIEWS, VIEWED, TILE = 4, 6, 72
"""Weak and strong views of each image, images, and the least side of one in pixels."""
IN_A_ROW = 5


def draw_stream(dataset: Dataset, stream: Stream, path: Path) -> None:
    """Draw labeled above unlabeled images of each task, and below the tasks the class tree."""
    sheet, config, train = Sheet(EXAMPLES * (SIDE + GAP)), stream.config, dataset.train
    legend = [("past", PAST), ("present", PRESENT), ("future classes", FUTURE)]
    if config.distractors:
        legend.append(("distractors", DISTRACTOR))
    if UNKNOWN in train.labels:
        legend.append(("no class", INK))
    sheet.words(f"{dataset.name}: {len(stream)} tasks", size=20)
    about = f"order {config.order}, unlabeled {config.unlabeled}, seed {config.seed}"
    sheet.words((about, MUTED))
    sheet.words(*legend)
    sheet.words(("upper row: labeled, lower row: unlabeled", MUTED))
    last, learned = 0, [dataset.class_names[c] for c in stream.class_order]
    for number, task in enumerate(stream.tasks, 1):
        first, last = last, last + len(task.classes)
        given = f"{len(task.labeled):,} labeled, {len(task.unlabeled):,} unlabeled"
        names = ", ".join(dataset.class_names[c] for c in task.classes)
        sheet.line()
        sheet.words(f"task {number}: {given} of {len(task.unlabeled_classes)} classes", size=14)
        sheet.words((f"{len(task.classes)} classes: {names}", MUTED), size=12)
        if returning := stream.returning(number - 1):
            names = ", ".join(learned[slot] for slot in returning)
            sheet.words((f"{len(returning)} come back: {names}", MUTED), size=12)
        for images in (task.labeled, task.unlabeled):
            places = stream.slots(train.labels[images])
            chosen = _examples(places)
            colors = [color_of_class(int(places[i]), first, last, len(learned)) for i in chosen]
            sheet.images([train.images[images[i]] for i in chosen], colors)
    if dataset.tree is not None:
        _draw_tree(sheet, dataset)
    sheet.save(path)


def color_of_class(place: int, first: int, last: int, learned: int) -> Color:
    """Return the color of a class by its place in the learning order: past, present or future.

    Places from `learned` on are of classes that are never learned.
    """
    if place == UNKNOWN:
        return INK
    if place >= learned:
        return DISTRACTOR
    return PAST if place < first else PRESENT if place < last else FUTURE


def _examples(places: np.ndarray) -> list[int]:
    """Choose images spread over the classes in learning order, so that all kinds are shown."""
    order = np.argsort(places, kind="stable")
    count = min(EXAMPLES, len(order))
    return [int(order[(2 * i + 1) * len(order) // (2 * count)]) for i in range(count)]


def _draw_tree(sheet: Sheet, dataset: Dataset) -> None:
    tree, train = dataset.tree, dataset.train
    assert tree is not None
    sheet.line()
    sheet.words("The tree: super-class, parent, classes", size=16)
    for number, name in enumerate(tree.super_class_names):
        for parent in tree.parents_of_super_class(number):
            classes = tree.classes_of_parent(parent)
            sheet.words(f"{name} › {tree.parent_names[parent]}")
            shown = [train.images[np.flatnonzero(train.labels == c)[0]] for c in classes]
            captions = [dataset.class_names[c] for c in classes]
            sheet.images(shown, [RULE] * len(shown), captions, step=sheet.width // IN_A_ROW)


def draw_views_of(dataset: Dataset, seed: int, path: Path) -> None:
    """Draw weak and strong views of a few images, and what each operation does to the first."""
    import torch  # noqa: PLC0415  streams are drawn without it

    from distillmatch import views  # noqa: PLC0415

    train, normalization = dataset.train, views.Normalization.of(dataset.train.images)
    classes = shuffled(range(len(dataset.class_names)), seed, "sheet")[:VIEWED]
    images = train.images[[int(np.flatnonzero(train.labels == c)[0]) for c in classes]]
    batch = torch.from_numpy(np.ascontiguousarray(images))
    rows: list[list[Pixels]] = [[image] for image in images]
    for kind in (views.weak_views, views.strong_views):
        for column in range(VIEWS):
            key = views.view_key(seed, "sheet", column)
            made = kind(batch.permute(0, 3, 1, 2), key, normalization).permute(0, 2, 3, 1)
            # The normalization is undone, so that cut-outs have the mean color.
            made = made * torch.tensor(normalization.std) + torch.tensor(normalization.mean)
            pixels = (255 * made).round().clamp(0, 255).to(torch.uint8).numpy()
            for row, view in zip(rows, pixels, strict=True):
                row.append(view)
    side = images.shape[1] * max(1, round(TILE / images.shape[1]))
    sheet, step = Sheet((1 + 2 * VIEWS) * (side + GAP)), side + GAP
    sheet.words(f"Weak and strong views, seed {seed}", size=18)
    about = f"each image, {VIEWS} weak views, {VIEWS} strong ones; cut-outs are gray"
    sheet.words((about, MUTED), size=12)
    for c, row in zip(classes, rows, strict=True):
        sheet.words(dataset.class_names[c].replace("_", " "))
        sheet.images(row, [RULE] * len(row), side=side, step=step)
    sheet.line()
    sheet.words(f"The {len(views.OPERATIONS)} operations of strong views", size=18)
    about = "on the first image above; those with a range at both of its ends"
    sheet.words((about, MUTED), size=12)
    drawn, names = [], []
    for name, operation in views.OPERATIONS.items():
        for magnitude in operation.extremes() or (None,):
            drawn.append(operation.function(batch[:1], torch.tensor([magnitude or 0.0])).numpy()[0])
            names.append(
                name.replace("_", " ") + ("" if magnitude is None else f" {magnitude:.3g}")
            )
    sheet.images(drawn, [RULE] * len(drawn), names, side, sheet.width // 6)
    sheet.save(path)


def draw_learner(
    tasks: Sequence[tuple[Mapping[str, Any], Sequence[Pixels], Sequence[Pixels]]], path: Path
) -> None:
    """Draw tasks side by side: what was given, what was recognized, and how well it went.

    Each is a record, an image of each new class, and some that the environment contributed.
    """
    sheet = Sheet(IN_A_ROW * (SIDE + GAP), len(tasks))
    for record, labeled, examples in tasks:
        test, added = record["test"] or {}, len(record["added"])
        sheet.words(str(record["name"]).capitalize(), size=18)
        classes = f"{added} new class{'es' * (added != 1)}"
        sheet.words((f"{classes}, {record['labeled']:,} labels", PRESENT))
        sheet.images(labeled[:IN_A_ROW], [PRESENT] * len(labeled[:IN_A_ROW]))
        taken = f", {record['accepted']:,} taken for known" if record["accepted"] else ""
        sheet.words((f"camera: {record['seen']:,} seen{taken}", PAST))
        sheet.images(examples[:IN_A_ROW], [PAST] * len(examples[:IN_A_ROW]))
        if not len(examples):
            none = "nothing to recognize yet" if record["number"] == 1 else "no examples"
            sheet.words((none, MUTED))
            sheet.words("", size=SIDE - 23)
        sheet.words("test accuracy")
        sheet.bar("older", test.get("old"), PAST)
        sheet.bar("new", test.get("new"), PRESENT)
        sheet.next_column()
    sheet.save(path)
