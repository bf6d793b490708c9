"""The result of a run: one JSON object, described in docs/reference/files.md and versioned."""

import contextlib
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
    forgetting,
    omega_curve,
    omega_double_sum,
    overall_accuracies,
    prefix_accuracies,
    pseudo_label_quality,
    share_at,
    task_accuracies,
)
from distillmatch.runs.schema import problems_of_form, upgraded

if TYPE_CHECKING:
    from distillmatch.engine import TaskOutcome

FORMAT = "distillmatch result"
VERSION = 2
VERSIONS = (1, VERSION)


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
LATER_STREAM_KEYS = ("repetition", "distractors")
"""More of it, recorded where it is not 0: results of earlier versions do not have it."""


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
    given = config.model_dump(mode="json")
    described = {key: given[key] for key in STREAM_KEYS}
    later = {key: given[key] for key in LATER_STREAM_KEYS if given[key]}
    return {**described, **later, "tasks": stages, "fingerprint": fingerprint}


class Tally:
    """Collects the tasks and turns them into figures.

    Its rows are those of R, A and P: accuracies among the classes seen so far, among each task's
    own, and among those of the first tasks up to it.
    """

    def __init__(self, task_sizes: tuple[int, ...], result: dict[str, Any] | None = None) -> None:
        """Begin with the tasks that a result, or the part of one, has."""
        self.task_sizes = task_sizes
        known: dict[str, Any] = result or {"R": [], "A": [], "P": [], "tasks": []}
        self.rows = {key: [row[: i + 1] for i, row in enumerate(known[key])] for key in "RAP"}
        self.tasks: list[dict[str, Any]] = [*known["tasks"]]

    def add(self, row: dict[str, Any]) -> None:
        """Take in what `task_row` made of the next task's outcome."""
        for name, rows in self.rows.items():
            rows.append(row[name])
        self.tasks.append({"task": row["task"]["task"], "accuracy": 0.0, **row["task"]})
        self.tasks[-1]["accuracy"] = self.accuracies[-1]

    @property
    def accuracies(self) -> list[float]:
        """The accuracy over all classes seen so far, after each task."""
        tested = [task["test_images"] for task in self.tasks]
        accuracies: list[float] = overall_accuracies(self._matrix("R"), tested).tolist()
        return accuracies

    def matrices(self) -> dict[str, Any]:
        """Return R, A and P, null above the diagonal."""
        return {
            name: [[*row, *[None] * (len(rows) - len(row))] for row in rows]
            for name, rows in self.rows.items()
        }

    def metrics(self, bound: Bound | None) -> dict[str, Any]:
        """Return all figures of the run; Ω is null where there is no bound to compare with."""
        sizes, accuracies = self.task_sizes[: len(self.tasks)], self.accuracies
        against: dict[str, Any] = {"omega": None, "omega_double_sum": None, "omega_curve": None}
        if bound is not None:
            offline = bound.accuracies[: len(self.tasks)]
            curve = omega_curve(accuracies, offline)
            against = {
                "omega": None if curve is None else float(curve[-1]),
                "omega_double_sum": omega_double_sum(self._matrix("P"), offline, sizes),
                "omega_curve": None if curve is None else curve.tolist(),
            }
        return {
            "A_N": accuracies[-1],
            "bwt": backward_transfer(self._matrix("A")),
            "fgt": forgetting(self._matrix("R"), sizes),
            "accuracies": accuracies,
            **against,
        }

    def _matrix(self, name: str) -> NDArray[np.float64]:
        return accuracy_matrix(self.rows[name])


def task_row(outcome: "TaskOutcome", task_sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return what a result keeps of one task, in what JSON can say, but for what needs others."""
    number = outcome.task.number + 1
    given = (outcome.logits, outcome.labels, task_sizes, number)
    among_seen, among_own = task_accuracies(*given)
    first = sum(task_sizes[: number - 1])
    return {
        "R": among_seen.tolist(),
        "A": among_own.tolist(),
        "P": prefix_accuracies(*given).tolist(),
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
    threshold, judged = outcome.values.get("threshold"), outcome.judgement
    area = tpr = fpr = accepted = past = right = None
    if outcome.familiarity is not None:
        seen = outcome.familiarity_labels < outcome.task.seen
        inside, outside = outcome.familiarity[seen], outcome.familiarity[~seen]
        area = auroc(inside, outside)
        if threshold is not None:
            tpr, fpr = share_at(inside, threshold), share_at(outside, threshold)
    if judged is not None:
        accepted, past, right = pseudo_label_quality(
            judged.accepted, judged.pseudo_labels, outcome.truth, outcome.task.past
        )
    return {
        "auroc": area,
        "tpr": tpr,
        "fpr": fpr,
        "threshold": threshold,
        "epsilon": outcome.values.get("epsilon"),
        "accepted": accepted,
        "accepted_past": past,
        "pseudo_labels_right": right,
    }


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
    for problem in problems_of_form(result):
        raise ResultError(f"{path}: expected a result of a run, but {problem}")
    return result


def found_result(folder: Path) -> dict[str, Any] | None:
    """Return the result in a folder if it has one; who runs it there says what is wrong with it."""
    with contextlib.suppress(ResultError):
        return read_result(folder)
    return None


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
