"""The page of the reproduction: made from the ledger, with lines that rerun what they say."""

import json
import shlex
from argparse import ArgumentParser, Namespace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from made_up import made_up_ledger, made_up_result

from distillmatch.cli import main, make_parser
from distillmatch.cli.options import config_from
from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.report.paper_reasons import read_reasons, with_reasons
from distillmatch.report.paper_report import paper_of
from distillmatch.report.paper_tables import Paper, gather, read_results
from distillmatch.report.reproduction_bars import Bar, bars, release_bars
from distillmatch.report.reproduction_page import MADE, PARTS, page_with
from distillmatch.report.rerun import cell_line, experiment_line, run_line
from distillmatch.run.result import recorded_config
from distillmatch.suite.catalogue import experiment_names, load_experiment
from distillmatch.suite.identity import bound_config, identity, run_name, shared_config
from distillmatch.suite.plan import plan

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reproduction.md"
EMPTY = "\n".join(
    f"before {name}\n<!-- {name}: {MADE} -->\nold\n<!-- {name}: end -->\nafter {name}"
    for name in PARTS
)
MAIN = {"source": "cifar100", "tasks": 10}
Result = dict[str, Any]


def made(method: str, accuracy: float, seed: int = 1, **options: Any) -> Result:
    """Make a result whose last accuracy is the given one, and the others are 80."""
    return made_of(RunConfig(method=method, seed=seed, **{**MAIN, **options}), accuracy)


def made_of(config: RunConfig, accuracy: float) -> Result:
    result = made_up_result(config)
    result["metrics"]["A_N"] = accuracy
    result["metrics"]["accuracies"][:] = [80.0] * 9 + [accuracy]
    return result


def page_of(results: list[Result], *names: str) -> str:
    return page_with(EMPTY, paper_of(results, names), Path("page.md"))


def row(page: str, *begin: str) -> list[str]:
    """Return the cells of the only row that begins with the given ones."""
    head = "| " + " | ".join(begin) + " |"
    (line,) = [line for line in page.splitlines() if line.startswith(head)]
    return [cell.strip().replace("\u00a0", " ") for cell in line.strip("|").split("|")]


# The page and its marks


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text("utf-8")
    reasons = read_reasons(ROOT / "results" / "reasons.yaml")
    paper = with_reasons(paper_of(read_results([ROOT / "results"])), reasons)
    new = page_with(text, paper, PAGE)
    assert new == text, (
        "docs/reproduction.md is out of date: run `distillmatch report --reproduction "
        "docs/reproduction.md`"
    )


def test_what_stands_around_the_parts_survives(tmp_path: Path) -> None:
    ledger, page = tmp_path / "results", tmp_path / "page.md"
    page.write_text(EMPTY, encoding="utf-8")
    ledger.mkdir()
    for accuracy in (40.0, 41.0):
        text = json.dumps(made("dm", accuracy))
        (ledger / "one.json").write_text(text, encoding="utf-8")
        words = ["report", "--ledger", str(ledger), "--reproduction", str(page)]
        assert main(words) == 0
        new = page.read_text("utf-8")
        assert "old" not in new and f"| {accuracy} |" in new
        for name in PARTS:
            assert f"before {name}\n" in new and f"\nafter {name}" in new


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"page.md: expected the lines '<!-- bars: .* end -->'"):
        page_with("nothing", paper_of([made("dm", 40)], ["table-2a"]), Path("page.md"))


def test_experiments_without_a_run_are_left_out() -> None:
    page = page_of([made("dm", 40)], "table-2a", "table-2b", "gates")
    assert "### table-2a" in page and "### gates" in page and "### table-2b" not in page


# Tables


def test_a_cell_shows_published_reproduced_difference_and_mark() -> None:
    seen = [36.0, 37.0, 38.5]
    page = page_of([made("dm", a, seed) for seed, a in enumerate(seen, 1)], "table-2a")
    ours = f"{fmean(seen):.1f} ± {stdev(seen):.1f} (−{37.5 - fmean(seen):.1f}) ●"
    assert row(page, "DM", "10 tasks") == [
        "DM", "10 tasks", "3", "37.5 ± 0.7", ours, "76.9 ± 2.5", "no bound",
    ]  # fmt: skip
    assert row(page, "GD", "5 tasks") == [
        "GD", "5 tasks", "not run", "32.1 ± 0.2", "–", "69.9 ± 0.9", "–",
    ]  # fmt: skip


