"""What is said of a learner, in words and in tables of the terminal; the page says the same.

A record and a summary are what `distillmatch.learner.state` describes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from distillmatch.files import size_shown
from distillmatch.sources.walk import shown

Record = Mapping[str, Any]

FIGURES = ("labels", "seen", "taken", "all", "older", "new", "lost", "time")
"""Columns of a task, after its name and its classes."""
MEASURED_ON = {"test": "of the test folder", "held-out": "held out of the labeled ones"}
MANY = 6
ROUNDING = 0.05
"""What is shown as 0.0."""


def measured(record: Record, figure: str) -> float | None:
    """Return a figure of the test in percent or points; nothing where nothing was tested."""
    test = record["test"]
    found: float | None = test[figure] if test else None
    return found


def lead_sentence(summary: Record) -> str:
    """Say how the learner stands."""
    record = summary["history"][-1]
    known = plural(len(summary["labels"]), "class", "classes")
    right = measured(record, "all")
    said = f"After the task “{shown(record['name'])}” the learner knows {known}"
    if right is None:
        return f"{said}. There was nothing to test it with."
    count = plural(record["test"]["images"], "test image")
    return f"{said} and tells {right:.0f} % of {count} right."


def test_sentence(record: Record) -> str:
    """Say what was tested with."""
    test = record["test"]
    if not test:
        return ""
    count = plural(test["images"], "image")
    said = f"Measured on {count} {MEASURED_ON.get(test['on'], test['on'])}."
    if not test["images"]:
        said = "The test folder has no image of a learned class."
    if test["unknown"]:
        said += f" Left out, because never learned: {listed(list(test['unknown']))}."
    return said


def forgotten_sentence(record: Record) -> str:
    """Say what the task did to what was known before it."""
    lost, before = measured(record, "forgotten"), measured(record, "old_before")
    if lost is None:
        first = record["number"] == 1
        return "" if first else "What was forgotten is not known: no old images came to test with."
    then = "" if before is None else f", which was {before:.1f} % before"
    if lost >= ROUNDING:
        return f"Forgotten: {lost:.1f} points of the accuracy on older classes{then}."
    if lost > -ROUNDING:
        return "Nothing was forgotten: accuracy on older classes is what it was before."
    return f"Nothing was forgotten: accuracy on older classes rose by {-lost:.1f} points{then}."


def environment_sentence(record: Record) -> str:
    """Say what unlabeled images were met, and what became of them."""
    if not record["seen"]:
        return "No unlabeled images were found."
    read = f", {record['kept']:,} of them read" if record["kept"] < record["seen"] else ""
    if record["unreadable"]:
        read += f" ({record['unreadable']:,} could not be)"
    seen = f"{plural(record['seen'], 'unlabeled image')} seen{read}, none stored"
    return f"{seen}; {_use_of_unlabeled(record)}."


def left_out_sentence(record: Record) -> str:
    """Say which files were left out, if any were."""
    left_out = record.get("left_out") or {}
    parts = [
        f"{plural(left_out[kind], 'file')} {where}"
        for kind, where in (("labeled", "in the labeled folder"), ("test", "in the test folder"))
        if left_out.get(kind)
    ]
    if record["unreadable"]:
        parts.append(f"{plural(record['unreadable'], 'unlabeled file')}")
    if left_out.get("hidden"):
        parts.append(plural(left_out["hidden"], "hidden entry", "hidden entries"))
    if not parts:
        return ""
    examples = "; ".join(shown(said) for said in left_out.get("for_example", []))
    named = f" For example: {examples}." if examples else ""
    return f"Left out, because they are no images that can be read: {', '.join(parts)}.{named}"


def _use_of_unlabeled(record: Record) -> str:
    """Say whether unlabeled images were taken for known classes, and else what they were for."""
    if record["accepted"]:
        count = sum(number > 0 for number in record["accepted_by_class"].values())
        did = "refined" if has_statistics(record) else "reminded the learner of"
        classes = plural(count, "class", "classes")
        taken = plural(record["accepted"], "was", "were")
        return f"{taken} taken as familiar and {did} {classes}"
    if has_statistics(record):
        unknown = lacks_threshold(record)
        none = "none looked familiar enough to learn from"
        return "which of them are familiar is not known yet" if unknown else none
    used_in = record.get("unlabeled_in", [])
    if record["accepted"] is None and used_in:
        networks = " and ".join(f"the {name}" for name in used_in)
        return f"{networks} learned from them, but none was taken for a class"
    if record["number"] == 1:
        return "in a first task there is no class to recognize yet"
    if record["accepted"] is None:
        return "the method did not use them"
    return "none was taken for a class known before"


def figures_of(record: Record) -> tuple[str, ...]:
    """Return the figures of a task, in the order of `FIGURES`."""
    measures = ("all", "old", "new", "forgotten")
    return (
        f"{record['labeled']:,}",
        f"{record['seen']:,}",
        count_or_dash(record["accepted"]),
        *(one_decimal(measured(record, figure)) for figure in measures),
        f"{sum(record['seconds'].values()):.0f} s",
    )


def history_table(history: Sequence[Record]) -> Table:
    """Return the tasks as a table for the terminal."""
    table = Table(
        title="Tasks so far; all, older, new: accuracy in percent; lost: points forgotten"
    )
    table.add_column("task", overflow="fold", min_width=6)
    for name in ("adds", *FIGURES):
        table.add_column(name, justify="right", no_wrap=True)
    for record in history:
        classes = f"+{len(record['added'])}"
        table.add_row(Text(shown(record["name"])), classes, *figures_of(record))
    return table


def state_table(summary: Record) -> Table:
    """Return what a learner is, as a table for the terminal."""
    table = Table(title="Learner", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, said in state_rows(summary):
        table.add_row(name, Text(shown(said)))
    return table


def state_rows(summary: Record) -> list[tuple[str, str]]:
    """Return what a learner is made of, and how it stands."""
    settings, history = summary["settings"], summary["history"]
    labels = ", ".join(shown(str(label)) for label in summary["labels"])
    rows = [
        ("classes", f"{len(summary['labels'])}: {labels}" if labels else "none yet"),
        ("tasks", f"{len(history)}: {', '.join(shown(one['name']) for one in history)}"),
        ("method", str(settings["method"])),
        ("network", str(settings["network"])),
        ("images", f"{summary['image_size']} px square"),
        ("on disk", size_shown(summary["bytes"])),
    ]
    if not (history and has_statistics(history[-1])):
        rows.insert(-1, ("epochs a task", f"{settings['epochs']:,}"))
    if history:
        rows += memory_rows(history[-1])
        rows += [(name, f"{value:.4g}") for name, value in history[-1]["values"].items()]
    if summary["unfinished"]:
        rows.append(("unfinished", "a task was interrupted; the same command continues it"))
    if summary["busy"]:
        rows.append(("busy", "another process works with it now"))
    return rows


def memory_rows(record: Record) -> list[tuple[str, str]]:
    """Return what is kept from one task to the next, and how much it is."""
    if has_statistics(record):
        return [
            ("weights", f"{size_shown(record['weights_bytes'])}, frozen"),
            ("statistics", f"{size_shown(record['statistics_bytes'])}, of the classes' features"),
            ("photographs", "none, but a few small examples for the report"),
        ]
    stored = size_shown(record["stored_bytes"])
    return [
        ("networks", size_shown(record["weights_bytes"])),
        ("stored images", f"{record['stored']:,} ({stored})" if record["stored"] else "none"),
    ]


def has_statistics(record: Record) -> bool:
    """Return whether statistics of features were learned, and no network trained."""
    return record.get("statistics_bytes") is not None


def lacks_threshold(record: Record) -> bool:
    """Return whether no class had a second label, by which familiar images are known."""
    return has_statistics(record) and record.get("known_threshold", 0.0) is None


def count_or_dash(count: int | None) -> str:
    """Return a count, or a dash where nothing was counted."""
    return "–" if count is None else f"{count:,}"


def one_decimal(value: float | None) -> str:
    """Return a figure, or a dash where there is none."""
    return "–" if value is None else f"{value:.1f}"


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(labels: Sequence[Any]) -> str:
    """Return labels with commas, the last ones as a count where there are many."""
    names = [shown(str(label)) for label in labels]
    if len(names) > MANY:
        names = [*names[: MANY - 1], f"{len(names) - MANY + 1} more"]
    return ", ".join(names)
