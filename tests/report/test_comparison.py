"""Comparing results: seeds of one configuration belong together, other configurations do not."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from small_runs import TESTS

from distillmatch.report.comparison import comparison_table, draw_comparison, grouped
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


def shown(results: list[dict[str, Any]]) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(comparison_table(results))
    return captured.get()


GD = made_up("gd", [60.0, 30.0])
DM, AGAIN = made_up("dm", [80.0, 40.0]), made_up("dm", [80.0, 41.0], device="cuda")
ONE, TWO = "WorldMatch (accept newness)", "WorldMatch (accept truth) (oracle)"


@pytest.mark.parametrize(
    ("results", "groups"),
    [
        (RUNS, {"UB": 1, ONE: 2, TWO: 1}),
        (
            [DM, made_up("dm", [50.0, 35.0], recipe="as-written")],
            {"DM (recipe paper)": 1, "DM (recipe as-written)": 1},
        ),
        ([GD, made_up("gd", [50.0, 35.0], seed=2, tasks=None)], {"GD": 2}),
        ([DM, DM], {"DM": 1}),
        ([DM, {**DM, "metrics": {**DM["metrics"], "omega": 75.0}}], {"DM": 1}),
        ([DM, AGAIN], {"DM": 1, "DM (run 2 of the same seed)": 1}),
        ([DM, {**AGAIN, "stream": {**DM["stream"], "fingerprint": "another fold"}}], {"DM": 2}),
    ],
)
def test_runs_that_differ_in_more_than_the_seed_are_kept_apart(
    results: list[dict[str, Any]], groups: dict[str, int]
) -> None:
    assert {group.name: len(group.results) for group in grouped(results)} == groups


def test_an_archived_result_is_compared_with_those_of_today() -> None:
    old = read_result(TESTS / "fixtures" / "version1.json")
    text = shown([old, DM])
    assert "UB" in text and "DM" in text


def test_unfinished_runs_are_marked_and_stay_out_of_the_means_of_finished_ones() -> None:
    finished = made_up("gd", [60.0, 20.0, 16.0])
    begun = made_up("gd", [54.0], seed=2, tasks=3)
    begun |= {"complete": False, "tasks": [{}], "task_sizes": finished["task_sizes"]}
    text = shown([begun, finished])
    assert text.count("±") == 1, "in the title alone"
    assert "16.0" in text
    (line,) = [line for line in text.splitlines() if "unfinished" in line]
    assert "GD (unfinished: 1 of 3 tasks)" in line and "54.0" in line


def test_the_table_gives_mean_and_deviation_over_seeds() -> None:
    text = shown(RUNS)
    assert "45.0 ± 7.1" in text, "the sample deviation of 40 and 50"
    assert "(oracle)" in text


def test_every_group_has_its_line_in_the_picture(tmp_path: Path) -> None:
    draw_comparison(RUNS, tmp_path / "all.png")
    draw_comparison(RUNS[:1], tmp_path / "one.png")
    assert Image.open(tmp_path / "all.png").size == Image.open(tmp_path / "one.png").size
    assert (tmp_path / "all.png").read_bytes() != (tmp_path / "one.png").read_bytes()