def test_runs_by_the_release_stand_beside_ours() -> None:
    page = page_of([made("dr", 7.0), made("dr", 8.4, preset="release")], "table-2a", "gates")
    ours, theirs = "7.0 (−1.3) ▼", "8.4 (+0.1) ●"
    assert row(page, "DR", "10 tasks") == [
        "DR", "10 tasks", "1", "8.3 ± 0.3", ours, theirs, "36.4 ± 0.2", "no bound", "no bound",
    ]  # fmt: skip
    assert row(page, "DR", "5 tasks")[2:] == [
        "not run",
        "16.0 ± 0.9",
        "–",
        "–",
        "53.7 ± 0.7",
        "–",
        "–",
    ]
    suite = "distillmatch suite run table-2a --preset release "
    lines = [line for line in page.splitlines() if line.startswith(suite)]
    assert len(lines) == 1 and "--cell 'DR/10 tasks' --seeds 1" in lines[0]
    alone = page_of([made("dr", 8.4, preset="release")], "table-2a", "table-2b")
    assert row(alone, "DR", "10 tasks")[2:6] == ["not run", "8.3 ± 0.3", "–", theirs]
    assert "### table-2b" not in alone
    heads = [
        line for line in page_of([made("dr", 7.0)], "table-2a").splitlines() if "| row" in line
    ]
    assert heads and not any("release’s readings" in head for head in heads)


def test_a_figure_over_fewer_seeds_than_were_run_says_so() -> None:
    page = page_of([made("offline", 50), made("dm", 40), made("dm", 41, 2)], "table-2a")
    omega = (9 * 100 + 100 * 40 / 50) / 10
    assert row(page, "DM", "10 tasks")[-1] == f"{omega:.1f}, 1 seed (+{omega - 76.9:.1f}) ▲"


def test_rows_beyond_the_paper_are_compared_with_the_first_over_shared_seeds() -> None:
    results = [made("dm", 40, 1), made("dm", 44, 2), made("dm", 90, 3)]
    results += [made("dm", 41, 1, gate="energy"), made("dm", 47, 2, gate="energy")]
    page = page_of(results, "gates")
    assert row(page, "detector", "10 tasks")[3:5] == ["58.0 ± 27.8", "–"]
    gain = fmean([41 - 40, 47 - 44])
    softer = page_of([made("dm", 40), made("dm", 39.99, gate="softmax")], "gates")
    assert row(softer, "softmax", "10 tasks")[4] == "+0.0"
    assert row(page, "energy", "10 tasks")[2:5] == ["2", "44.0 ± 4.2", f"+{gain:.1f}"]
    assert row(page, "softmax", "10 tasks")[2:5] == ["not run", "–", "–"]
    assert "Published for detector, 10 tasks: A_N 37.5 ± 0.7, Ω 76.9 ± 2.5, FGT 6.5 ± 0.5." in page


def test_every_run_is_listed_with_where_it_came_from() -> None:
    result = made("dm", 40, gate="energy")
    name = run_name(RunConfig(method="dm", gate="energy", **MAIN))
    cells = row(page_of([result], "table-2a"), name)
    assert cells[1:3] == ["40.0", "–"] and cells[4] == f"{result['seconds']['total']:.0f}"
    assert cells[5:] == ["CPU, float32", "01234567"]
    result["machine"]["runs_at_once"] = 3
    assert row(page_of([result], "table-2a"), name)[5] == "CPU, float32, 3 runs at once"


# Lines that rerun


@cache
def parser() -> ArgumentParser:
    return make_parser()


def parsed(line: str) -> Namespace:
    """Read a line as the shell and the command line read it."""
    return parser().parse_args(shlex.split(line)[1:])


def planned_by(line: str) -> list[RunConfig]:
    """Return the runs that a line of `suite run` plans."""
    arguments = parsed(line)
    assert arguments.ledger == Path("runs/again/results"), "the real ledger has them already"
    experiments = [load_experiment(name) for name in arguments.names]
    return [run.config for run in plan(experiments, arguments.seeds, cells=arguments.cells)]


@pytest.mark.parametrize("name", experiment_names())
def test_the_line_of_a_cell_selects_that_cell_and_its_bound(name: str) -> None:
    experiment = load_experiment(name)
    (run,) = gather([experiment], made_up_ledger([experiment], (2,))).reproduced
    (open_,) = gather([experiment], []).reproduced
    for one, seeds in ((run, (2,)), (open_, experiment.seeds)):
        for record in one.records:
            wanted = []
            for seed in seeds:
                config = record.cell.config.replace(seed=seed)
                wanted += [run_name(shared_config(config)), run_name(bound_config(config))]
            found = [run_name(config) for config in planned_by(cell_line(one, record))]
            assert sorted(found) == sorted(set(wanted))
        everything = {run_name(config) for config in planned_by(experiment_line(one))}
        assert everything == {run.name for run in plan([experiment], seeds)}


