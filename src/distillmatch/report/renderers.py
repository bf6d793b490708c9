"""The report as HTML, Markdown, LaTeX and CSV, from the same rows of the same tables."""

import csv
import io
import re
import shlex
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from statistics import fmean
from string import Template

from distillmatch.metrics import Verdict
from distillmatch.report.cells import METRICS, Figure, Row, TableModel, published_shown, shown
from distillmatch.report.glance import glance_svg
from distillmatch.report.svg import DARK, LIGHT
from distillmatch.terminal import safe_cell

MARKS: dict[Verdict | None, str] = {"agrees": "●", "higher": "▲", "lower": "▼", None: ""}
"""A shape for each verdict, so that nothing depends on color."""
LEGEND = (
    "● agrees with the published mean by Welch's t-test at 5 % (one seed: the t-interval of one "
    "more run), ▲ higher, ▼ lower; without a mark: not judged, for want of a published deviation. "
    "†: an archived run of the nearest preset, never judged."
)
MEANINGS = {
    "A_N": "accuracy over all classes after the last task, higher is better",
    "omega": "accuracy as a share of the upper bound's, mean over tasks, higher is better",
    "bwt": "backward transfer, each task among its own classes, higher is better",
    "fgt": "forgetting among all classes seen, lower is better",
    "auroc": "how well the detector tells seen from unseen classes, mean over tasks",
    "equivalent_coreset": "images that Base must store for the same Ω",
    "memory_saving": "the same for each unlabeled image of a task",
}
HEADLINE = ("A_N", "omega")
"""The metrics that the headline counts."""
Groups = Sequence[tuple[str, Sequence[TableModel]]]
"""Tables by recipe."""


def headline(models: Sequence[TableModel], recipe: str) -> str:
    """Return in a sentence what of the paper is reproduced by a recipe.

    A cell that tables share counts once. Differences are of runs by today's recipes.
    """
    rows: dict[str, Row] = {}
    for row in (row for model in models for row in model.rows):
        rows.setdefault(repr(sorted(row.cell.config.identity().items())), row)
    run = sum(bool(row.runs) for row in rows.values())
    archived = sum(bool(row.archived) for row in rows.values())
    judged = [
        figure
        for row in rows.values()
        for name, figure in row.figures.items()
        if name in HEADLINE and figure.verdict is not None
    ]
    text = f"{run} of {len(rows)} cells have a run by the recipe `{recipe}`"
    if archived:
        text += f", {archived} show the nearest archived run (†), which is not judged"
    if judged:
        agree = sum(figure.verdict == "agrees" for figure in judged)
        text += f"; {agree} of {len(judged)} figures of A_N and Ω agree"
        text += f", the mean absolute difference is {' and '.join(_differences(judged))}"
    return f"{text}."


def _differences(judged: Sequence[Figure]) -> list[str]:
    said = []
    for name in HEADLINE:
        differences = [
            abs(one.mean - one.published.mean)
            for one in judged
            if one.metric == name and one.mean is not None and one.published is not None
        ]
        if differences:
            said.append(f"{fmean(differences):.1f} points of {METRICS[name]}")
    return said


def markdown(groups: Groups) -> str:
    """Return all tables as Markdown."""
    parts = []
    for recipe, models in groups:
        parts.append(f"## Recipe `{recipe}`\n\n{headline(models, recipe)}\n\n{LEGEND}\n")
        for model in models:
            parts.append(f"### {_plain(model.experiment.title)}\n\n{markdown_table(model)}\n")
            if model.experiment.note:
                parts.append(f"{_plain(model.experiment.note)}\n")
    return "\n".join(parts)


