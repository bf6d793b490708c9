"""The report as text for other tools: Markdown, LaTeX with booktabs, and CSV."""

import csv
import re
from collections.abc import Iterator
from io import StringIO

from distillmatch.report.comparison import SHOWN
from distillmatch.report.paper_figures import stream_words
from distillmatch.report.paper_layout import Grid, Placed, grids
from distillmatch.report.paper_tables import (
    METRICS,
    VERDICTS,
    Entry,
    Paper,
    Record,
    Reproduced,
    entry_of,
    shown,
    shown_difference,
    shown_here,
    shown_published,
)

COLUMNS = (
    "experiment",
    "row",
    "column",
    "method",
    "readings",
    "metric",
    "published_mean",
    "published_deviation",
    "mean",
    "deviation",
    "seeds",
    "difference",
    "verdict",
    "at_least",
    "reason",
    "reason_state",
    "by_reading",
)
OTHERS = "other runs"
RELEASE = "release’s readings"


def markdown(paper: Paper) -> str:
    """Return every table as Markdown, a line for each figure."""
    marks = "; ".join(f"{mark} {meaning}" for mark, meaning in VERDICTS.values())
    key = f"{marks}." if paper.compared else "Nothing was published to judge them by."
    parts = [f"# {paper.heading}", f"Figures are in percent unless said otherwise. {key}"]
    for one in paper.reproduced:
        experiment = one.experiment
        parts.append(f"## {experiment.name}: {experiment.title}")
        parts.append(f"{experiment.source}. {experiment.note}".strip().replace("..", "."))
        beside = paper.beside(one)
        others = None if beside is None else list(_figures(beside))
        heads = ["row", "column", "metric", "paper", "here", "seeds", "difference", ""]
        heads += [] if others is None else [RELEASE]
        lines = [markdown_row(heads), "|---|---|---|---:|---:|---:|---:|---|"]
        lines[1] += "" if others is None else "---:|"
        for number, (record, entry) in enumerate(_figures(one)):
            judged = entry.published is not None or not entry.values
            cells = [
                record.cell.row,
                record.cell.column,
                METRICS[entry.metric],
                shown_published(entry),
                shown_here(entry),
                str(len(entry.values)),
                shown_difference(entry) or "–",
                _judged(entry) if judged else "–",
            ]
            cells += [] if others is None else [shown_here(others[number][1], mark=True)]
            lines.append(markdown_row(cells))
        parts.append("\n".join(lines))
    if paper.others:
        parts.append(f"## {OTHERS.capitalize()}")
        lines = [
            "| runs | stream | seeds | A_N | Ω | BWT | FGT |",
            "|---|---|---:|---:|---:|---:|---:|",
        ]
        for group in paper.others:
            entries = [entry_of(group.results, metric) for metric in SHOWN]
            figures = [shown(entry.mean, entry.deviation) for entry in entries]
            words = stream_words(group.results[0])
            lines.append(markdown_row([group.name, words, str(len(group.results)), *figures]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def latex(paper: Paper) -> str:
    """Return every table as LaTeX with booktabs, in a document that compiles as it is."""
    parts = [
        r"\documentclass{article}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage[utf8]{inputenc}",
        r"\usepackage{booktabs,graphicx}",
        r"\begin{document}",
        r"% Beside each other: published, reproduced, and where some were run reproduced with the",
        r"% readings of the authors' release. $\bullet$ within two published deviations,",
        r"% $\uparrow$ and $\downarrow$ beyond them, $\circ$ published without a deviation.",
    ]
    for one in paper.reproduced:
        parts += [_latex_table(grid, one) for grid in grids(one, paper.beside(one))]
    return "\n".join([*parts, r"\end{document}"]) + "\n"


def tidy_csv(paper: Paper) -> str:
    """Return one line for each cell and metric, figures in full precision.

    An experiment of which something was run with the release's readings has its lines twice.
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in paper.reproduced:
        for readings, of in (("protocol", one), ("release", paper.beside(one))):
            for record, entry in _figures(of) if of is not None else ():
                place = [one.experiment.name, record.cell.row, record.cell.column, record.method]
                writer.writerow([*place, readings, *_csv_figures(entry)])
    for group in paper.others:
        place = [OTHERS, group.name, stream_words(group.results[0]), group.method, ""]
        for metric in SHOWN:
            writer.writerow([*place, *_csv_figures(entry_of(group.results, metric))])
    return text.getvalue()


def _judged(entry: Entry) -> str:
    """Return the verdict on a figure in words, and the reason of one that differs."""
    said = " ".join(VERDICTS[entry.verdict])
    return said if entry.why is None else f"{said}: {entry.why}"


def _figures(one: Reproduced) -> Iterator[tuple[Record, Entry]]:
    for record in one.records:
        for entry in record.entries:
            yield record, entry


def _csv_figures(entry: Entry) -> list[object]:
    published = entry.published
    figures = [
        published and published.mean,
        published and published.deviation,
        entry.mean,
        entry.deviation,
        len(entry.values),
        entry.difference,
    ]
    kept = ["" if figure is None else f"{figure:.6g}" for figure in figures]
    why = ["", "", ""]
    if entry.why is not None:
        other = entry.why.by_reading and entry.why.by_reading.mean
        why = [entry.why.reason.name, entry.why.state, "" if other is None else f"{other:.6g}"]
    return [entry.metric, *kept, entry.verdict, "yes" if entry.at_least else "", *why]


def markdown_row(cells: list[str]) -> str:
    """Return one row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def unbroken(text: str) -> str:
    """Return text that stays on one line, however narrow a table."""
    return text.replace(" ", "\u00a0")


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "Ω": r"$\Omega$",
    "ℓ": r"$\ell$",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "δ": r"$\delta$",
    "τ": r"$\tau$",
    "λ": r"$\lambda$",
}
_LATEX_MARKS = {
    "within": r"$^{\bullet}$",
    "above": r"$^{\uparrow}$",
    "below": r"$^{\downarrow}$",
    "unjudged": r"$^{\circ}$",
    "open": "",
}


def latex_escaped(text: str) -> str:
    """Return text that LaTeX sets as it stands."""
    parts = re.split(r"((?<!\w)[Aℓ]_[A-Za-z]+)", text)
    return "".join(
        _latex_symbol(part) if number % 2 else "".join(_LATEX.get(c, c) for c in part)
        for number, part in enumerate(parts)
    )


def _latex_symbol(symbol: str) -> str:
    """Return a letter with its index as mathematics."""
    letter, _, index = symbol.partition("_")
    sign = r"\ell" if letter == "ℓ" else letter
    return rf"${sign}_{{\mathrm{{{index}}}}}$" if len(index) > 1 else f"${sign}_{index}$"


def _latex_table(grid: Grid, one: Reproduced) -> str:
    caption = f"{one.experiment.title}. {grid.caption} ({one.experiment.source})."
    named = ["paper", "here"]
    if any(placed and placed.by_release for line in grid.lines for placed in line.figures):
        named.append("release")
    figures = len(grid.groups) * len(grid.metrics)
    width = len(named) * len(grid.metrics)
    groups = " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{latex_escaped(g)}}}" for g in grid.groups)
    rules = " ".join(
        rf"\cmidrule(lr){{{2 + n * width}-{1 + (n + 1) * width}}}" for n in range(len(grid.groups))
    )
    metrics = " & ".join(
        rf"\multicolumn{{{len(named)}}}{{c}}{{{latex_escaped(METRICS[m])}}}"
        for _ in grid.groups
        for m in grid.metrics
    )
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{latex_escaped(caption)}}}",
        r"\resizebox{\linewidth}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * len(named) * figures}}}",
        r"\toprule",
    ]
    if any(grid.groups):
        lines += [rf" & {groups} \\", rules]
    lines += [
        rf" & {metrics} \\",
        " & ".join(["", *named * figures]) + r" \\",
        r"\midrule",
    ]
    for line in grid.lines:
        cells = [latex_escaped(line.label)]
        for placed in line.figures:
            cells += [""] * len(named) if placed is None else _latex_figures(placed)[: len(named)]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table}"]
    return "\n".join(lines)


def _latex_figures(placed: Placed) -> list[str]:
    """Return a figure as it was published, as it is here, and by the release's readings."""
    printed = latex_escaped(shown_published(placed.entry))
    return [printed, _latex_here(placed.entry), _latex_here(placed.by_release)]


def _latex_here(entry: Entry | None) -> str:
    mark = "" if entry is None or entry.published is None else _LATEX_MARKS[entry.verdict]
    return latex_escaped(shown_here(entry)) + mark
