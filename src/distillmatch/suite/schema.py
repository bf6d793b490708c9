"""The form of a result: its fields and their kinds, as docs/result.md lists them."""

from collections.abc import Iterator
from typing import Any

FIELDS = {
    "format": "text",
    "version": "whole number",
    "config.*": "anything",
    "stream.source": "text",
    "stream.image_size": "whole number or null",
    "stream.order": "text",
    "stream.tasks": "whole number",
    "stream.task_sizes": "list of whole numbers or null",
    "stream.class_order": "list of texts or null",
    "stream.labels_per_class": "whole number or null",
    "stream.label_fraction": "number or null",
    "stream.seed": "whole number",
    "stream.fingerprint": "text",
    "method": "text",
    "seed": "whole number",
    "uses_truth": "true or false",
    "pretrained_sha256": "text or null",
    "classes": "list of texts",
    "task_sizes": "list of whole numbers",
    "versions.*": "text",
    "machine.device": "text",
    "machine.precision": "text",
    "machine.system": "text",
    "machine.cores": "whole number or null",
    "machine.runs_at_once": "whole number",
    "commit.id": "text",
    "commit.dirty": "true or false or null",
    "commit.tree": "text",
    "complete": "true or false",
    "metrics.A_N": "number",
    "metrics.omega": "number or null",
    "metrics.omega_double_sum": "number or null",
    "metrics.omega_curve": "list of numbers or null",
    "metrics.bwt": "number",
    "metrics.fgt": "number",
    "metrics.accuracies": "list of numbers",
    "R": "matrix",
    "A": "matrix",
    "P": "matrix",
    "tasks[].task": "whole number",
    "tasks[].test_images": "whole number",
    "tasks[].accuracy": "number",
    "tasks[].detector.auroc": "number or null",
    "tasks[].detector.tpr": "number or null",
    "tasks[].detector.fpr": "number or null",
    "tasks[].detector.threshold": "number or null",
    "tasks[].detector.epsilon": "number or null",
    "tasks[].detector.accepted": "number or null",
    "tasks[].detector.accepted_past": "number or null",
    "tasks[].detector.pseudo_labels_right": "number or null",
    "tasks[].losses.*": "list of numbers",
    "tasks[].seconds.*": "number",
    "tasks[].stored_images": "whole number",
    "tasks[].stored_bytes": "whole number",
    "seconds.*": "number",
    "memory.stored_images": "whole number",
    "memory.stored_bytes": "whole number",
    "memory.peak_device_bytes": "whole number or null",
}
"""The kind of each; `[]` stands for each entry of a list, `*` for names that depend on the run."""

OPTIONAL = ("pretrained_sha256", "machine.runs_at_once", "commit.tree")
"""Fields that results made before they existed do without."""

_OPEN = tuple(name.removesuffix(".*") for name in FIELDS if name.endswith(".*"))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of a result with the name of its field."""
    if isinstance(value, dict):
        for key, inner in value.items():
            name = "*" if path in _OPEN else key
            if path == "config":
                yield "config.*", inner
            else:
                yield from leaves(inner, f"{path}.{name}" if path else name)
    elif path == "tasks" and isinstance(value, list):
        for inner in value:
            yield from leaves(inner, "tasks[]")
    else:
        yield path, value


def is_of(kind: str, value: Any) -> bool:
    """Tell whether a value is of a kind, in the words of the table."""
    alternatives = kind.split(" or ")
    if "null" in alternatives and value is None:
        return True
    if kind.startswith("true or false"):
        return isinstance(value, bool)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    known = {
        "anything": True,
        "text": isinstance(value, str),
        "number": number,
        "whole number": number and isinstance(value, int),
    }
    if alternatives[0].startswith("list of "):
        item = alternatives[0].removeprefix("list of ").removesuffix("s")
        return isinstance(value, list) and all(is_of(item, one) for one in value)
    if kind == "matrix":
        return isinstance(value, list) and all(
            isinstance(row, list)
            and len(row) == len(value)
            and all(is_of("number or null", one) for one in row)
            for row in value
        )
    return known[alternatives[0]]


def schema_problems(result: dict[str, Any]) -> list[str]:
    """Return what is wrong with the form of a result, a sentence for each field."""
    found: dict[str, list[Any]] = {}
    for name, value in leaves(result):
        found.setdefault(name, []).append(value)
    problems = [f"{name} is missing" for name in FIELDS if name not in (*found, *OPTIONAL)]
    tasks = result.get("tasks")
    for number, task in enumerate(tasks if isinstance(tasks, list) else (), start=1):
        present = {name for name, _ in leaves(task, "tasks[]")}
        problems += [
            f"{name} is missing in task {number}"
            for name in FIELDS
            if name.startswith("tasks[].") and name in found and name not in present
        ]
    problems += [f"{name} is no field of a result" for name in found if name not in FIELDS]
    for name, kind in FIELDS.items():
        wrong = [value for value in found.get(name, ()) if not is_of(kind, value)]
        if wrong:
            problems.append(f"{name} must be {kind}, not {wrong[0]!r:.60}")
    return problems
