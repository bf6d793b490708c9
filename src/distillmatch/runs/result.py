"""The result of a run: one JSON object, described in docs/reference/files.md and versioned."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import UNRECORDED_KEYS, RunConfig
from distillmatch.errors import ConfigError, ResultError
from distillmatch.files import read_record, write_atomically
from distillmatch.metrics import (
    accuracy_matrix,
    auroc,
    backward_transfer,
    final_accuracy,
    forgetting,
    omega,
    omega_curve,
    omega_double_sum,
    overall_accuracies,
    prefix_accuracies,
    pseudo_label_quality,
    rates_at_threshold,
    task_accuracies,
)
from distillmatch.runs.schema import problems_of_form, upgraded

if TYPE_CHECKING:
    from distillmatch.engine import TaskOutcome

FORMAT = "distillmatch result"
VERSION = 2
VERSIONS = (1, VERSION)
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """The offline bound's accuracy after each stage, for the Ω of runs of its stream and recipe."""

    accuracies: tuple[float, ...]
    stream: dict[str, Any]
    recipe: str


STREAM_KEYS = (
    "source",
    "image_size",
    "order",
    "tasks",
    "task_sizes",
    "class_order",
    "labels_per_class",
    "label_fraction",
    "splits",
    "seed",
)
"""What decides which labeled images a bound learns from; the unlabeled stream does not."""


def recorded_config(config: RunConfig) -> dict[str, Any]:
    """Return the configuration as results and checkpoints record it, without paths."""
    return config.model_dump(mode="json", exclude=set(UNRECORDED_KEYS))


