"""A learner's report as one page that needs nothing else."""

import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from distillmatch.files import write_atomically
from distillmatch.learner.explanation import Explanation
from distillmatch.report.learner_findings import (
    accepted_sentence,
    baseline_sentence,
    best_by_class,
    best_sentence,
    camera_sentence,
    confusions,
    warnings_of,
)
from distillmatch.report.learner_text import (
    FIGURES,
    Record,
    count_or_dash,
    environment_sentence,
    figures_of,
    forgotten_sentence,
    lead_sentence,
    left_out_sentence,
    listed,
    measured,
    one_decimal,
    state_rows,
    test_sentence,
)
from distillmatch.report.svg import DARK, LIGHT, STYLE, Series, line_figure
from distillmatch.sources.walk import shown

PAGE = "report.html"
SHOWN_SIDE = 96
SHOWN_CLASSES = 40
SHOWN_CONFUSIONS = 12
MATRIX_CLASSES = 25
"""Of more classes, only the largest confusions are shown."""


def write_learner_page(state: Path, summary: Record, explanation: Explanation) -> Path:
    """Write `report.html` into the learner's folder, and return its path."""
    history: Sequence[Record] = summary["history"]
    template = (files("distillmatch.report") / "learner.html").read_text(encoding="utf-8")
    text = Template(template).substitute(
        title=escape(f"The learner “{shown(state.absolute().name)}”"),
        light=LIGHT,
        dark=DARK,
        figure_style=STYLE,
        lead=escape(lead_sentence(summary)),
        warnings=_warnings(history),
        counts=_counts(history[-1]),
        accuracy=_accuracy(history) + _confusion(history[-1]),
        environment=_environment(history[-1], explanation),
        history=_history(history),
        memory=_memory(summary),
        next=escape(_next(state)),
        made=f"Made by distillmatch {escape(version('distillmatch'))}.",
    )
    write_atomically(state / PAGE, text, "writing the report")
    return state / PAGE


def _counts(record: Record) -> str:
    tiles = [
        (f"{one_decimal(measured(record, figure))}{unit}", words)
        for figure, unit, words in (
            ("all", " %", "accuracy, all classes"),
            ("old", " %", "accuracy, older classes"),
            ("new", " %", "accuracy, new classes"),
            ("forgotten", "", "points forgotten"),
        )
        if measured(record, figure) is not None
    ]
    of_known = measured(record, "accepted")
    if of_known is not None:
        tiles.append((f"{one_decimal(of_known)} %", "of known images accepted"))
    tiles.append((count_or_dash(record["accepted"]), "images taken for known classes"))
    if record.get("rejected") is not None:
        tiles.append((f"{record['rejected']:,}", "camera images like no class"))
    tiles.append((f"{record['stored']:,}", "images stored"))
    return "".join(f"<li><b>{escape(n)}</b><span>{escape(words)}</span></li>" for n, words in tiles)


def _warnings(history: Sequence[Record]) -> str:
    found = warnings_of(history)
    if not found:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in found)
    return (
        f'<section id="warnings"><h2>What to look at</h2><ul class="warned">{items}</ul></section>'
    )


def _accuracy(history: Sequence[Record]) -> str:
    record = history[-1]
    if not record["test"]:
        return ""
    said = (
        baseline_sentence(record),
        best_sentence(history),
        forgotten_sentence(record),
        accepted_sentence(record),
        test_sentence(record),
    )
    return (
        f'<section id="accuracy"><h2>Accuracy</h2><p>{escape(" ".join(filter(None, said)))}</p>'
        f'<div class="pair">{_chart(history)}{_classes(history)}</div></section>'
    )


