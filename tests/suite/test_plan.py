"""Plans: every run that experiments need, and none twice; what is shared is truly the same run."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import six_classes, tiny

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.runs import run
from distillmatch.suite.catalogue import Experiment, load_experiment
from distillmatch.suite.names import bound_config
from distillmatch.suite.plan import PlannedRun, plan


def counted(runs: list[PlannedRun]) -> Counter[str]:
    return Counter(run.config.method for run in runs)


def own(tmp_path: Path, rows: dict[str, Any]) -> Experiment:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"title": "own", "columns": {"one": {}}, "rows": rows}))
    return load_experiment(str(path))


def test_a_run_is_shared_between_experiments_and_names_them() -> None:
    full = [load_experiment(name) for name in ("table-2c", "table-7", "ablation-parent")]
    runs = {run.name: run for run in plan(full, [1])}
    assert len(runs) == 14 + 4 + 4, "four methods on Uniform, four parts taken away"
    dm = runs["cifar100-authors-parent-positive-coreset400-dm-seed1"]
    assert dm.experiments == ("table-2c", "table-7", "ablation-parent")
    assert runs["cifar100-authors-parent-offline-seed1"].experiments == dm.experiments


def names_of(cells: list[str], *experiments: str) -> set[str]:
    planned = plan([load_experiment(name) for name in experiments], [1], cells=cells)
    names = [run.name for run in planned if run.config.method != "offline"]
    return {name.removeprefix("cifar100-authors-").removesuffix("-seed1") for name in names}


def test_chosen_cells_are_those_of_a_row_a_column_or_both() -> None:
    assert names_of(["DM/10 tasks"], "table-2a") == {"random10-uniform-dm"}
    assert names_of(["GD"], "table-2a") == {f"random{n}-uniform-gd" for n in (5, 10, 20)}
    assert names_of(["/5 tasks"], "table-2a") == {
        "random5-base",
        *(f"random5-uniform-{method}" for method in ("e2e", "dr", "gd", "dm")),
    }
    two = names_of(["DM/Positive", "DM/coreset 0"], "table-2b", "table-2c")
    assert two == {"parent-positive-coreset400-dm", "parent-uniform-dm"}


def test_a_plan_without_bounds_has_those_that_are_asked_for() -> None:
    runs = plan([load_experiment("table-2a")], [1], cells=["/20 tasks"], bounds=False)
    assert {run.config.method for run in runs} == {"offline", "base", "e2e", "dr", "gd", "dm"}
    runs = plan([load_experiment("table-2a")], [1], cells=["DM"], bounds=False)
    assert [run.config.method for run in runs] == ["dm"] * 3


def test_bounds_come_first_then_cells_in_the_order_in_which_they_are_named() -> None:
    methods = [run.config.method for run in plan([load_experiment("table-2a")], [1, 2])]
    assert methods[:6] == ["offline"] * 6 and "offline" not in methods[6:]
    names = ["DM/20 tasks", "Base", "/5 tasks"]
    runs = plan([load_experiment("table-2a")], [1], cells=names, bounds=False)
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


def test_a_bound_serves_all_runs_but_those_that_learn_labels_otherwise(tmp_path: Path) -> None:
    same = {
        "rate": {"learning_rate": 0.05},
        "options": {"options": {"class_balancing": False}, "unlabeled_per_task": 5},
        "coreset": {"coreset": 20, "stored_share": 0.5},
        "strong": {"strong_labels": True, "weight_averaging": 0.9},
        "batch": {"unlabeled_batch": 64},
        "bound": {"method": "offline", "unlabeled": "none"},
    }
    assert counted(plan([own(tmp_path, same)], [1])) == {"offline": 1, "dm": 5}
    others = {
        "longer": {"epochs": 300}, "larger": {"network": "wrn-28-4"}, "tasks": {"tasks": 5},
        "labels": {"labels_per_class": 5}, "parents": {"order": "parent"}, "plain": {},
        "words": {"recipe": "as-written"}, "authors": {"splits": "authors"},
        "cosine": {"schedule": "cosine"},
    }  # fmt: skip
    assert counted(plan([own(tmp_path, others)], [1]))["offline"] == len(others)


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
