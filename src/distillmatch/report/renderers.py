"""The report as HTML, Markdown, LaTeX and CSV, from the same rows of the same tables."""

import csv
import io
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from statistics import fmean
from string import Template

from distillmatch.metrics import Verdict
from distillmatch.report.cells import METRICS, Row, TableModel, published_shown, shown
from distillmatch.report.glance import glance_svg
from distillmatch.report.svg import DARK, LIGHT

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
Groups = Sequence[tuple[str, Sequence[TableModel]]]
"""Tables by recipe."""


@dataclass(frozen=True)
class Summary:
    """Counts over some tables, in which a cell that they share counts once."""

    cells: int
    run: int
    archived: int
    agree: int
    judged: int
    difference: dict[str, float]
    """The mean absolute difference by metric, of runs by today's recipes."""


def summary_of(models: Sequence[TableModel], metrics: Sequence[str] = ("A_N", "omega")) -> Summary:
    """Count the cells of some tables and the verdicts on some of their metrics."""
    rows: dict[str, Row] = {}
    for model in models:
        for row in model.rows:
            key = repr(sorted(row.cell.config.identity().items()))
            rows.setdefault(key, row)
    figures = [
        row.figures[metric] for row in rows.values() for metric in metrics if metric in row.figures
    ]
    verdicts = [figure.verdict for figure in figures if figure.verdict is not None]
    differences = {
        metric: [
            abs(figure.difference)
            for figure in figures
            if figure.metric == metric and figure.verdict is not None and figure.difference
        ]
        for metric in metrics
    }
    return Summary(
        cells=len(rows),
        run=sum(bool(row.results) for row in rows.values()),
        archived=sum(bool(row.archived) for row in rows.values()),
        agree=verdicts.count("agrees"),
        judged=len(verdicts),
        difference={metric: fmean(values) for metric, values in differences.items() if values},
    )


def headline(models: Sequence[TableModel], recipe: str) -> str:
    """Return in a sentence what of the paper is reproduced by a recipe."""
    summary = summary_of(models)
    text = f"{summary.run} of {summary.cells} cells have a run by the recipe `{recipe}`"
    if summary.archived:
        text += f", {summary.archived} show the nearest archived run (†), which is not judged"
    if summary.judged:
        text += f"; {summary.agree} of {summary.judged} figures of A_N and Ω agree"
    if summary.difference:
        names = {"A_N": "A_N", "omega": "Ω"}
        parts = [f"{value:.1f} points of {names[m]}" for m, value in summary.difference.items()]
        text += f", the mean absolute difference is {' and '.join(parts)}"
    return f"{text}."


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
        rows.append([*cells, ", ".join(map(str, row.results)) or "–"])
    return header, rows


def latex(groups: Groups) -> str:
    """Return all tables as LaTeX, for booktabs."""
    parts = []
    for _, models in groups:
        for model in models:
            header, rows = table_rows(model, _tex)
            aligned = "ll" + "r" * (len(header) - 2)
            body = " \\\\\n".join(" & ".join(map(_tex_number, row)) for row in rows)
            parts.append(
                f"% {model.experiment.name}\n\\begin{{tabular}}{{{aligned}}}\n\\toprule\n"
                + " & ".join(map(_tex, header))
                + f" \\\\\n\\midrule\n{body} \\\\\n\\bottomrule\n\\end{{tabular}}\n"
            )
    return "\n".join(parts)


COLUMNS = (
    "experiment",
    "row",
    "column",
    "recipe",
    "metric",
    "published",
    "published_deviation",
    "mean",
    "deviation",
    "seeds",
    "verdict",
    "archived",
    "rerun",
)


def csv_text(groups: Groups) -> str:
    """Return all figures as CSV, a line each; no text is a formula to a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for _, models in groups:
        for model in models:
            for row in model.rows:
                for cells in _csv_rows(model, row):
                    writer.writerow(map(safe_cell, cells))
    return out.getvalue()


def safe_cell(value: object) -> object:
    """Return a value with text quoted that a spreadsheet would take for a formula."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def _csv_rows(model: TableModel, row: Row) -> list[list[object]]:
    cell, seeds = row.cell, " ".join(map(str, row.results))
    rows: list[list[object]] = []
    for figure in row.figures.values():
        published = figure.published
        where = [model.experiment.name, cell.row, cell.column, cell.config.recipe, figure.metric]
        theirs = [None, None] if published is None else [published.mean, published.deviation]
        ours = [figure.mean, figure.deviation, seeds, figure.verdict, figure.archived]
        rows.append([*where, *theirs, *ours, rerun(model, row)])
    return rows


def html(groups: Groups, heading: str) -> str:
    """Return the page: what is reproduced, all cells at a glance, and every table."""
    template = (files("distillmatch.report") / "report.html").read_text(encoding="utf-8")
    sections = []
    for recipe, models in groups:
        shown_models = [model for model in models if any(f.published for f in model.figures)]
        figures = "".join(
            f"<figure>{glance_svg(shown_models, [metric])}</figure>"
            for metric in ("A_N", "omega")
            if shown_models
        )
        tables = "\n".join(_html_table(model) for model in models)
        sections.append(
            f'<section id="{escape(recipe)}"><h2>Recipe <code>{escape(recipe)}</code></h2>'
            f"<p>{_code(escape(headline(models, recipe)))}</p>"
            f'<div class="pair">{figures}</div>{tables}</section>'
        )
    links = " · ".join(
        f'<a href="#{escape(model.experiment.name)}-{escape(recipe)}">'
        f"{escape(model.experiment.name)}</a>"
        for recipe, models in groups[:1]
        for model in models
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
        sections="\n".join(sections),
        meanings=meanings,
    )


def _html_table(model: TableModel) -> str:
    experiment = model.experiment
    header, rows = table_rows(model, escape)
    recipe = model.rows[0].cell.config.recipe if model.rows else "paper"
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    commands = "\n".join(escape(rerun(model, row)) for row in model.rows if row.cell.published)
    note = f"<p>{escape(experiment.note)}</p>" if experiment.note else ""
    details = f"<details><summary>run a cell again</summary><pre>{commands}</pre></details>"
    return (
        f'<h3 id="{escape(experiment.name)}-{escape(recipe)}">{escape(experiment.title)}</h3>'
        f"<p class='source'>{escape(experiment.name)} · {escape(experiment.source)}</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
        f"{note}{details if commands else ''}"
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
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "Ω": r"$\Omega$",
    "ℓ": r"$\ell$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text)


def _tex_number(text: str) -> str:
    signs = {
        "±": r"$\pm$",
        "−": "$-$",
        "●": r"$\bullet$",
        "▲": r"$\blacktriangle$",
        "†": r"$\dagger$",
    }
    signs |= {"▼": r"$\blacktriangledown$", "–": "--"}
    return "".join(signs.get(letter, letter) for letter in text)
