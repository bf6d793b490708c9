"""Figures beyond two published deviations, with what the release's readings make of them."""

from typing import Any

import pytest
from made_up import made_up_result

from distillmatch.config import RunConfig
from distillmatch.report.paper_report import paper_of
from distillmatch.report.reproduction_beyond import beyond_part, figures_beyond

MAIN: dict[str, Any] = {"source": "cifar100", "tasks": 10}


def made(method: str, accuracy: float, **options: Any) -> dict[str, Any]:
    """A run with this A_N, and without the other figures that are published."""
    result = made_up_result(RunConfig(method=method, **{**MAIN, **options}))
    result["metrics"] |= {"A_N": accuracy, "bwt": None, "fgt": None}
    return result


@pytest.mark.parametrize(
    ("release", "answer"),
    [
        (37.0, "within"),
        (38.9, "within"),
        (39.0, "nearer"),
        (36.0, "nearer"),
        (40.0, "no nearer"),
        (30.0, "no nearer"),
        (None, "not yet run"),
    ],
)
def test_the_release_brings_a_figure_within_or_nearer_or_neither(
    release: float | None, answer: str
) -> None:
    """37.5 ± 0.7 is published of DM, and 40 lies beyond that."""
    results = [made("dm", 40.0)]
    if release is not None:
        results.append(made("dm", release, preset="release"))
    (found,) = figures_beyond(paper_of(results, ["table-2a"]))
    assert (found.place, found.entry.metric, found.answer) == (
        "table-2a, DM/10 tasks",
        "A_N",
        answer,
    )


def test_what_is_within_or_published_without_a_deviation_is_no_such_figure() -> None:
    paper = paper_of([made("dm", 38.0), made("offline", 20.0, seed=2)], ["table-2a"])
    assert not list(figures_beyond(paper))
    assert beyond_part(paper) == (
        "Figures beyond two published deviations: 0 of 1 with our readings."
    )


def test_a_figure_that_several_tables_print_comes_once() -> None:
    paper = paper_of([made("dm", 45.0)], ["table-2a", "table-3a", "table-6", "readings"])
    assert [one.place for one in figures_beyond(paper)] == ["table-2a, DM/10 tasks"]


def test_the_part_counts_them_and_lists_each_with_both_figures() -> None:
    results = [
        made("dm", 40.0), made("dm", 39.4, preset="release"), made("gd", 30.0), made("base", 8.2),
        made("dr", 7.0), made("dr", 8.4, preset="release"),
    ]  # fmt: skip
    text = beyond_part(paper_of(results, ["table-2a"])).replace("\u00a0", " ")
    assert text.startswith(
        "Figures beyond two published deviations: 3 of 4 with our readings, 1 of 2 with the "
        "release’s. Of the former 3, with the release’s: 1 within them, 1 nearer, but still beyond "
        "them, 1 not yet run."
    )
    assert [line for line in text.splitlines() if line.startswith("| table-2a")] == [
        "| table-2a, DR/10 tasks | A_N | 8.3 ± 0.3 | 7.0 ▼ | 8.4 ● | within them |",
        "| table-2a, GD/10 tasks | A_N | 21.4 ± 0.6 | 30.0 ▲ | – | not yet run |",
        "| table-2a, DM/10 tasks | A_N | 37.5 ± 0.7 | 40.0 ▲ | 39.4 ▲ | "
        "nearer, but still beyond them |",
    ]