def _classes(history: Sequence[Record]) -> str:
    """Return each class with its accuracy now and at best; of very many, the weakest."""
    best = sorted(best_by_class(history).items(), key=lambda pair: pair[1].now)
    body = "".join(
        f'<tr><th scope="row">{escape(shown(label))}</th><td>{one.now:.1f}</td>'
        f"<td>{one.best:.1f}</td><td>{escape(one.task)}</td>"
        f'<td class="bar"><i style="width:{7 * one.now / 100:.2f}rem"></i></td></tr>'
        for label, one in best[:SHOWN_CLASSES]
    )
    more = len(best) - SHOWN_CLASSES
    if more > 0:
        body += f'<tr><th scope="row">and {more:,} more</th>{"<td></td>" * 4}</tr>'
    return (
        '<div class="wide"><table><thead><tr><th scope="col">class</th><th scope="col">percent</th>'
        '<th scope="col">best</th><th scope="col">after</th><td></td></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _confusion(record: Record) -> str:
    """Return what the images of each class were taken for: a matrix, and the largest confusions."""
    answers = record["test"].get("answers") if record["test"] else None
    if not answers:
        return ""
    worst = [
        (f"{label} → {answer}", 100 * count / total)
        for label, answer, count, total in confusions(record, SHOWN_CONFUSIONS)
    ]
    drawn = _matrix(answers) if len(answers) <= MATRIX_CLASSES else ""
    if not worst and not drawn:
        return ""
    return (
        '<section id="confusion"><h2>What is taken for what</h2><p class="note">Rows are true '
        "classes, columns the answers, in the same order; counts of test images. Beside them the "
        "largest confusions, in percent of the true class.</p>"
        f'<div class="pair">{drawn}{_bars("taken for", "percent", worst, 100)}</div></section>'
    )


def _matrix(answers: Mapping[str, Mapping[str, int]]) -> str:
    labels = list(answers)
    heads = "".join(
        f'<th scope="col" title="{escape(shown(label))}">{number}</th>'
        for number, label in enumerate(labels, 1)
    )
    rows = []
    for number, label in enumerate(labels, 1):
        total = max(1, sum(answers[label].values()))
        cells = ""
        for answer in labels:
            count = answers[label].get(answer, 0)
            kind = "right" if answer == label else "wrong"
            shade = f' class="{kind}" style="--share:{count / total:.2f}"' if count else ""
            cells += f"<td{shade}>{count or ''}</td>"
        rows.append(f'<tr><th scope="row">{number} {escape(shown(label))}</th>{cells}</tr>')
    return (
        '<div class="wide"><table class="matrix"><thead><tr><td></td>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _bars(
    head: str, unit: str, rows: Sequence[tuple[Any, float]], most: float, shown_as: str = ".1f"
) -> str:
    """Return labels with a figure and a bar each; of very many, the first."""
    if not rows:
        return ""
    body = "".join(
        f'<tr><th scope="row">{escape(shown(str(label)))}</th><td>{value:{shown_as}}</td>'
        f'<td class="bar"><i style="width:{7 * value / (most or 1):.2f}rem"></i></td></tr>'
        for label, value in rows[:SHOWN_CLASSES]
    )
    more = len(rows) - SHOWN_CLASSES
    if more > 0:
        body += f'<tr><th scope="row">and {more:,} more</th><td></td><td></td></tr>'
    return (
        f'<div class="wide"><table><thead><tr><th scope="col">{head}</th><th scope="col">{unit}'
        f"</th><td></td></tr></thead><tbody>{body}</tbody></table></div>"
    )


def _chart(history: Sequence[Record]) -> str:
    lines = {"all": ("all classes", "dm"), "old": ("older classes", "gd"), "new": ("new", "e2e")}
    series = []
    for figure, (name, look) in lines.items():
        found = [(number, measured(record, figure)) for number, record in enumerate(history, 1)]
        points = [(float(number), value) for number, value in found if value is not None]
        if points:
            series.append(Series(name, look, points))
    if not series:
        return ""
    tasks = " · ".join(f"{n} {shown(record['name'])}" for n, record in enumerate(history, 1))
    drawn = line_figure("Accuracy over tasks", tasks, "task", "percent", series, 100.0)
    return f"<figure>{drawn}</figure>"


def _environment(record: Record, explanation: Explanation) -> str:
    by_class = sorted(record["accepted_by_class"].items(), key=lambda pair: -pair[1])
    most = by_class[0][1] if by_class else 1
    bars = _bars("taken for", "images", by_class, most, ",")
    said = environment_sentence(record), camera_sentence(record), left_out_sentence(record)
    return (
        '<section id="environment"><h2>What the environment contributed</h2>'
        f"<p>{escape(' '.join(filter(None, said)))}</p>"
        f'<div class="pair">{bars}{_examples(explanation)}</div></section>'
    )


def _examples(explanation: Explanation) -> str:
    if not explanation.examples:
        return ""
    items = []
    for example in explanation.examples:
        label = escape(shown(str(example.label)))
        score = "" if example.score is None else f" <span>{example.score:.2f}</span>"
        picture = f'<img src="{_address(example.image)}" alt="taken for {label}">'
        items.append(f"<li>{picture}{label}{score}</li>")
    return (
        '<div class="shown"><p class="note">Some of them, with what they were taken for and how '
        f'familiar they looked.</p><ul class="examples">{"".join(items)}</ul></div>'
    )


def _address(image: NDArray[np.uint8]) -> str:
    picture = Image.fromarray(np.ascontiguousarray(image))
    picture.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    buffer = BytesIO()
    picture.save(buffer, format="PNG")
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode()


def _history(history: Sequence[Record]) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in FIGURES)
    rows = []
    for record in history:
        classes = listed(record["added"]) or "none"
        if record["returned"]:
            classes += f"; more of {listed(record['returned'])}"
        cells = "".join(f"<td>{escape(figure)}</td>" for figure in figures_of(record))
        rows.append(
            f'<tr><th scope="row">{escape(shown(record["name"]))}</th>'
            f'<td class="text">{escape(classes)}</td>{cells}</tr>'
        )
    return (
        '<section id="history"><h2>History</h2><p class="note">Labeled images, unlabeled ones '
        "seen and taken for known classes; accuracy over all, older and new classes in percent "
        "after each task; points forgotten in it; time of learning.</p>"
        '<div class="wide"><table><thead><tr><th scope="col">task</th>'
        f'<th scope="col" class="text">new classes</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _memory(summary: Record) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="text">{escape(said)}</td></tr>'
        for name, said in state_rows(summary)
    )
    return (
        '<section id="memory"><h2>What it keeps</h2>'
        f'<div class="wide"><table><tbody>{rows}</tbody></table></div></section>'
    )


def _next(state: Path) -> str:
    name = shown(shlex.quote(str(state)))
    return (
        f"distillmatch learn {name} --labeled NEXT --unlabeled CAMERA\n"
        f"distillmatch predict {name} IMAGES --reject\n"
        f"distillmatch inspect {name}\n"
        f"distillmatch export {name} --onnx learner.onnx"
    )
