"""Comparing results: seeds of one configuration belong together, other configurations do not."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from small_runs import TESTS

from distillmatch.report.comparison import comparison_table, draw_comparison, grouped, with_omega
from distillmatch.runs import read_result


def made_up(method: str, accuracies: list[float], **config: Any) -> dict[str, Any]:
    given = {"method": method, "seed": 1, "device": "cpu", "tasks": 2, "unlabeled": "uniform"}
    given |= config
    return {
        "version": 2,
        "method": method,
        "seed": given["seed"],
        "uses_truth": given.get("options") == {"accept": "truth"},
        "config": given,
        "stream": {
            "source": "made",
            "seed": given["seed"],
            "tasks": given["tasks"],
            "fingerprint": "made up",
        },
        "classes": [f"class {number}" for number in range(2 * len(accuracies))],
        "task_sizes": [2] * len(accuracies),
        "complete": True,
        "metrics": {
            "A_N": accuracies[-1],
            "omega": None,
            "bwt": -1.0,
            "fgt": 2.0,
            "accuracies": accuracies,
        },
        "memory": {"stored_images": 0},
        "seconds": {"total": 1.0},
    }


RUNS = [
    made_up("offline", [80.0, 60.0]),
    made_up("worldmatch", [80.0, 40.0], options={"accept": "newness"}),
    made_up("worldmatch", [70.0, 50.0], options={"accept": "newness"}, seed=2, device="cuda"),
    made_up("worldmatch", [80.0, 20.0], options={"accept": "truth"}),
]


def test_runs_that_differ_in_more_than_the_seed_are_kept_apart() -> None:
    groups = grouped(RUNS)
    assert [(group.name, len(group.results)) for group in groups] == [
        ("UB", 1),
        ("WorldMatch (accept newness)", 2),
        ("WorldMatch (accept truth) (oracle)", 1),
    ]


def test_runs_by_both_recipes_are_told_apart() -> None:
    runs = [made_up("dm", [60.0, 30.0]), made_up("dm", [50.0, 35.0], recipe="as-written")]
    names = [group.name for group in grouped(runs)]
    assert names == ["DM (recipe paper)", "DM (recipe as-written)"]


def test_an_archived_result_is_compared_with_those_of_today() -> None:
    old, new = read_result(TESTS / "fixtures" / "version1.json"), made_up("dm", [60.0, 30.0])
    text = shown([old, new])
    assert "UB" in text and "DM" in text


def test_the_number_of_tasks_need_not_have_been_said() -> None:
    said, unsaid = made_up("gd", [60.0, 30.0]), made_up("gd", [50.0, 35.0], seed=2, tasks=None)
    assert [len(group.results) for group in grouped([said, unsaid])] == [2]


def shown(results: list[dict[str, Any]]) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(comparison_table(results))
    return captured.get()


def test_unfinished_runs_are_marked_and_stay_out_of_the_means_of_finished_ones() -> None:
    finished = made_up("gd", [60.0, 20.0, 16.0])
    begun = made_up("gd", [54.0], seed=2, tasks=3)
    begun |= {"complete": False, "tasks": [{}], "task_sizes": finished["task_sizes"]}
    text = shown([begun, finished])
    assert text.count("±") == 1, "in the title alone"
    assert "16.0" in text
    (line,) = [line for line in text.splitlines() if "unfinished" in line]
    assert "GD (unfinished: 1 of 3 tasks)" in line and "54.0" in line


def test_a_run_that_is_given_twice_counts_once() -> None:
    run = made_up("dm", [80.0, 40.0])
    with_omega_of_ledger = {**run, "metrics": {**run["metrics"], "omega": 75.0}}
    for again in (run, with_omega_of_ledger):
        (group,) = grouped([run, again])
        assert len(group.results) == 1


def test_a_seed_that_was_run_again_is_no_second_seed() -> None:
    first, again = made_up("dm", [80.0, 40.0]), made_up("dm", [80.0, 41.0], device="cuda")
    groups = grouped([first, again])
    assert [(group.name, len(group.results)) for group in groups] == [
        ("DM", 1),
        ("DM (run 2 of the same seed)", 1),
    ]
    other_fold = {**again, "stream": {**again["stream"], "fingerprint": "made up/fold"}}
    assert [len(group.results) for group in grouped([first, other_fold])] == [2]


def test_omega_is_filled_in_from_the_bound_of_the_same_stream() -> None:
    filled = with_omega(RUNS)
    expected = [100.0, 100 * (1 + 40 / 60) / 2, None, 100 * (1 + 20 / 60) / 2]
    for result, omega in zip(filled, expected, strict=True):
        assert result["metrics"]["omega"] == (None if omega is None else pytest.approx(omega))
    assert RUNS[0]["metrics"]["omega"] is None, "the results themselves are left as they are"


def test_the_table_gives_mean_and_deviation_over_seeds() -> None:
    text = shown(RUNS)
    assert "45.0 ± 7.1" in text, "the sample deviation of 40 and 50"
    assert "(oracle)" in text


def test_every_group_has_its_line_in_the_picture(tmp_path: Path) -> None:
    draw_comparison(RUNS, tmp_path / "all.png")
    draw_comparison(RUNS[:1], tmp_path / "one.png")
    assert Image.open(tmp_path / "all.png").size == Image.open(tmp_path / "one.png").size
    assert (tmp_path / "all.png").read_bytes() != (tmp_path / "one.png").read_bytes()
