"""Plans: every run that experiments need, and none twice; what is shared is truly the same run."""

from typing import Any

import pytest
from small_runs import six_classes, tiny

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.runs import run
from distillmatch.suite.catalogue import load_experiment
from distillmatch.suite.names import bound_config
from distillmatch.suite.plan import plan


def test_a_run_is_shared_between_experiments_and_names_them() -> None:
    full = [load_experiment(name) for name in ("table-2c", "table-7", "ablation-parent")]
    runs = {run.name: run for run in plan(full, [1])}
    assert len(runs) == 14 + 4 + 4, "four methods on Uniform, four parts taken away"
    dm = runs["cifar100-authors-parent-positive-coreset400-dm-seed1"]
    assert dm.experiments == ("table-2c", "table-7", "ablation-parent")
    assert runs["cifar100-authors-parent-offline-seed1"].experiments == dm.experiments


def test_bounds_come_first_then_cells_in_the_order_in_which_they_are_named() -> None:
    experiment = load_experiment("table-2a")
    methods = [run.config.method for run in plan([experiment], [1, 2])]
    assert methods[:6] == ["offline"] * 6 and "offline" not in methods[6:]
    names = ["DM/20 tasks", "Base", "/5 tasks"]
    runs = plan([experiment], [1], cells=names, bounds=False)
    assert [(run.config.method, run.config.tasks) for run in runs] == [
        ("offline", 5), ("dm", 20), *(("base", tasks) for tasks in (5, 10, 20)),
        *((method, 5) for method in ("e2e", "dr", "gd", "dm")),
    ]  # fmt: skip


def test_what_no_experiment_has_is_refused() -> None:
    for name in ("DM/11 tasks", "5 tasks", "dm", "/DM", ""):
        sentence = f"no chosen experiment has cell '{name}': expected ROW, /COLUMN or ROW/COLUMN wi"
        with pytest.raises(ConfigError, match=f"^{sentence}th the rows 'UB', .* '5 tasks', "):
            plan([load_experiment("table-2a")], [1], cells=["DM", name])
    with pytest.raises(ConfigError, match=r"no chosen experiment has method 'e2e'.*; they have dm"):
        plan([load_experiment("auroc")], [1], methods=["dm", "e2e"])


def test_base_and_the_bound_learn_the_same_whatever_the_unlabeled_stream() -> None:
    def figures(config: RunConfig) -> tuple[Any, ...]:
        result = run(config, dataset=six_classes())
        return result["R"], result["A"], [task["losses"] for task in result["tasks"]]

    for method in ("base", "offline"):
        usual = tiny(method=method, task_sizes=None, order="parent", coreset=6, unlabeled="none")
        expected = figures(usual)
        for other in ({"unlabeled": "uniform"}, {"unlabeled": "task", "unlabeled_batch": 3}):
            assert figures(usual.replace(**other)) == expected
        if method == "offline":
            assert figures(bound_config(usual.replace(unlabeled="uniform"))) == expected
