"""A stream in words and numbers: as JSON for programs, as a table for people."""

from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.streams import Stream, stored_sizes
from distillmatch.terminal import make_table

KINDS = ("past", "now", "later", "never")
"""When the classes of unlabeled images are learned."""


def stream_summary(dataset: Dataset, stream: Stream) -> dict[str, Any]:
    """Return a stream's description, with counts per task."""
    train = dataset.train.labels
    stored = stored_sizes(stream)
    learned = [dataset.class_names[c] for c in stream.class_order]
    return {
        "source": dataset.name,
        "fingerprint": stream.fingerprint,
        "image_size": dataset.image_size,
        "config": stream.config.model_dump(mode="json"),
        "problems": list(dataset.problems),
        "distractors": [name for name in dataset.class_names if name not in learned],
        "in_no_task": len(train) - sum(len(t.labeled) + len(t.unlabeled) for t in stream.tasks),
        "tasks": [
            {
                "task": number + 1,
                "classes": [dataset.class_names[c] for c in task.classes],
                "returning": [learned[slot] for slot in stream.returning(number)],
                "labeled": len(task.labeled),
                "unlabeled": len(task.unlabeled),
                "unlabeled_classes": [dataset.class_names[c] for c in task.unlabeled_classes],
                "unlabeled_without_class": int((train[task.unlabeled] == UNKNOWN).sum()),
                "test": len(task.test),
                "coreset_images": images,
                "coreset_bytes": size,
            }
            for number, (task, (images, size)) in enumerate(zip(stream.tasks, stored, strict=True))
        ],
    }


def stream_table(dataset: Dataset, stream: Stream) -> Table:
    """Return the description as a table with a row a task, class names cut to fit the width."""
    summary, config = stream_summary(dataset, stream), stream.config
    tasks, unused = summary["tasks"], summary["in_no_task"]
    kinds = KINDS if summary["distractors"] else KINDS[:-1]
    labeled, unlabeled = (sum(task[key] for task in tasks) for key in ("labeled", "unlabeled"))
    title = f"{dataset.name} ({dataset.image_size} px): {len(stream)} tasks, order {config.order}, "
    title += f"unlabeled {config.unlabeled}, seed {config.seed}"
    caption = f"{labeled:,} labeled and {unlabeled:,} unlabeled images"
    caption += f", {unused:,} in no task" if unused else ""
    caption += "; +: classes of earlier tasks that come back" if config.repetition else ""
    caption += f"; {', '.join(kinds)}: classes in the unlabeled stream"
    if config.coreset:
        caption += f"; coreset at the end: {tasks[-1]['coreset_bytes']:,} bytes"
    names = ["labeled", "unlabeled", *kinds, "test", *(["coreset"] if config.coreset else [])]
    rows, first = [], 0
    for task, described in zip(stream.tasks, tasks, strict=True):
        last = first + len(task.classes)
        places = stream.slots(np.array(task.unlabeled_classes, np.int64))
        shown, _ = np.histogram(places, [0, first, last, len(stream.class_order), np.inf])
        counts = {**described, **dict(zip(KINDS, shown, strict=True))}
        counts["coreset"] = described["coreset_images"]
        again = f"+{len(described['returning'])}" if config.repetition else ""
        classes = f"{len(task.classes)}{again}: {', '.join(described['classes'])}"
        rows.append((described["task"], classes, *(f"{counts[name]:,}" for name in names)))
        first = last
    look: dict[str, Any] = {"box": box.SIMPLE, "pad_edge": False, "padding": 0, "expand": True}
    heads = (">task", "classes", *(f">{name}" for name in names))
    table = make_table(heads, rows, fold=False, title=title, caption=caption, **look)
    table.columns[1].ratio = 1  # it takes what the others leave
    return table