def complete_record(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded configuration with the defaults of keys that are newer than it."""
    return {**_defaults(), **recorded}


@cache
def _defaults() -> dict[str, Any]:
    return recorded_config(RunConfig())


def config_of(result: dict[str, Any], where: Path | str = "the result") -> RunConfig:
    """Return the configuration that a result records; `where` is named if it is none of today."""
    if result["version"] != VERSION:
        raise ResultError(f"{where}: an earlier version made it, by options that are gone")
    try:
        return RunConfig(**complete_record(result["config"]))
    except ConfigError as error:
        raise ResultError(f"{where}: config: {error}") from None


def describe_stream(config: RunConfig, fingerprint: str, stages: int) -> dict[str, Any]:
    """Return what a run and its bound must have in common."""
    described = {key: config.model_dump(mode="json")[key] for key in STREAM_KEYS}
    return {**described, "tasks": stages, "fingerprint": fingerprint}


class Tally:
    """Collects the outcomes of the tasks and turns them into figures."""

    def __init__(self, task_sizes: tuple[int, ...]) -> None:
        self.task_sizes = task_sizes
        self.among_seen: list[NDArray[np.float64]] = []
        self.among_own: list[NDArray[np.float64]] = []
        self.among_first: list[NDArray[np.float64]] = []
        self.test_counts: list[int] = []
        self.tasks: list[dict[str, Any]] = []

    @classmethod
    def restored(cls, task_sizes: tuple[int, ...], result: dict[str, Any]) -> "Tally":
        """Return the tally of the tasks that a result, or the part of one, has."""
        tally = cls(task_sizes)
        for name, rows in (
            ("R", tally.among_seen),
            ("A", tally.among_own),
            ("P", tally.among_first),
        ):
            rows.extend(np.array(row[: i + 1], float) for i, row in enumerate(result[name]))
        tally.tasks.extend(result["tasks"])
        tally.test_counts.extend(task["test_images"] for task in tally.tasks)
        return tally

    def add(self, outcome: "TaskOutcome") -> None:
        """Take in one task's outcome."""
        self.add_row(task_row(outcome, self.task_sizes))

    def add_row(self, row: dict[str, Any]) -> None:
        """Take in what `task_row` made of the next task's outcome."""
        self.among_seen.append(np.array(row["R"], float))
        self.among_own.append(np.array(row["A"], float))
        self.among_first.append(np.array(row["P"], float))
        record = row["task"]
        self.test_counts.append(record["test_images"])
        accuracy = self.accuracies[-1]
        self.tasks.append({"task": record["task"], "accuracy": accuracy, **record})

    @property
    def accuracies(self) -> list[float]:
        """The accuracy over all classes seen so far, after each task."""
        matrix = accuracy_matrix(self.among_seen)
        return [float(a) for a in overall_accuracies(matrix, self.test_counts)]

    def matrices(self) -> dict[str, Any]:
        """Return R, A and P (among the first tasks' classes), null above the diagonal."""
        return {
            "R": _json_matrix(accuracy_matrix(self.among_seen)),
            "A": _json_matrix(accuracy_matrix(self.among_own)),
            "P": _json_matrix(accuracy_matrix(self.among_first)),
        }

    def metrics(self, bound: Bound | None) -> dict[str, Any]:
        """Return all figures of the run; Ω is null where there is no bound to compare with."""
        matrix = accuracy_matrix(self.among_seen)
        sizes = self.task_sizes[: len(self.tasks)]
        figures: dict[str, Any] = {
            "A_N": final_accuracy(matrix, self.test_counts),
            "bwt": backward_transfer(accuracy_matrix(self.among_own)),
            "fgt": forgetting(matrix, sizes),
            "accuracies": self.accuracies,
            "omega": None,
            "omega_double_sum": None,
            "omega_curve": None,
        }
        if bound is not None:
            offline = np.array(bound.accuracies[: len(self.tasks)])
            figures["omega"] = omega(np.array(self.accuracies), offline)
            curve = omega_curve(np.array(self.accuracies), offline)
            figures["omega_curve"] = None if curve is None else [float(v) for v in curve]
            figures["omega_double_sum"] = omega_double_sum(
                accuracy_matrix(self.among_first), offline, sizes
            )
        return figures


def task_row(outcome: "TaskOutcome", task_sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return what a result keeps of one task, in what JSON can say, but for what needs others."""
    number = outcome.task.number + 1
    given = (outcome.logits, outcome.labels, task_sizes, number)
    among_seen, among_own = task_accuracies(*given)
    first = sum(task_sizes[: number - 1])
    return {
        "R": _json_row(among_seen),
        "A": _json_row(among_own),
        "P": _json_row(prefix_accuracies(*given)),
        "task": {
            "task": number,
            "test_images": int((outcome.labels >= first).sum()),
            "detector": detector_figures(outcome),
            "losses": outcome.losses,
            "seconds": outcome.seconds,
            "stored_images": outcome.stored_images,
            "stored_bytes": outcome.stored_bytes,
        },
    }


def detector_figures(outcome: "TaskOutcome") -> dict[str, Any]:
    """Return the diagnostics of a task's gate: AUROC, rates, and the quality of pseudo-labels.

    Scores are of the gate as the task leaves it, pseudo-labels of the one that the task used.
    """
    figures: dict[str, Any] = {
        "auroc": None,
        "tpr": None,
        "fpr": None,
        "threshold": outcome.values.get("threshold"),
        "epsilon": outcome.values.get("epsilon"),
        "accepted": None,
        "accepted_past": None,
        "pseudo_labels_right": None,
    }
    if outcome.familiarity is not None:
        seen = outcome.familiarity_labels < outcome.task.seen
        inside, outside = outcome.familiarity[seen], outcome.familiarity[~seen]
        figures["auroc"] = auroc(inside, outside)
        if figures["threshold"] is not None:
            rates = rates_at_threshold(inside, outside, figures["threshold"])
            figures["tpr"], figures["fpr"] = rates
    judged = outcome.judgement
    if judged is not None:
        quality = pseudo_label_quality(
            judged.accepted, judged.pseudo_labels, judged.truth, outcome.task.past
        )
        figures["accepted"] = quality.accepted
        figures["accepted_past"] = quality.past
        figures["pseudo_labels_right"] = quality.right
    return figures


def write_result(result: dict[str, Any], folder: Path) -> Path:
    """Write `result.json` in a folder, at once."""
    path = folder / "result.json"
    text = json.dumps(result, indent=1, allow_nan=False)
    write_atomically(path, text + "\n", "writing the result")
    return path


def read_result(path: Path | str) -> dict[str, Any]:
    """Read a result, from its file or its folder; an older one is brought to today's form."""
    path = Path(path)
    path = path / "result.json" if path.is_dir() else path
    result = upgraded(read_record(path, "result of a run", FORMAT, VERSIONS, ResultError))
    problems = problems_of_form(result)
    if problems:
        raise ResultError(f"{path}: expected a result of a run, but {problems[0]}")
    return result


def bound_of(result: dict[str, Any]) -> Bound:
    """Return the bound that an offline run's result gives, if it is one and is complete."""
    if result["method"] != "offline":
        raise ResultError(
            f"a bound must be a result of method 'offline', not of '{result['method']}'"
        )
    if not result["complete"]:
        raise ResultError(
            f"a bound must be complete; this one has {len(result['tasks'])} of "
            f"{len(result['task_sizes'])} stages"
        )
    recipe = config_of(result, "the bound").recipe
    return Bound(tuple(result["metrics"]["accuracies"]), result["stream"], recipe)


def _json_matrix(matrix: Matrix) -> list[list[float | None]]:
    return [_json_row(row) for row in matrix]


def _json_row(row: Matrix) -> list[float | None]:
    return [None if np.isnan(v) else float(v) for v in row]
