"""Several results side by side, in the terminal: seeds put together, Ω by the bound among them."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from rich.table import Table

from distillmatch.config import StreamConfig
from distillmatch.metrics import mean_and_deviation, omega, omega_curve, stages_of
from distillmatch.runs.result import VERSION, complete_record

Result = dict[str, Any]

BOUNDS = ("offline", "offline-unlabeled")
CUT_KEYS = ("tasks", "task_sizes")
"""What cuts the classes of a stream into tasks, in whatever order they come."""
SHOWN = {"A_N": "A_N", "omega": "Ω", "bwt": "BWT", "fgt": "FGT"}
NAMES = {
    "base": "Base",
    "e2e": "E2E",
    "dr": "DR",
    "gd": "GD",
    "dm": "DM",
    "worldmatch": "WorldMatch",
    "er": "ER",
    "pseudo-er": "PseudoER",
    "csl": "CSL",
    "nncsl": "NNCSL",
    "offline": "UB",
    "offline-unlabeled": "UB with unlabeled",
}
DETECTOR = {
    "accepted": "taken",
    "accepted_past": "past",
    "pseudo_labels_right": "right",
    "auroc": "AUROC",
    "tpr": "TPR",
    "fpr": "FPR",
}


class Group(NamedTuple):
    """Runs that differ in nothing but their seed."""

    method: str
    name: str
    results: tuple[Result, ...]


def grouped(results: Sequence[Result]) -> list[Group]:
    """Put the seeds of one configuration together; each group's name says how it differs.

    A run that is given twice counts once. Runs that are not finished stand apart, as do those that
    learned with a seed once more: neither is one more seed of the finished ones.
    """
    groups: dict[tuple[str, str], dict[str, Result]] = defaultdict(dict)
    for result in results:
        remark, times = "", 1
        if not result["complete"]:
            remark = f" (unfinished: {len(result['tasks'])} of {len(result['task_sizes'])} tasks)"
        # The folds of a tuning share a seed, not the fingerprint.
        learned = f"{result['seed']} {result['stream']['fingerprint']}"
        key = repr(sorted(_compared(result).items())), remark
        while learned in groups[key] and not _is_same(groups[key][learned], result):
            times += 1
            key = key[0], f"{remark} (run {times} of the same seed)"
        groups[key].setdefault(learned, result)
    members = [tuple(runs.values()) for runs in groups.values()]
    every, found = [_compared(runs[0]) for runs in members], list[Group]()
    for own, (_, remark), runs in zip(every, groups, members, strict=True):
        said = ", ".join(f"{key} {own[key]}" for key in own if _differs(key, own, every))
        method: str = runs[0]["method"]
        name = NAMES.get(method, method) + (f" ({said})" if said else "")
        oracle = " (oracle)" if runs[0]["uses_truth"] else ""
        found.append(Group(method, f"{name}{oracle}{remark}", runs))
    return found


def _compared(result: Result) -> dict[str, Any]:
    """Return what makes a configuration another one: all but the seed and the place it ran."""
    left_out = ("seed", "device", "precision")
    # How many tasks there are may have been said or not.
    config = {**_recorded(result), "tasks": len(result["task_sizes"])}
    return {key: value for key, value in config.items() if key not in left_out}


def _recorded(result: Result) -> dict[str, Any]:
    """Return a recorded configuration with the method's options beside the rest."""
    config = result["config"]
    if result["version"] == VERSION:
        config = complete_record(config)
    rest = {key: value for key, value in config.items() if key != "options"}
    return {**rest, **config.get("options", {})}


def _is_same(one: Result, other: Result) -> bool:
    """Return whether it is one run: Ω may have been filled in, so metrics are not compared."""
    measured = [(run["metrics"]["accuracies"], run["seconds"]["total"]) for run in (one, other)]
    return measured[0] == measured[1]


def _differs(key: str, own: dict[str, Any], others: Sequence[dict[str, Any]]) -> bool:
    """Return whether a value tells configurations apart; some methods see no unlabeled images."""
    if key not in StreamConfig.model_fields:
        others = [other for other in others if other["method"] == own["method"]]
    if key in ("unlabeled", "unlabeled_per_task"):
        others = [one for one in others if "none" not in (own["unlabeled"], one.get("unlabeled"))]
    return any(other.get(key) != own[key] for other in others)


