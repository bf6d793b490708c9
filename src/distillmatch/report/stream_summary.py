"""A stream in words and numbers: as JSON for programs, as a table for people."""

from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.streams import Stream, stored_sizes

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


def stream_table(dataset: Dataset, stream: Stream, width: int = 80) -> Table:
    """Return the description as a table with a row a task, class names cut to fit the width."""
    summary = stream_summary(dataset, stream)
    config, stored = stream.config, summary["tasks"][-1]["coreset_bytes"]
    kinds = KINDS if summary["distractors"] else KINDS[:-1]
    table = Table(
        box=box.SIMPLE,
        pad_edge=False,
        padding=0,
        title=f"{dataset.name} ({dataset.image_size} px): {len(stream)} tasks, order "
        f"{config.order}, unlabeled {config.unlabeled}, seed {config.seed}",
        caption=f"{sum(t['labeled'] for t in summary['tasks']):,} labeled and "
        f"{sum(t['unlabeled'] for t in summary['tasks']):,} unlabeled images"
        + (f", {unused:,} in no task" if (unused := summary["in_no_task"]) else "")
        + ("; +: classes of earlier tasks that come back" if config.repetition else "")
        + f"; {', '.join(kinds)}: classes in the unlabeled stream"
        + (f"; coreset at the end: {stored:,} bytes" if config.coreset else ""),
    )
    table.add_column("task", justify="right", min_width=4)
    table.add_column("classes", no_wrap=True)
    names = ["labeled", "unlabeled", *kinds, "test", *(["coreset"] if config.coreset else [])]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    room = max(16, width - sum(len(name) + 1 for name in names) - 8)
    first = 0
    for task, described in zip(stream.tasks, summary["tasks"], strict=True):
        last = first + len(task.classes)
        places = stream.slots(np.array(task.unlabeled_classes, np.int64))
        shown, _ = np.histogram(places, [0, first, last, len(stream.class_order), np.inf])
        counts = {
            **{name: described[name] for name in ("labeled", "unlabeled", "test")},
            **dict(zip(KINDS, shown, strict=True)),
            "coreset": described["coreset_images"],
        }
        again = f"+{len(described['returning'])}" if config.repetition else ""
        table.add_row(
            str(described["task"]),
            _cut(f"{len(task.classes)}{again}: {', '.join(described['classes'])}", room),
            *(f"{counts[name]:,}" for name in names),
        )
        first = last
    return table


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"
