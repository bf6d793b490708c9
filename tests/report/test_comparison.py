"""Comparing results: seeds of one configuration belong together, and each run has its bound."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from made_up import made_up_run as run
from PIL import Image
from rich.console import Console
from small_runs import TESTS

from distillmatch.config import RunConfig
from distillmatch.report.comparison import comparison_table, grouped, with_omega
from distillmatch.report.plots import draw_comparison
from distillmatch.runs import read_result
from distillmatch.runs.result import STREAM_KEYS
from distillmatch.sources import load_source
from distillmatch.streams import build_stream

Result = dict[str, Any]


def made_up(method: str, accuracies: list[float], **config: Any) -> Result:
    result = run(method, **{"unlabeled": "uniform", "tasks": len(accuracies), **config})
    result["metrics"] |= {"A_N": accuracies[-1], "accuracies": accuracies}
    return result


RUNS = [
    made_up("offline", [80.0, 60.0]),
    made_up("worldmatch", [80.0, 40.0], options={"accept": "newness"}),
    made_up("worldmatch", [70.0, 50.0], options={"accept": "newness"}, seed=2, device="cuda"),
    made_up("worldmatch", [80.0, 20.0], options={"accept": "truth"}),
]
DM, AGAIN = made_up("dm", [80.0, 40.0]), made_up("dm", [80.0, 41.0], device="cuda")
ONE, TWO = "WorldMatch (accept newness)", "WorldMatch (accept truth) (oracle)"


def shown(results: list[Result]) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(comparison_table(results))
    return captured.get()


@pytest.mark.parametrize(
    ("results", "groups"),
    [
        (RUNS, {"UB": 1, ONE: 2, TWO: 1}),
        (
            [DM, made_up("dm", [50.0, 35.0], recipe="as-written")],
            {"DM (recipe paper)": 1, "DM (recipe as-written)": 1},
        ),
        ([DM, made_up("dm", [50.0, 35.0], seed=2)], {"DM": 2}),
        ([DM, DM], {"DM": 1}),
        (
            [
                made_up("dm", [50.0, 35.0], unlabeled_per_task=7),
                made_up("base", [50.0, 35.0], unlabeled="none"),
            ],
            {"DM": 1, "Base": 1},
        ),
        ([DM, {**DM, "metrics": {**DM["metrics"], "omega": 75.0}}], {"DM": 1}),
        ([DM, AGAIN], {"DM": 1, "DM (run 2 of the same seed)": 1}),
        ([DM, {**AGAIN, "stream": {**DM["stream"], "fingerprint": "another fold"}}], {"DM": 2}),
    ],
)
def test_runs_that_differ_in_more_than_the_seed_are_kept_apart(
    results: list[Result], groups: dict[str, int]
) -> None:
    assert {group.name: len(group.results) for group in grouped(results)} == groups


def test_the_table_gives_mean_and_deviation_over_seeds_of_finished_runs(tmp_path: Path) -> None:
    text = shown(RUNS)
    assert "45.0 ± 7.1" in text, "the sample deviation of 40 and 50"
    finished, begun = made_up("gd", [60.0, 20.0, 16.0]), made_up("gd", [54.0], seed=2, tasks=3)
    begun |= {"complete": False, "tasks": [{}]}
    text = shown([begun, finished])
    assert text.count("±") == 1, "in the title alone"
    assert "16.0" in text
    (line,) = [line for line in text.splitlines() if "unfinished" in line]
    assert "GD (unfinished: 1 of 3 tasks)" in line and "54.0" in line
    old = shown([read_result(TESTS / "fixtures" / "version1.json"), DM])
    assert "UB" in old and "DM" in old
    draw_comparison(RUNS, tmp_path / "all.png")
    draw_comparison(RUNS[:1], tmp_path / "one.png")
    assert Image.open(tmp_path / "all.png").size == Image.open(tmp_path / "one.png").size
    assert (tmp_path / "all.png").read_bytes() != (tmp_path / "one.png").read_bytes()


def test_omega_comes_from_the_bound_of_the_same_stream_whatever_is_unlabeled() -> None:
    bound = run("offline", order="parent", tasks=None)
    learner = run("dm", unlabeled="positive", coreset=400, tasks=None)
    elsewhere = run("dm", seed=2, unlabeled="positive", coreset=400, tasks=None)
    assert "unlabeled" not in STREAM_KEYS
    _, filled, without = with_omega([bound, learner, elsewhere])
    both = zip(learner["metrics"]["accuracies"], bound["metrics"]["accuracies"], strict=True)
    shares = [100 * a / b for a, b in both]
    assert filled["metrics"]["omega"] == pytest.approx(fmean(shares))
    assert filled["metrics"]["omega_curve"][3] == pytest.approx(fmean(shares[:4]))
    assert without["metrics"]["omega"] is None, "seed 2 has no bound here"


def test_a_bound_that_was_trained_otherwise_does_not_serve() -> None:
    others: list[dict[str, Any]] = [
        {"epochs": 20}, {"recipe": "as-written"}, {"network": "wrn-16-2"}
    ]  # fmt: skip
    for changed in others:
        bound = run("offline", **changed)
        assert with_omega([bound, run("dm")])[1]["metrics"]["omega"] is None
        assert with_omega([bound, run("dm", **changed)])[1]["metrics"]["omega"] is not None
    usual, strong = run("offline"), run("offline", strong_labels=True)
    for learner in (run("dm"), run("dm", strong_labels=True)):
        alone = with_omega([usual, learner])[1]["metrics"]["omega"]
        for bounds in ([usual, strong], [strong, usual]):
            assert with_omega([*bounds, learner])[2]["metrics"]["omega"] == alone
        assert with_omega([strong, learner])[1]["metrics"]["omega"] is None


def test_a_bound_that_cuts_the_classes_finer_serves_where_none_cuts_them_alike() -> None:
    fine, finer, learner = run("offline", tasks=10), run("offline", tasks=20), run("dm")
    after = {tasks: one["metrics"]["accuracies"] for tasks, one in ((10, fine), (20, finer))}
    for bounds, offline in (
        ([fine], after[10][1::2]),
        ([finer], after[20][3::4]),
        ([finer, fine], after[10][1::2]),
    ):
        filled = with_omega([*bounds, learner])[-1]
        pairs = zip(learner["metrics"]["accuracies"], offline, strict=True)
        assert filled["metrics"]["omega"] == pytest.approx(fmean(100 * a / b for a, b in pairs))
    assert with_omega([learner, run("offline"), run("dm", tasks=10)])[2]["metrics"]["omega"] is None
    again = [run(name, tasks=n, repetition=0.5) for name, n in (("offline", 10), ("dm", 5))]
    assert with_omega(again)[1]["metrics"]["omega"] is None, "labels are divided over the tasks"
    again[0] = run("offline", tasks=5, repetition=0.5)
    assert with_omega([*again, learner])[1]["metrics"]["omega"] is not None
    assert with_omega([again[0], learner])[1]["metrics"]["omega"] is None, "without repetition"
    learner["classes"] = learner["classes"][::-1]
    assert with_omega([fine, learner])[1]["metrics"]["omega"] is None, "other classes"


def test_a_stage_of_a_bound_learns_the_same_images_however_its_classes_are_cut() -> None:
    config = RunConfig(source="shapes", method="offline", seed=3)
    dataset = load_source(config)
    coarse, fine = (build_stream(dataset, config.replace(tasks=tasks)) for tasks in (5, 10))
    for stage in range(5):
        of_coarse = [i for task in coarse.tasks[: stage + 1] for i in task.labeled.tolist()]
        of_fine = [i for task in fine.tasks[: 2 * stage + 2] for i in task.labeled.tolist()]
        assert sorted(of_coarse) == sorted(of_fine)
