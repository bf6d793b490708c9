"""The report as one page that needs nothing else: tables, figures, and a little script."""

from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from string import Template

from distillmatch.report.paper_agreement import agreement_figures
from distillmatch.report.paper_figures import (
    Figure,
    accuracy_figures,
    auroc_figures,
    experiment_figures,
    groups_shown,
    matrix_figures,
    quality_figures,
)
from distillmatch.report.paper_html import (
    figures_html,
    folded_figures_html,
    grids_html,
    method_switch,
    metric_html,
    others_html,
    overview_html,
    reasons_html,
    runs_html,
    streams_html,
    with_indices,
)
from distillmatch.report.paper_layout import grids
from distillmatch.report.paper_reasons import states_in_words
from distillmatch.report.paper_streams import StreamPicture
from distillmatch.report.paper_svg import DARK, LIGHT, STYLE, looks, marker
from distillmatch.report.paper_tables import MEANINGS, METRICS, Paper, Reproduced, Verdict
from distillmatch.report.reproduction_beyond import figures_beyond

COUNTED: tuple[tuple[tuple[Verdict, ...], str, str, str], ...] = (
    (("within",), "●", "within two deviations", "within"),
    (("above", "below"), "▲▼", "beyond two deviations", "above"),
    (("unjudged",), "◇", "not judged", "unjudged"),
    (("open",), "○", "not yet run", "open"),
)
RELEASE_KEY = (
    "What stands behind “release” was run with the readings of the authors’ release, where it and "
    "the paper differ or the paper is silent (--preset release); it counts for no state."
)


def page(paper: Paper, pictures: Sequence[StreamPicture]) -> str:
    """Return the whole page."""
    template = (files("distillmatch.report") / "paper.html").read_text(encoding="utf-8")
    figures = experiment_figures(paper)
    return Template(template).substitute(
        light=LIGHT,
        dark=DARK,
        figure_style=STYLE,
        heading=escape(paper.heading),
        lead=escape(lead(paper)),
        counts=_counts(paper),
        switches=_switches(paper),
        key=_key(paper),
        overview=overview_html(paper.reproduced) + figures_html(agreement_figures(paper)),
        reasons=_reasons(paper),
        experiments="\n".join(
            _section(one, paper.beside(one), figures[one.experiment.name])
            for one in paper.reproduced
        ),
        others=_others(paper),
        diagnostics=_diagnostics(paper),
        streams=_streams(pictures),
        runs=runs_html(paper.results),
        made=f"Made by distillmatch {escape(version('distillmatch'))} from "
        f"{len(paper.results)} results.",
    )


def lead(paper: Paper) -> str:
    """Return the state of the reproduction in one sentence."""
    runs = len(paper.results)
    compared = "beside the published figures"
    if not paper.compared:
        place = "on the embedded data, " if paper.small else ""
        compared = f"{place}for which nothing was published"
    parts = (
        (paper.of_paper, "of the paper’s tables and figures"),
        (paper.beyond, "of experiments beyond it"),
    )
    counts = [f"{_cells_run(part)} cells {words}" for part, words in parts if part]
    return (
        f"{runs} run{'s' if runs != 1 else ''} {compared}: "
        f"{' and '.join(counts)} have at least one seed."
    )


def _cells_run(reproduced: Sequence[Reproduced]) -> str:
    run = sum(one.cells_run for one in reproduced)
    return f"{run} of {sum(len(one.records) for one in reproduced)}"


def _counts(paper: Paper) -> str:
    """Return how the published figures stand, or the cells where nothing was published."""
    if paper.compared:
        counts = [
            (sum(one.counted(*verdicts) for one in paper.of_paper), mark, words, kind)
            for verdicts, mark, words, kind in COUNTED
        ]
    else:
        run = sum(one.cells_run for one in paper.reproduced)
        cells = sum(len(one.records) for one in paper.reproduced)
        counts = [(run, "■", "cells run", ""), (cells - run, "○", "cells not yet run", "open")]
    return "".join(
        f'<li><b>{count}</b><span class="{kind}"><span aria-hidden="true">{mark}</span> '
        f"{words}</span></li>"
        for count, mark, words, kind in counts
    )