def odd_configs() -> list[RunConfig]:
    return [
        RunConfig(method="own:Method", options={"rate": 0.5, "name": "a b", "on": True}),
        RunConfig(clip=None, task_sizes=(5, 10, 45), true_positive_rate=0.7, seed=3),
        RunConfig(source="tiny-imagenet", preset="release", similarity="cosine", coreset=20),
        RunConfig(method="base", base_distillation=True, unlabeled="positive", order="parent"),
        RunConfig(class_order=("two words", "three"), task_sizes=(1, 1), learning_rate=0.05),
    ]


def test_the_line_of_a_run_describes_that_run() -> None:
    experiments = [load_experiment(name) for name in experiment_names()]
    for config in [*(run.config for run in plan(experiments, [2])), *odd_configs()]:
        line = run_line({"config": recorded_config(config)})
        arguments = parsed(line)
        assert identity(config_from(arguments, RunConfig)) == identity(config), line
        assert arguments.out == Path("runs/again") / run_name(config)


def test_a_line_of_a_preset_says_so() -> None:
    results = [made("dr", 9, preset="release"), made("dr", 9, 2, preset="release")]
    (one,) = paper_of(results, ["table-2a"]).by_release
    record = one.record("DR", "10 tasks")
    assert record is not None
    for line, cells in (
        (experiment_line(one), one.experiment.cells),
        (cell_line(one, record), [record.cell]),
    ):
        arguments = make_parser().parse_args(shlex.split(line)[1:])
        assert arguments.preset == "release" and arguments.seeds == (1, 2)
        runs = {
            run.name
            for run in plan([load_experiment("table-2a", "release")], [1, 2], cells=arguments.cells)
        }
        assert {run_name(cell.config.replace(seed=2)) for cell in cells} <= runs


# Bars


def bars_of(*results: Result, names: tuple[str, ...] = ("table-2a",)) -> list[Bar]:
    return bars(paper_of(list(results), names))


def bar(found: list[Bar], words: str) -> Bar:
    (one,) = [one for one in found if words in one.aim]
    return one


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        ((36.6, 36.5, 36.4), "met"),
        ((36.6, 36.5, 36.3), "not met"),
        ((50.0, 50.0), "not yet run"),
        ((), "not yet run"),
    ],
)
def test_dm_must_reach_both_figures_on_three_seeds(seen: tuple[float, ...], state: str) -> None:
    results = [made("base", 8)]
    for seed, accuracy in enumerate(seen, 1):
        results += [made("offline", 57, seed), made("dm", accuracy, seed)]
    one = bar(bars_of(*results), "DM, table-2a, 10 tasks")
    assert one.state == state
    if len(seen) < 3:
        assert one.figures.startswith(f"{len(seen)} of 3 seeds")


def test_omega_of_dm_counts_as_well() -> None:
    results = [made("dm", 40, seed) for seed in (1, 2, 3)]
    bounds = [made("offline", 57, seed) for seed in (1, 2, 3)]
    for result in results:
        result["metrics"]["accuracies"][:] = [40.0] * 10
    assert bar(bars_of(*results, *bounds), "DM, table-2a").state == "not met"


def test_the_order_of_methods_is_that_of_the_paper() -> None:
    learners = [("base", 8.2), ("e2e", 7.5), ("dr", 8.3), ("gd", 21.0), ("dm", 37.0)]
    whole = [made("offline", 57), *(made(method, a) for method, a in learners)]
    assert bar(bars_of(*whole), "order").state == "met"
    part = bar(bars_of(whole[0], whole[1], whole[5]), "order")
    assert part.state == "met so far" and part.figures.endswith("not yet run: E2E, DR, GD")
    assert part.figures.startswith("A_N: UB 57.0 > DM 37.0 > Base 8.2; Ω: UB 100.0 > DM 96.5 > ")
    swapped = bar(bars_of(*whole[:2], made("e2e", 8.25), *whole[3:]), "order")
    assert swapped.state == "not met"
    words = "otherwise in the paper: A_N of Base and E2E (8.2 ± 0.1 > 7.5 ± 0.5), Ω of Base and E"
    assert words in swapped.figures


