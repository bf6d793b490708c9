"""The report as HTML, Markdown, LaTeX and CSV, from the same rows of the same tables."""

import csv
import io
import re
import shlex
from collections.abc import Sequence
from statistics import fmean

from markupsafe import Markup

from distillmatch.report.charts import glance, svg_of
from distillmatch.report.comparison import METRICS, Row, TableModel, TextTable
from distillmatch.report.pages import render
from distillmatch.terminal import safe_cell

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
SUMMARY = {
    "table-2a": ("10 tasks", "10 tasks, Uniform"),
    "table-2c": ("Positive", "20 tasks, Positive, coreset"),
}
"""The column of a table that stands for it in the summary, and what to call the setting."""
ANSWERS = {"agrees": "yes", "higher": "no, higher", "lower": "no, lower", None: "not judged"}
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
Groups = Sequence[tuple[str, Sequence[TableModel]]]
"""Tables by recipe."""


def headline(models: Sequence[TableModel], recipe: str) -> str:
    """Return in a sentence what of the paper is reproduced by a recipe.

    A cell that tables share counts once. Differences are of runs by today's recipes.
    """
    rows: dict[str, Row] = {}
    for row in (row for model in models for row in model.rows):
        rows.setdefault(repr(sorted(row.cell.config.identity().items())), row)
    text = f"{sum(bool(row.runs) for row in rows.values())} of {len(rows)} cells have a run by the "
    text += f"recipe `{recipe}`"
    if archived := sum(bool(row.archived) for row in rows.values()):
        text += f", {archived} show the nearest archived run (†), which is not judged"
    agree, differences = list[bool](), dict[str, list[float]]()
    for name in HEADLINE:
        for figure in (row.figures[name] for row in rows.values() if name in row.figures):
            if figure.verdict and figure.mean is not None and figure.published is not None:
                agree.append(figure.verdict == "agrees")
                far = abs(figure.mean - figure.published.mean)
                differences.setdefault(METRICS[name], []).append(far)
    if agree:
        text += f"; {sum(agree)} of {len(agree)} figures of A_N and Ω agree, the mean absolute "
        means = (f"{fmean(far):.1f} points of {name}" for name, far in differences.items())
        text += f"difference is {' and '.join(means)}"
    return f"{text}."


def markdown(groups: Groups) -> str:
    """Return all tables as Markdown."""
    parts = []
    for recipe, models in groups:
        parts.append(f"## Recipe `{recipe}`\n\n{headline(models, recipe)}\n\n{LEGEND}\n")
        for model in models:
            title = _plain(model.experiment.title)
            parts.append(f"### {title}\n\n{markdown_table(model.text())}\n")
            if model.experiment.note:
                parts.append(f"{_plain(model.experiment.note)}\n")
    return "\n".join(parts)


def markdown_table(table: TextTable) -> str:
    """Return one table as Markdown."""
    heads, rows = table
    rule = "".join("---:|" if head.startswith(">") else "---|" for head in heads)
    lines = [[_plain(row), _plain(column), *cells] for row, column, *cells in rows]
    head, *body = (f"| {' | '.join(line)} |" for line in (_names(heads), *lines))
    return "\n".join([head, f"|{rule}", *body]) + "\n"


def markdown_summary(models: Sequence[TableModel]) -> str:
    """Return A_N of a few methods in the two main settings, published beside ours."""
    lines = ["| setting | method | published | ours | agrees |", "|---|---|---:|---:|---|"]
    for model in models:
        column, setting = SUMMARY.get(model.experiment.name, ("", ""))
        for name in ("UB", "Base", "GD", "DM"):
            if (row := model.row(name, column)) is not None:
                one = row.figures["A_N"]
                parts = setting, name, one.published_text, one.text, ANSWERS[one.verdict]
                lines.append(f"| {' | '.join(parts)} |")
                setting = ""
    return "\n".join(lines) + "\n"


def latex(groups: Groups) -> str:
    """Return all tables as LaTeX, for booktabs."""
    parts = []
    for model in (model for _, models in groups for model in models):
        heads, rows = model.text()
        kinds = "".join("r" if head.startswith(">") else "l" for head in heads)
        lines = [[cell.translate(_TEX) for cell in row] for row in (_names(heads), *rows)]
        head, *body = (" & ".join(line) + r" \\" for line in lines)
        parts += [f"% {model.experiment.name}", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", head]
        parts += [r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""]
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
            "seeds": " ".join(str(run["seed"]) for run in row.runs),
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
    csv.writer(out).writerows([lines[0], *(map(safe_cell, line.values()) for line in lines)])
    return out.getvalue()


def html(groups: Groups, heading: str) -> str:
    """Return the page: what is reproduced, all cells at a glance, and every table."""
    sections = [
        {
            "recipe": recipe,
            "headline": Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", headline(models, recipe))),
            "figures": [Markup(svg_of(glance(models, [metric]))) for metric in HEADLINE]
            if any(model.is_compared for model in models)
            else [],
            "tables": [(model, _names(model.text()[0]), model.text()[1]) for model in models],
        }
        for recipe, models in groups
    ]
    meanings = [(METRICS[name], text) for name, text in MEANINGS.items()]
    given = {"heading": heading, "legend": LEGEND, "groups": sections, "meanings": meanings}
    return render("report.html", **given, rerun=rerun)


def rerun(model: TableModel, row: Row) -> str:
    """Return the command that runs a cell again."""
    seeds, recipe = ",".join(map(str, row.seeds)), row.cell.config.recipe
    words = ["distillmatch", "suite", "run", model.experiment.name, "--cell", row.cell.name]
    words += ["--seeds", seeds, *(["--recipe", recipe] if recipe != "paper" else [])]
    return shlex.join(words)


def _names(heads: Sequence[str]) -> list[str]:
    return [head.removeprefix(">") for head in heads]


def _plain(text: str) -> str:
    """Return a name without what Markdown and HTML would take for more than text."""
    escaped = re.sub(r"([\\`*_{}\[\]()#|!~])", r"\\\1", text)
    return escaped.replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