def with_omega(results: Sequence[Result]) -> list[Result]:
    """Fill in Ω and its curve where a bound of the same stream, training and recipe is among them.

    A bound that cuts the classes into more tasks serves where none cuts them alike.
    """
    bounds: dict[str, list[Result]] = defaultdict(list)
    for result in sorted(results, key=lambda result: len(result["task_sizes"])):
        # Ω is measured by the bound that learns weak views.
        strong = result["config"].get("strong_labels", False)
        if result["method"] == "offline" and strong in (False, "none"):
            bounds[_bound_key(result)].append(result)
    filled = []
    for result in results:
        metrics, wanted = dict(result["metrics"]), result["task_sizes"]
        for bound in bounds[_bound_key(result)] if result["complete"] else ():
            offline = stages_of(bound["metrics"]["accuracies"], bound["task_sizes"], wanted)
            if metrics["omega"] is None and offline and bound["classes"] == result["classes"]:
                metrics["omega"] = omega(metrics["accuracies"], offline)
                curve = omega_curve(metrics["accuracies"], offline)
                metrics["omega_curve"] = None if curve is None else curve.tolist()
        filled.append({**result, "metrics": metrics})
    return filled


def _bound_key(result: Result) -> str:
    """Return what a run and its bound have in common."""
    config, stream = _recorded(result), sorted(result["stream"].items())
    trained = [config.get(key) for key in ("network", "epochs", "recipe")]
    # With repetition a class's labeled images are divided over the tasks, however it is cut.
    cut = () if result["stream"].get("repetition") else CUT_KEYS
    return repr(([pair for pair in stream if pair[0] not in cut], trained))


def comparison_table(results: Sequence[Result]) -> Table:
    """Return methods against metrics, mean ± deviation over seeds."""
    several = len({result["seed"] for result in results}) > 1
    over = "mean ± standard deviation over seeds" if several else "one seed"
    table = Table("method", title=f"percent, {over}")
    for name in ("seeds", *SHOWN.values(), "stored", "seconds"):
        table.add_column(name, justify="right")
    for group in grouped(with_omega(results)):
        figures = [metrics_shown(result) for result in group.results]
        table.add_row(
            group.name,
            str(len(figures)),
            *(_cell([of_run[key] for of_run in figures]) for key in SHOWN),
            stored_shown(group.results[0]),
            f"{fmean(result['seconds']['total'] for result in group.results):.1f}",
        )
    return table


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, deviation = mean_and_deviation(known)
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


def metrics_shown(result: Result) -> dict[str, float | None]:
    """Return the figures that a table shows.

    A bound learns every stage from nothing: differences between stages say nothing about it.
    """
    bound = result["method"] in BOUNDS
    return {k: None if bound and k in ("bwt", "fgt") else result["metrics"][k] for k in SHOWN}


def stored_shown(result: Result) -> str:
    """Return the number of stored images in words: a bound stores all labeled ones."""
    return "all" if result["method"] in BOUNDS else f"{result['memory']['stored_images']:,}"


def code_shown(result: Result) -> str:
    """Return the commit in short, and whether that is all of the code that ran.

    Where only a copy ran, its files are named as git does, to be compared with the commit's.
    """
    commit: dict[str, Any] = result["commit"]
    if commit["id"] == "unknown":
        return "unknown commit"
    copied = f", tree {commit['tree'][:8]}" if "tree" in commit else ", changes unknown"
    beside = {True: " with changes", False: "", None: copied}[commit["dirty"]]
    return f"{commit['id'][:8]}{beside}"


def task_table(result: Result) -> Table:
    """Return one run task by task, with the diagnostics of its gate."""
    judged = [k for k in DETECTOR if any(t["detector"][k] is not None for t in result["tasks"])]
    table = Table(
        title=f"{NAMES.get(result['method'], result['method'])}, seed {result['seed']}",
        caption="taken: unlabeled images accepted; past: of these, truly of past classes; right: "
        "pseudo-label correct; AUROC, TPR, FPR: of the gate for the next task"
        if judged
        else None,
    )
    for name in ("task", "accuracy", "own", *(DETECTOR[key] for key in judged)):
        table.add_column(name, justify="right")
    for number, task in enumerate(result["tasks"]):
        own, figures = result["R"][number][number], [task["detector"][key] for key in judged]
        cells = [_cell([figure]) for figure in (task["accuracy"], own, *figures)]
        table.add_row(str(task["task"]), *cells)
    return table
