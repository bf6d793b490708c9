"""Ω of a run: which bound it is measured by, of those that are among the results."""

from statistics import fmean
from typing import Any

import pytest
from made_up import made_up_run as run

from distillmatch.config import RunConfig
from distillmatch.report.comparison import with_omega
from distillmatch.runs.result import STREAM_KEYS
from distillmatch.sources import load_source
from distillmatch.streams import build_stream


def test_omega_comes_from_the_bound_of_the_same_stream_whatever_is_unlabeled() -> None:
    bound = run("offline", order="parent", tasks=None)
    learner = run("dm", unlabeled="positive", coreset=400, tasks=None)
    elsewhere = run("dm", seed=2, unlabeled="positive", coreset=400, tasks=None)
    assert "unlabeled" not in STREAM_KEYS
    _, filled, without = with_omega([bound, learner, elsewhere])
    shares = [
        100 * a / b
        for a, b in zip(
            learner["metrics"]["accuracies"], bound["metrics"]["accuracies"], strict=True
        )
    ]
    assert filled["metrics"]["omega"] == pytest.approx(fmean(shares))
    assert filled["metrics"]["omega_curve"][3] == pytest.approx(fmean(shares[:4]))
    assert without["metrics"]["omega"] is None, "seed 2 has no bound here"


@pytest.mark.parametrize("changed", [{"epochs": 20}, {"recipe": "as-written"}])
def test_of_two_bounds_the_one_trained_alike_counts(changed: dict[str, Any]) -> None:
    bounds, learners = ([run(name), run(name, **changed)] for name in ("offline", "dm"))
    bounds[1]["metrics"]["accuracies"] = [v / 2 for v in bounds[0]["metrics"]["accuracies"]]
    for given in (bounds, bounds[::-1]):
        filled = with_omega([*given, *learners])[2:]
        for learner, bound in zip(filled, bounds, strict=True):
            own, offline = (one["metrics"]["accuracies"][0] for one in (learner, bound))
            assert learner["metrics"]["omega_curve"][0] == pytest.approx(100 * own / offline)


@pytest.mark.parametrize("strong_labels", [False, True])
def test_a_bound_that_learns_strong_views_too_is_measured_by_the_papers(
    strong_labels: bool,
) -> None:
    usual, strong = run("offline"), run("offline", strong_labels=True)
    strong["metrics"]["accuracies"] = [2 * v for v in usual["metrics"]["accuracies"]]
    learner = run("dm", strong_labels=strong_labels)
    alone = with_omega([usual, learner])[1]["metrics"]["omega"]
    for bounds in ([usual, strong], [strong, usual]):
        *filled, of_learner = with_omega([*bounds, learner])
        assert of_learner["metrics"]["omega"] == alone
        omegas = [one["metrics"]["omega"] for one in filled]
        assert sorted(omegas) == pytest.approx([100, 200])
    assert with_omega([strong, learner])[1]["metrics"]["omega"] is None


def test_a_bound_that_cuts_the_classes_finer_serves_where_none_cuts_them_alike() -> None:
    fine, finer, learner = run("offline", tasks=10), run("offline", tasks=20), run("dm")
    alike = run("offline", epochs=20)
    after = {tasks: one["metrics"]["accuracies"] for tasks, one in ((10, fine), (20, finer))}
    for bounds, offline in (
        ([fine], after[10][1::2]),
        ([finer], after[20][3::4]),
        ([finer, fine], after[10][1::2]),
        ([fine, alike], alike["metrics"]["accuracies"]),
    ):
        filled = with_omega([*bounds, learner])[-1]
        accuracies = learner["metrics"]["accuracies"]
        shares = [100 * a / b for a, b in zip(accuracies, offline, strict=True)]
        assert filled["metrics"]["omega"] == pytest.approx(fmean(shares))


def test_a_bound_does_not_serve_other_classes_or_tasks_that_end_between_its_stages() -> None:
    bound, finer = run("offline"), run("dm", tasks=10)
    assert with_omega([bound, finer])[1]["metrics"]["omega"] is None
    learner = run("dm", tasks=1)
    assert with_omega([bound, learner])[1]["metrics"]["omega"] is not None
    learner["classes"] = learner["classes"][::-1]
    assert with_omega([bound, learner])[1]["metrics"]["omega"] is None


def test_a_stage_of_a_bound_learns_the_same_images_however_its_classes_are_cut() -> None:
    config = RunConfig(source="shapes", method="offline", seed=3)
    dataset = load_source(config)
    coarse, fine = (build_stream(dataset, config.replace(tasks=tasks)) for tasks in (5, 10))
    for stage in range(5):
        of_coarse = [i for task in coarse.tasks[: stage + 1] for i in task.labeled.tolist()]
        of_fine = [i for task in fine.tasks[: 2 * stage + 2] for i in task.labeled.tolist()]
        assert sorted(of_coarse) == sorted(of_fine)