def markdown_table(model: TableModel) -> str:
    """Return one table as Markdown: published beside ours for each metric."""
    header, rows = table_rows(model, _plain)
    lines = ["| " + " | ".join(header) + " |", "|---|---|" + "---:|" * (len(header) - 2)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


SUMMARY = {
    "table-2a": ("10 tasks", "10 tasks, Uniform"),
    "table-2c": ("Positive", "20 tasks, Positive, coreset"),
}
"""The column of a table that stands for it in the summary, and what to call the setting."""
SUMMARY_ROWS = ("UB", "Base", "GD", "DM")
ANSWERS = {"agrees": "yes", "higher": "no, higher", "lower": "no, lower", None: "not judged"}


def markdown_summary(models: Sequence[TableModel]) -> str:
    """Return A_N of a few methods in the two main settings, published beside ours."""
    lines = ["| setting | method | published | ours | agrees |", "|---|---|---:|---:|---|"]
    for model in models:
        column, setting = SUMMARY.get(model.experiment.name, ("", ""))
        for name in SUMMARY_ROWS:
            row = model.row(name, column)
            if row is None:
                continue
            figure = row.figures["A_N"]
            parts = published_shown(figure), shown(figure), ANSWERS[figure.verdict]
            lines.append(f"| {setting} | {name} | {' | '.join(parts)} |")
            setting = ""
    return "\n".join(lines) + "\n"


def rerun(model: TableModel, row: Row) -> str:
    """Return the command that runs a cell again."""
    seeds, recipe = ",".join(map(str, row.seeds)), row.cell.config.recipe
    words = ["distillmatch", "suite", "run", model.experiment.name, "--cell", row.cell.name]
    words += ["--seeds", seeds, *(["--recipe", recipe] if recipe != "paper" else [])]
    return shlex.join(words)


def table_rows(model: TableModel, clean: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table that every renderer writes in its own syntax."""
    metrics, compared = model.experiment.metrics, any(f.published for f in model.figures)
    header = ["row", "column"]
    for metric in metrics:
        header += [f"{METRICS[metric]} published", "here"] if compared else [METRICS[metric]]
    header.append("seeds")
    rows = []
    for row in model.rows:
        cells = [clean(row.cell.row), clean(row.cell.column)]
        for metric in metrics:
            figure = row.figures[metric]
            ours = f"{shown(figure)} {MARKS[figure.verdict]}".strip()
            cells += [published_shown(figure), ours] if compared else [ours]
        rows.append([*cells, ", ".join(str(run.seed) for run in row.runs) or "–"])
    return header, rows


def latex(groups: Groups) -> str:
    """Return all tables as LaTeX, for booktabs."""
    parts = []
    for model in (model for _, models in groups for model in models):
        header, rows = table_rows(model, str)
        head, *body = (" & ".join(map(_tex, row)) + r" \\" for row in (header, *rows))
        lines = [f"% {model.experiment.name}", rf"\begin{{tabular}}{{ll{'r' * (len(header) - 2)}}}"]
        lines += [r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""]
        parts.append("\n".join(lines))
    return "\n".join(parts)


COLUMNS = (
    "experiment", "row", "column", "recipe", "metric", "published", "published_deviation", "mean",
    "deviation", "seeds", "verdict", "archived", "rerun",
)  # fmt: skip


def csv_text(groups: Groups) -> str:
    """Return all figures as CSV, a line each; no text is a formula to a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for model in (model for _, models in groups for model in models):
        for row in model.rows:
            cell, seeds = row.cell, " ".join(str(run.seed) for run in row.runs)
            where = [model.experiment.name, cell.row, cell.column, cell.config.recipe]
            for one in row.figures.values():
                theirs = one.published
                figures = [theirs and theirs.mean, theirs and theirs.deviation]
                figures += [one.mean, one.deviation]
                cells = [
                    *where,
                    one.metric,
                    *figures,
                    seeds,
                    one.verdict,
                    one.archived,
                    rerun(model, row),
                ]
                writer.writerow(map(safe_cell, cells))
    return out.getvalue()


def html(groups: Groups, heading: str) -> str:
    """Return the page: what is reproduced, all cells at a glance, and every table."""
    template = (files("distillmatch.report") / "report.html").read_text(encoding="utf-8")
    links = " · ".join(
        f'<a href="#{escape(model.experiment.name)}-{escape(groups[0][0])}">'
        f"{escape(model.experiment.name)}</a>"
        for model in groups[0][1]
    )
    meanings = "".join(
        f"<dt>{METRICS[name]}</dt><dd>{escape(text)}</dd>" for name, text in MEANINGS.items()
    )
    return Template(template).substitute(
        heading=escape(heading),
        light=LIGHT,
        dark=DARK,
        links=links,
        legend=escape(LEGEND),
        sections="\n".join(_section(recipe, models) for recipe, models in groups),
        meanings=meanings,
    )


def _section(recipe: str, models: Sequence[TableModel]) -> str:
    compared = [model for model in models if any(f.published for f in model.figures)]
    figures = "".join(
        f"<figure>{glance_svg(compared, [metric])}</figure>" for metric in HEADLINE if compared
    )
    tables = "\n".join(_html_table(model, recipe) for model in models)
    return (
        f'<section id="{escape(recipe)}"><h2>Recipe <code>{escape(recipe)}</code></h2>'
        f"<p>{_code(escape(headline(models, recipe)))}</p>"
        f'<div class="pair">{figures}</div>{tables}</section>'
    )


def _html_table(model: TableModel, recipe: str) -> str:
    experiment = model.experiment
    header, rows = table_rows(model, escape)
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    commands = "\n".join(escape(rerun(model, row)) for row in model.rows if row.cell.published)
    note = f"<p>{escape(experiment.note)}</p>" if experiment.note else ""
    details = f"<details><summary>run a cell again</summary><pre>{commands}</pre></details>"
    return (
        f'<h3 id="{escape(experiment.name)}-{escape(recipe)}">{escape(experiment.title)}</h3>'
        f"<p class='source'>{escape(experiment.name)} · {escape(experiment.source)}</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f"</div>{note}{details if commands else ''}"
    )


def _code(text: str) -> str:
    """Return text with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def _plain(text: str) -> str:
    """Return a name without what Markdown and HTML would take for more than text."""
    escaped = re.sub(r"([\\`*_{}\[\]()#|!~])", r"\\\1", text)
    return escaped.replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "Ω": r"$\Omega$",
    "ℓ": r"$\ell$",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "●": r"$\bullet$",
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
    "†": r"$\dagger$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text)
