"""The report as HTML, Markdown, LaTeX and CSV, from the same rows of the same tables."""

import csv
import io
import re
import shlex
from collections.abc import Sequence
from statistics import fmean

from markupsafe import Markup

from distillmatch.metrics import Verdict
from distillmatch.report.cells import METRICS, Figure, Row, TableModel, published_shown, shown
from distillmatch.report.pages import render
from distillmatch.report.svg import glance_svg
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
        row.figures[name]
        for name in HEADLINE
        for row in rows.values()
        if name in row.figures and row.figures[name].verdict is not None
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
    differences: dict[str, list[float]] = {}
    for one in judged:
        if one.mean is not None and one.published is not None:
            differences.setdefault(one.metric, []).append(abs(one.mean - one.published.mean))
    return [f"{fmean(of):.1f} points of {METRICS[name]}" for name, of in differences.items()]


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
    header, rows = table_rows(model)
    named = [[_plain(row), _plain(column), *cells] for row, column, *cells in rows]
    lines = ["| " + " | ".join(row) + " |" for row in (header, *named)]
    return "\n".join([lines[0], "|---|---|" + "---:|" * (len(header) - 2), *lines[1:]]) + "\n"


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


def table_rows(model: TableModel) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table that every renderer writes in its own syntax."""
    header, rows = ["row", "column"], []
    for metric in model.experiment.metrics:
        name = METRICS[metric]
        header += [f"{name} published", "here"] if model.is_compared else [name]
    for row in model.rows:
        cells = [row.cell.row, row.cell.column]
        for figure in row.figures.values():
            ours = f"{shown(figure)} {MARKS[figure.verdict]}".strip()
            cells += [published_shown(figure), ours] if model.is_compared else [ours]
        rows.append([*cells, ", ".join(str(run.seed) for run in row.runs) or "–"])
    return [*header, "seeds"], rows


def latex(groups: Groups) -> str:
    """Return all tables as LaTeX, for booktabs."""
    parts = []
    for model in (model for _, models in groups for model in models):
        header, rows = table_rows(model)
        head, *body = (
            " & ".join(cell.translate(_TEX) for cell in row) + r" \\" for row in (header, *rows)
        )
        lines = [f"% {model.experiment.name}", rf"\begin{{tabular}}{{ll{'r' * (len(header) - 2)}}}"]
        lines += [r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""]
        parts += lines
    return "\n".join(parts)


def csv_text(groups: Groups) -> str:
    """Return all figures as CSV, a line each; no text is a formula to a spreadsheet."""
    lines: list[dict[str, object]] = [
        {
            "experiment": model.experiment.name,
            "row": row.cell.row,
            "column": row.cell.column,
            "recipe": row.cell.config.recipe,
            "metric": one.metric,
            "published": one.published and one.published.mean,
            "published_deviation": one.published and one.published.deviation,
            "mean": one.mean,
            "deviation": one.deviation,
            "seeds": " ".join(str(run.seed) for run in row.runs),
            "verdict": one.verdict,
            "archived": one.archived,
            "rerun": rerun(model, row),
        }
        for _, models in groups
        for model in models
        for row in model.rows
        for one in row.figures.values()
    ]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(lines[0])
    writer.writerows(map(safe_cell, line.values()) for line in lines)
    return out.getvalue()


def html(groups: Groups, heading: str) -> str:
    """Return the page: what is reproduced, all cells at a glance, and every table."""
    sections = [
        {
            "recipe": recipe,
            "headline": Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", headline(models, recipe))),
            "figures": [
                Markup(glance_svg([model for model in models if model.is_compared], [metric]))
                for metric in HEADLINE
            ],
            "tables": [(model, *table_rows(model)) for model in models],
        }
        for recipe, models in groups
    ]
    meanings = [(METRICS[name], text) for name, text in MEANINGS.items()]
    return render(
        "report.html",
        heading=heading,
        legend=LEGEND,
        groups=sections,
        meanings=meanings,
        rerun=rerun,
    )


def _plain(text: str) -> str:
    """Return a name without what Markdown and HTML would take for more than text."""
    escaped = re.sub(r"([\\`*_{}\[\]()#|!~])", r"\\\1", text)
    return escaped.replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


_TEX = str.maketrans({
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
})  # fmt: skip
