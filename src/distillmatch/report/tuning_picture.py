"""A picture of a tuning: the metric against each hyperparameter."""

from pathlib import Path
from typing import Any

from distillmatch.report.comparison import empty_figure, save_figure

ACCENT, MUTED = "#0072B2", "#777777"
LABELS = {
    "A_N": "accuracy A_N, %",
    "bwt": "backward transfer, %",
    "fgt": "forgetting, %",
}


def draw_tuning(record: dict[str, Any], path: Path) -> None:
    """Draw a panel for each hyperparameter: all trials, and a line where it alone changes.

    A bar is the deviation over the folds. Trials that failed are crosses at the bottom.
    """
    space: dict[str, list[Any]] = record["space"]
    figure = empty_figure(max(5.0, 3.6 * len(space)), 4)
    panels = figure.subplots(1, len(space), sharey=True, squeeze=False)[0]
    for axes, (name, values) in zip(panels, space.items(), strict=True):
        _draw_panel(axes, record, name, values)
    panels[0].set_ylabel(LABELS[record["metric"]])
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    config = record["config"]
    figure.suptitle(
        f"{config['method']} on {config['source']}, unlabeled {config['unlabeled']}: "
        f"{len(record['trials'])} trials, {record['folds']} folds, search {record['search']}"
    )
    save_figure(figure, path, "drawing the trials")


def _draw_panel(axes: Any, record: dict[str, Any], name: str, values: list[Any]) -> None:
    def place(trial: dict[str, Any]) -> int:
        return values.index(trial["values"][name])

    done = [trial for trial in record["trials"] if trial["failed"] is None]
    failed = [trial for trial in record["trials"] if trial["failed"] is not None]
    line, best = sorted(longest_sweep(done, name), key=place), done[0]
    means = [trial["mean"] for trial in done]
    axes.plot(list(map(place, done)), means, "o", color=MUTED, alpha=0.4, ms=5, label="a trial")
    axes.errorbar(
        list(map(place, line)),
        [trial["mean"] for trial in line],
        yerr=[trial["deviation"] or 0.0 for trial in line],
        color=ACCENT,
        marker="s",
        capsize=3,
        label="this one alone changed",
    )
    axes.plot(place(best), best["mean"], "*", color="#D55E00", ms=16, zorder=3, label="the best")
    if failed:
        at_bottom = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        places = list(map(place, failed))
        axes.plot(places, [0.02] * len(failed), "x", color="#000000", label="failed", **at_bottom)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xlabel(name.replace("_", " "))
    axes.grid(alpha=0.3)


def longest_sweep(trials: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the most trials that differ in one hyperparameter alone; of equals, the best.

    Trials are given best first.
    """
    sweeps: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        others = {key: value for key, value in trial["values"].items() if key != name}
        sweeps.setdefault(repr(others), []).append(trial)
    return max(sweeps.values(), key=len)
