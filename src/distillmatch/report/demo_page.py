"""The page that the demo ends in: the figures, and which unlabeled images were accepted as what."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any

from PIL import Image

from distillmatch.files import write_atomically
from distillmatch.report.comparison import NAMES, metrics_shown, stored_shown
from distillmatch.report.svg import DARK, LIGHT, STYLE, Series, line_figure
from distillmatch.sources import Dataset
from distillmatch.sources.dataset import UNKNOWN

Result = dict[str, Any]
SHOWN_SIDE = 64
SHOWN = 12
"""Accepted images shown of each task."""


def write_demo_page(
    results: Sequence[Result], dataset: Dataset, accepted: Mapping[int, Sequence[Any]], folder: Path
) -> Path:
    """Write `index.html` beside the pictures and results of a demo, and return its path.

    `accepted` are the accepted images of DM's tasks, by the number of the task, as its log has
    them.
    """
    by_method = {result["method"]: result for result in results}
    config = by_method["dm"]["config"]
    page = folder / "index.html"
    template = (files("distillmatch.report") / "demo.html").read_text(encoding="utf-8")
    text = Template(template).substitute(
        light=LIGHT,
        dark=DARK,
        figure_style=STYLE,
        outcome=escape(_outcome(by_method)),
        tasks=len(by_method["dm"]["task_sizes"]),
        seed=config["seed"],
        network=escape(config["network"]),
        epochs=config["epochs"],
        recipe=escape(config["recipe"]),
        rows="\n".join(map(_row, results)),
        curves=_curves(results),
        accepted="\n".join(
            _accepted(by_method["dm"], number, examples, dataset)
            for number, examples in sorted(accepted.items())
        ),
        files=", ".join(
            f'<a href="{method}/result.json">{method}/result.json</a>'
            for method in map(escape, by_method)
        ),
    )
    write_atomically(page, text, "writing the page")
    return page


def _outcome(results: Mapping[str, Result]) -> str:
    """Return in a sentence how the methods compare."""
    reached = {method: result["metrics"]["A_N"] for method, result in results.items()}
    ahead = reached["dm"] - reached["gd"]
    where = "ahead of" if ahead >= 0 else "behind"
    return (
        f"After the last task DM recognizes {reached['dm']:.1f} % of the test images of all "
        f"classes, {abs(ahead):.1f} points {where} GD ({reached['gd']:.1f} %); Base has "
        f"{reached['base']:.1f} % and the upper bound {reached['offline']:.1f} %."
    )


def _row(result: Result) -> str:
    cells = [
        *("–" if figure is None else f"{figure:.1f}" for figure in metrics_shown(result).values()),
        stored_shown(result),
        f"{result['config']['learning_rate']:g}",
        f"{result['seconds']['total']:.0f}",
    ]
    return (
        f"<tr><th>{NAMES[result['method']]}</th>"
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + "</tr>"
    )


def _curves(results: Sequence[Result]) -> str:
    series = [
        Series(
            NAMES[result["method"]],
            result["method"],
            list(enumerate(result["metrics"]["accuracies"], start=1)),
        )
        for result in results
    ]
    highest = max(y for one in series for _, y in one.points)
    return line_figure(
        "Accuracy over all classes so far",
        "test images, after each task",
        "tasks learned",
        "%",
        series,
        min(100, 10 * (highest // 10 + 1)),
    )


def _accepted(result: Result, number: int, examples: Sequence[Any], dataset: Dataset) -> str:
    """Return the accepted images of one task, with what DM took them for and what they are."""
    figures, classes = result["tasks"][number - 1]["detector"], result["classes"]
    past = sum(result["task_sizes"][: number - 1])
    items = []
    for example in examples[:SHOWN]:
        label, truth = example["label"], example["truth"]
        right = label == truth
        what = "right" if right else "no known class" if truth == UNKNOWN else classes[truth]
        when = "" if right or truth < past else ", not learned yet"
        items.append(
            f'<li class="{"right" if right else "wrong"}">{_picture(dataset, example["image"])}'
            f"<b>{escape(classes[label])}</b>"
            f"<span>{'✓' if right else '✗'} {escape(what + when)}</span></li>"
        )
    return (
        f"<h3>Task {number}</h3><p>{figures['accepted']:.0f} % of the unlabeled images were "
        f"accepted. {figures['accepted_past']:.0f} % of these are of classes learned before, and "
        f"{figures['pseudo_labels_right']:.0f} % got the right label.</p>"
        f'<ul class="examples">{"".join(items)}</ul>'
    )


def _picture(dataset: Dataset, place: int) -> str:
    buffer = BytesIO()
    pixels = Image.fromarray(dataset.train.images[place])
    pixels.resize((SHOWN_SIDE, SHOWN_SIDE), Image.Resampling.NEAREST).save(buffer, format="PNG")
    data = b64encode(buffer.getvalue()).decode()
    return f'<img alt="" src="data:image/png;base64,{data}">'
