"""Pages that need nothing else, from templates: of the demo, and of a learner."""

import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from distillmatch.files import write_atomically
from distillmatch.report import charts
from distillmatch.report import learner_report as report
from distillmatch.report.comparison import (
    FIGURES,
    NAMES,
    Result,
    metric_of,
    number_shown,
    stored_shown,
)
from distillmatch.report.learner_report import Record
from distillmatch.sources import Dataset
from distillmatch.sources.walk import shown

if TYPE_CHECKING:
    from distillmatch.learner.explanation import Explanation

PAGE = "report.html"
SHOWN_SIDE = 96
SHOWN = 12
"""Accepted images shown of each task of the demo."""
MOST_CLASSES, MOST_CONFUSIONS, MATRIX_CLASSES = 40, 12, 25
"""Of more classes, the weakest and the largest confusions are shown."""


def render(template: str, **values: Any) -> str:
    """Fill a template of this package; text is escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    def source(name: str) -> str:
        return (files("distillmatch.report") / name).read_text(encoding="utf-8")

    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(source),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"png": png, "shown": lambda text: shown(str(text))}
    return environment


def png(image: NDArray[np.uint8]) -> str:
    """Return a small image as an address that holds it."""
    picture, buffer = Image.fromarray(np.ascontiguousarray(image)), BytesIO()
    picture.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    picture.save(buffer, format="PNG")
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode()


def write_demo_page(
    results: Sequence[Result], dataset: Dataset, accepted: Mapping[int, Sequence[Any]], folder: Path
) -> Path:
    """Write a demo's `index.html`; `accepted` are images that DM accepted, by task, as logged."""
    by_method = {result["method"]: result for result in results}
    dm = by_method["dm"]
    curves = [
        charts.Series(NAMES[method], method, [result["metrics"]["accuracies"]])
        for method, result in by_method.items()
    ]
    text = render(
        "demo.html",
        reached={method: result["metrics"]["A_N"] for method, result in by_method.items()},
        tasks=len(dm["task_sizes"]),
        config=dm["config"],
        rows=[
            [
                NAMES[result["method"]],
                *(number_shown(metric_of(result, name)) for name in FIGURES),
                stored_shown(result),
                f"{result['config']['learning_rate']:g}",
                f"{result['seconds']['total']:.0f}",
            ]
            for result in results
        ],
        curves=_chart("Accuracy over all classes so far", "tasks learned", curves),
        accepted=[
            {
                "number": number,
                **dm["tasks"][number - 1]["detector"],
                "examples": [_example(dm, number, one, dataset) for one in examples[:SHOWN]],
            }
            for number, examples in sorted(accepted.items())
        ],
        methods=list(by_method),
    )
    write_atomically(folder / "index.html", text, "writing the page")
    return folder / "index.html"


def _example(result: Result, number: int, example: Any, dataset: Dataset) -> dict[str, Any]:
    """Return an accepted image, with what DM took it for and what it is."""
    label, truth, classes = example["label"], example["truth"], result["classes"]
    what = classes[truth] if 0 <= truth < len(classes) else "no class to learn"
    if len(classes) > truth >= sum(result["task_sizes"][: number - 1]):
        what += ", not learned yet"
    return {
        "picture": png(dataset.train.images[example["image"]]),
        "label": classes[label],
        "right": label == truth,
        "what": "right" if label == truth else what,
    }


def write_learner_page(state: Path, summary: Record, explanation: "Explanation") -> Path:
    """Write `report.html` into the learner's folder, and return its path."""
    history: Sequence[Record] = summary["history"]
    record = history[-1]
    answers = report.answers_of(record)
    taken = sorted(record["accepted_by_class"].items(), key=lambda pair: -pair[1])
    best = sorted(report.best_by_class(history).items(), key=lambda pair: pair[1].now)
    text = render(
        "learner.html",
        report=report,
        summary=summary,
        record=record,
        name=state.absolute().name,
        chart=_accuracies(history),
        classes=[
            (label, (f"{one.now:.1f}", f"{one.best:.1f}", one.task), one.now / 100)
            for label, one in best
        ],
        most=MOST_CLASSES,
        matrix=answers if len(answers) <= MATRIX_CLASSES else {},
        confused=[
            (f"{label} → {answer}", [f"{100 * count / total:.1f}"], count / total)
            for label, answer, count, total in report.confusions(record)[:MOST_CONFUSIONS]
        ],
        taken=[(label, [f"{count:,}"], count / max(1, taken[0][1])) for label, count in taken],
        examples=explanation.examples,
        place=shown(shlex.quote(str(state))),
        version=version("distillmatch"),
    )
    write_atomically(state / PAGE, text, "writing the report")
    return state / PAGE


def _accuracies(history: Sequence[Record]) -> Markup | None:
    looks = {"all": ("all classes", "dm"), "old": ("older classes", "gd"), "new": ("new", "e2e")}
    curves = [
        charts.Series(name, look, [[(one["test"] or {}).get(figure) for one in history]])
        for figure, (name, look) in looks.items()
    ]
    curves = [one for one in curves if any(value is not None for value in one.runs[0])]
    return _chart("Accuracy over tasks", "task", curves) if curves else None


def _chart(title: str, below: str, curves: Sequence[charts.Series]) -> Markup | None:
    """Return a chart for a page, or none without the extra `report`."""
    if not charts.is_installed():
        return None
    return Markup(charts.svg_of(charts.line_chart(title, below, curves, (4.8, 4))))
