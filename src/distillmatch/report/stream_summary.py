"""A stream in words and numbers: as JSON for programs, as a table for people."""

from typing import Any

import numpy as np
from rich.table import Table

from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.streams.coreset import coreset_sizes
from distillmatch.streams.stream import Stream


def stream_summary(dataset: Dataset, stream: Stream) -> dict[str, Any]:
    """Return a stream's description, with counts per task."""
    train = dataset.train.labels
    per_class = [
        np.bincount(train[task.labeled], minlength=len(dataset.class_names))[list(task.classes)]
        for task in stream.tasks
    ]
    stored = coreset_sizes(
        stream.config.coreset, [counts.tolist() for counts in per_class], dataset.image_bytes
    )
    return {
        "source": dataset.name,
        "fingerprint": stream.fingerprint,
        "image_size": dataset.image_size,
        "config": stream.config.model_dump(mode="json"),
        "problems": list(dataset.problems),
        "tasks": [
            {
                "task": number + 1,
                "classes": [dataset.class_names[c] for c in task.classes],
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
    """Return the same as a table, a row a task."""
    summary = stream_summary(dataset, stream)
    config = stream.config
    table = Table(
        title=f"{dataset.name} ({dataset.image_size} px): {len(stream)} tasks, order "
        f"{config.order}, unlabelled {config.unlabeled}, seed {config.seed}",
        caption=f"{sum(t['labeled'] for t in summary['tasks']):,} labelled and "
        f"{sum(t['unlabeled'] for t in summary['tasks']):,} unlabelled images; "
        "past / present / future: classes in the unlabelled stream",
    )
    table.add_column("task", justify="right")
    table.add_column("classes", overflow="ellipsis", no_wrap=True, ratio=1)
    for name in ("labelled", "unlabelled", "past / present / future", "test"):
        table.add_column(name, justify="right", no_wrap=True)
    if config.coreset:
        table.add_column("coreset", justify="right", no_wrap=True)
    first = 0
    for task, described in zip(stream.tasks, summary["tasks"], strict=True):
        last = first + len(task.classes)
        places = stream.slots(np.array(task.unlabeled_classes, np.int64))
        kinds = ((places < first).sum(), ((first <= places) & (places < last)).sum())
        row = [
            str(described["task"]),
            f"{len(task.classes)}: {', '.join(described['classes'])}",
            f"{described['labeled']:,}",
            f"{described['unlabeled']:,}",
            f"{kinds[0]} / {kinds[1]} / {len(places) - sum(kinds)}",
            f"{described['test']:,}",
        ]
        if config.coreset:
            row.append(f"{described['coreset_images']:,} ({described['coreset_bytes']:,} B)")
        table.add_row(*row)
        first = last
    return table
