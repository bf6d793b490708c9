"""The report as HTML, Markdown, LaTeX and CSV: four renderers of the same lines."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from string import Template

from distillmatch.report.cells import METRICS, TableModel, published_shown, shown
from distillmatch.report.glance import glance_svg
from distillmatch.report.lines import LEGEND, MARKS, Line, headline, lines_of
from distillmatch.report.svg import DARK, LIGHT

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
    """Return all figures as CSV, a line each; text that a spreadsheet would run is quoted."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for _, models in groups:
        for line in lines_of(models):
            writer.writerow([safe_cell(value) for value in _csv_row(line)])
    return out.getvalue()


def safe_cell(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def _csv_row(line: Line) -> list[object]:
    figure, published = line.figure, line.figure.published
    return [
        line.experiment,
        line.row,
        line.column,
        line.recipe,
        figure.metric,
        None if published is None else published.mean,
        None if published is None else published.deviation,
        figure.mean,
        figure.deviation,
        " ".join(map(str, line.seeds)),
        figure.verdict,
        figure.archived,
        line.rerun,
    ]


def html(groups: Groups, heading: str) -> str:
    """Return the page: what is reproduced, all cells at a glance, and every table."""
    template = (files("distillmatch.report") / "report.html").read_text(encoding="utf-8")
    sections = []
    for recipe, models in groups:
        shown_models = [model for model in models if any(f.published for f in model.figures)]
        figure = f'<figure class="wide">{glance_svg(shown_models)}</figure>' if shown_models else ""
        tables = "\n".join(_html_table(model) for model in models)
        sections.append(
            f'<section id="{escape(recipe)}"><h2>Recipe <code>{escape(recipe)}</code></h2>'
            f"<p>{escape(headline(models, recipe))}</p>{figure}{tables}</section>"
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
    reruns = {
        (line.row, line.column): line.rerun for line in lines_of([model]) if line.figure.published
    }
    commands = "\n".join(escape(command) for command in reruns.values())
    note = f"<p>{escape(experiment.note)}</p>" if experiment.note else ""
    details = f"<details><summary>run a cell again</summary><pre>{commands}</pre></details>"
    return (
        f'<h3 id="{escape(experiment.name)}-{escape(recipe)}">{escape(experiment.title)}</h3>'
        f"<p class='source'>{escape(experiment.name)} · {escape(experiment.source)}</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
        f"{note}{details if commands else ''}"
    )


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
