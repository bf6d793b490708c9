"""What the report says of stored images: what Base needs to reach what a method reaches."""

import csv
import re
from io import StringIO
from typing import Any

import pytest
from made_up import made_up_ledger
from made_up import made_up_run as run

from distillmatch.report.paper_figures import experiment_figures
from distillmatch.report.paper_memory import unlabeled_per_task
from distillmatch.report.paper_tables import (
    Entry,
    Reproduced,
    gather,
    shown_difference,
    shown_here,
)
from distillmatch.report.paper_text import markdown, tidy_csv
from distillmatch.suite.catalogue import Published, load_experiment


def test_the_memory_budget_is_read_off_the_line_of_base() -> None:
    figure = load_experiment("figure-3")
    results = made_up_ledger([figure], (1,))
    one = gather([figure], results).reproduced[0]
    omegas = {
        record.cell.config.coreset: record.entries[0].mean or 0.0
        for record in one.records
        if record.method == "base"
    }
    sizes = sorted(omegas)
    dm = next(record for record in one.records if record.method == "dm")
    reached = dm.entries[0].mean
    assert reached is not None
    place = next(n for n, size in enumerate(sizes) if omegas[size] >= reached)
    low, high = sizes[place - 1], sizes[place]
    share = (reached - omegas[low]) / (omegas[high] - omegas[low])
    stored = low + share * (high - low)
    assert [entry.mean for entry in dm.entries[1:]] == pytest.approx([stored, stored / 4000])
    drawing = experiment_figures(gather([figure], results))["figure-3"][0].drawing
    assert f"DM: {stored:.0f} stored, {stored / 4000:.2f} per image" in drawing


def test_a_task_of_the_paper_shows_four_thousand_unlabelled_images() -> None:
    assert unlabeled_per_task(run("dm", tasks=10)) == 4000
    assert unlabeled_per_task(run("dm", tasks=10, unlabeled_per_task=100)) == 100
    assert unlabeled_per_task(run("dm", source="somewhere:else")) is None


def without_large_coresets(largest: int) -> list[dict[str, Any]]:
    """Make the runs of figure 3, Base's with at most so many stored images."""
    results = made_up_ledger([load_experiment("figure-3")], (1,))
    return [result for result in results if result["config"].get("coreset", 0) <= largest]


def reproduced(results: list[dict[str, Any]]) -> Reproduced:
    return gather([load_experiment("figure-3")], results).reproduced[0]


def test_what_base_never_reached_is_worth_more_than_all_that_was_measured() -> None:
    results = without_large_coresets(200)
    dm = reproduced(results).record("DM", "0")
    assert dm is not None
    omega, stored, saved = dm.entries
    assert (stored.mean, saved.mean) == (200, 200 / 4000)
    assert [shown_here(one) for one in (stored, saved)] == ["> 200", "> 0.05"]
    assert [shown_difference(one) for one in (stored, saved)] == ["> −735", "> −0.18"]
    assert not omega.at_least
    paper = gather([load_experiment("figure-3")], results)
    assert paper.reproduced[0].counts[-1] == 0, "it was run"
    drawing = experiment_figures(paper)["figure-3"][0].drawing
    assert "DM: &gt; 200 stored" in drawing
    assert "| DM | 0 | stored images | 935 | > 200 |" in markdown(paper)
    rows = {
        row["metric"]: row
        for row in csv.DictReader(StringIO(tidy_csv(paper)))
        if row["row"] == "DM"
    }
    assert [rows[one.metric]["at_least"] for one in dm.entries] == ["", "yes", "yes"]


def test_a_single_seed_beyond_all_that_was_measured_makes_the_mean_a_least_one() -> None:
    figure = load_experiment("figure-3")
    first, second = (made_up_ledger([figure], (seed,)) for seed in (1, 2))
    dm = next(result for result in second if result["method"] == "dm")
    dm["metrics"]["accuracies"] = [99.0] * 10
    one = gather([figure], [*first, *second]).reproduced[0]
    of_both = one.record("DM", "0")
    of_first = reproduced(first).record("DM", "0")
    assert of_both is not None and of_first is not None
    stored = of_both.entries[1]
    known, least = stored.values
    assert least == 1200
    assert known < 1200
    assert stored.at_least and not of_first.entries[1].at_least
    assert stored.deviation is None
    assert shown_here(stored) == f"> {(known + least) / 2:.0f}"


def test_a_least_figure_is_rounded_down_and_none_other() -> None:
    least = Entry("memory_saving", Published(0.1, None), (0.2957,), at_least=True)
    assert (shown_here(least), shown_difference(least)) == ("> 0.29", "> +0.19")
    known = Entry("memory_saving", Published(0.1, None), (0.2957,))
    assert (shown_here(known), shown_difference(known)) == ("0.30", "+0.20")
    whole = Entry("memory_saving", Published(0.5, None), (0.29,), at_least=True)
    assert (shown_here(whole), shown_difference(whole)) == ("> 0.29", "> −0.21")


@pytest.mark.parametrize(
    ("published", "verdict"),
    [((935, 10), "above"), ((1195, 10), "unjudged"), ((1500, 10), "unjudged")],
)
def test_a_least_figure_is_judged_only_where_nothing_higher_could_change_it(
    published: tuple[float, float], verdict: str
) -> None:
    entry = Entry("equivalent_coreset", Published(*published), (1200.0,), at_least=True)
    assert entry.verdict == verdict


def test_with_a_single_coreset_there_is_nothing_to_measure_by() -> None:
    dm = reproduced(without_large_coresets(0)).record("DM", "0")
    assert dm is not None
    assert [entry.verdict for entry in dm.entries[1:]] == ["open", "open"]
    assert [shown_here(entry) for entry in dm.entries[1:]] == ["–", "–"]


def test_a_legend_cuts_the_name_and_not_what_it_is_worth() -> None:
    memory = load_experiment("memory")
    drawing = experiment_figures(gather([memory], made_up_ledger([memory], (1,))))["memory"][0]
    said = re.findall(r">([^<>]+) <tspan", drawing.drawing)
    assert [re.sub("[0-9]{3,4}", "N", one) for one in said[2:]] == [
        "everything accepted: N stored",
        "everything accepted,…: N stored",
    ]