def _switches(paper: Paper) -> str:
    methods = paper.methods
    boxes = []
    for method, look in zip(methods, looks(methods), strict=True):
        mark = marker(8, 8, look.marker, size=4.5)
        drawing = (
            f'<svg class="plot" viewBox="0 0 16 16" aria-hidden="true"><g class="{look.color}">'
            f"{mark}</g></svg>"
        )
        boxes.append(method_switch(method, drawing))
    return "".join(boxes)


def _key(paper: Paper) -> str:
    used = {metric for one in paper.reproduced for metric in one.experiment.metrics}
    meanings = "; ".join(
        f"<b>{metric_html(metric)}</b>: {escape(MEANINGS[metric])}"
        for metric in METRICS
        if metric in used
    )
    judged = (
        "A figure is judged by two published standard deviations: ● within them, ▲ higher, "
        "▼ lower, ◇ published without one or not measured here, ○ not yet run. Several tables "
        "share some figures, and each counts them."
        f"{' ' + RELEASE_KEY if any(map(paper.beside, paper.reproduced)) else ''}"
        if paper.compared
        else "No figure is judged: nothing was published. Several tables share some runs, and each "
        "counts them."
    )
    return f'{judged}</p><p class="note">In percent. {meanings}.'


def _section(one: Reproduced, beside: Reproduced | None, figures: Sequence[Figure]) -> str:
    experiment = one.experiment
    note = f'<p class="note">{with_indices(experiment.note)}</p>' if experiment.note else ""
    source = f" · {escape(experiment.source)}" if experiment.source else ""
    tables = grids_html(grids(one, beside), figures, len(experiment.seeds))
    name = escape(experiment.name)
    return (
        f'<section id="{name}"><p class="source"><code>{name}</code>{source}</p>'
        f"<h2>{escape(experiment.title)}</h2>{note}\n"
        f"{tables}</section>"
    )


def _reasons(paper: Paper) -> str:
    given = [one.entry.why for one in figures_beyond(paper)]
    if not any(given):
        return ""
    return (
        '<section id="reasons"><h2>Why figures differ</h2><p class="note">What is known of each '
        "figure beyond two published deviations, with how sure that is; a figure that several "
        "tables print is counted once. Shown: within them with the readings of the authors’ "
        "release, all of them or the one that is named, or by the runs’ own figures. Reasons: "
        f"{states_in_words(given)}.</p>{reasons_html(given)}</section>"
    )


def _others(paper: Paper) -> str:
    if not paper.others:
        return ""
    figures = accuracy_figures(paper.others) + auroc_figures(
        paper.others, "auroc-others", "other runs"
    )
    return (
        '<section id="others"><h2>Other runs</h2><p class="note">Runs that belong to none of the '
        f"experiments above.</p>{others_html(paper.others)}{figures_html(figures)}</section>"
    )


def _diagnostics(paper: Paper) -> str:
    groups = groups_shown(paper)
    quality, matrices = quality_figures(groups), matrix_figures(groups)
    parts = []
    if quality:
        parts.append(
            '<section id="quality"><h2>Pseudo-labels over tasks</h2><p class="note">Of the images '
            "that the gate accepted in a task: how many there were, how many are truly of past "
            "classes, and how many got their true class as label. The truth is for this diagnosis "
            f"alone.</p>{figures_html(quality)}</section>"
        )
    if matrices:
        parts.append(
            '<section id="matrices"><h2>Accuracy matrices</h2><p class="note">R: accuracy on each '
            "task’s test images after each task, predicting among all classes seen, mean over "
            f"seeds.</p>{folded_figures_html(matrices)}</section>"
        )
    return "\n".join(parts)


def _streams(pictures: Sequence[StreamPicture]) -> str:
    if not pictures:
        return ""
    return (
        '<section id="streams"><h2>Streams</h2><p class="note">What each task shows: labelled '
        f"images above, unlabelled ones below.</p>{streams_html(pictures)}</section>"
    )