def test_pairs_that_the_paper_does_not_tell_apart_are_named_as_such() -> None:
    learners = [made("base", 3.9, tasks=20), made("e2e", 4.1, tasks=20)]
    close = bar(bars_of(*learners), "20 tasks: the order")
    words = "otherwise by less than its deviations: A_N of Base and E2E (4.3 ± 0.4 > 4.0 ± 0.3)"
    assert words in close.figures and "otherwise in the paper" not in close.figures
    learners += [made("gd", 13.4, tasks=20), made("dm", 13.0, tasks=20)]
    both = bar(bars_of(*learners), "20 tasks: the order")
    assert "otherwise in the paper: A_N of DM and GD" in both.figures and words in both.figures
    assert close.state == "not met, by less than the paper’s deviations"
    assert both.state == "not met"


def test_figures_that_the_paper_prints_alike_have_no_order() -> None:
    for base, dr in ((4.0, 5.0), (5.0, 4.0)):
        seen = [made("base", base, tasks=20), made("dr", dr, tasks=20)]
        assert bar(bars_of(*seen), "20 tasks: the order").state == "met so far"


def test_columns_that_tables_share_are_judged_once() -> None:
    seen = [made("base", 8.2), made("dm", 37.5)]
    found = bars_of(*seen, names=("table-2a", "table-6", "ablation-random", "figure-3", "gates"))
    assert [one.aim for one in found if "order" in one.aim] == [
        "table-2a, 10 tasks: the order of the methods as published"
    ]


@pytest.mark.parametrize(
    ("seen", "state"), [(10.2, "met so far"), (10.25, "not met"), (6.15, "not met")]
)
def test_baselines_must_be_near_what_was_published(seen: float, state: str) -> None:
    found = bars_of(made("base", seen))
    assert bar(found, "Base: A_N within 2 points").state == state
    assert bar(found, "E2E: A_N within").state == "not yet run"
    assert "1 of 3 configurations run" in bar(found, "Base: A_N").figures


def test_one_run_that_serves_three_columns_is_one_configuration() -> None:
    seen = made("base", 14, order="parent", tasks=None, coreset=400)
    one = bar(bars_of(seen, names=("table-2c",)), "Base: A_N")
    assert one.state == "met" and one.figures.count("14.0") == 1


def test_runs_by_the_release_are_judged_apart() -> None:
    base = made("base", 8.0, preset="release", base_distillation=True)
    results = [base, made("dr", 7.0, preset="release"), made("dr", 8.3), made("base", 8.2)]
    paper = paper_of(results, ["table-2a"])
    assert bar(release_bars(paper), "order").state.startswith("not met, by less")
    assert bar(release_bars(paper), "Base: A_N").figures.startswith("table-2a, 10 tasks: 8.0,")
    assert bar(bars(paper), "order").state == "met so far"
    assert not any("DM" in one.aim for one in release_bars(paper))


def test_an_order_by_the_release_takes_base_from_ours_and_the_bound_until_it_is_run() -> None:
    results = [made("dr", 8.6, preset="release"), made("dm", 30.0, preset="release")]
    results += [made("offline", 56.0), made("base", 8.2), made("e2e", 9.0), made("gd", 20.0)]
    of_base = made("base", 8.7, preset="release", base_distillation=True)
    lent = bar(release_bars(paper_of(results, ["table-2a"])), "order")
    assert lent.figures.startswith("A_N: UB 56.0 > DM 30.0 > DR 8.6 > Base 8.2; Ω: ")
    assert lent.figures.endswith("by our readings: UB, Base; not yet run: E2E, GD")
    assert lent.state == "met so far"
    of_bound = bound_config(RunConfig(**{**MAIN, "method": "dr", "preset": "release"}))
    results += [of_base, made_of(of_bound, 55.0)]
    both = bar(release_bars(paper_of(results, ["table-2a"])), "order")
    assert both.figures.startswith("A_N: UB 55.0 > DM 30.0 > DR 8.6 > Base 8.2; Ω: ")
    assert "by our readings: Base; " in both.figures and both.state == "met so far"
    near = bar(release_bars(paper_of(results[:-2], ["table-2a"])), "Base: A_N")
    assert near.state == "not yet run", "only orders are filled up"


def test_nothing_but_the_paper_is_judged() -> None:
    paper: Paper = paper_of([made("dm", 40, gate="energy")], ["gates"])
    assert {one.state for one in bars(paper)} == {"not yet run"}
