"""Plans: every run that experiments need, and none twice; what is shared is truly the same run."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import make_dataset
from test_presets import VALUES

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.run import run
from distillmatch.suite.catalogue import Experiment, experiment_names, load_experiment
from distillmatch.suite.identity import (
    LEARNERS,
    LOOKED_AT_BY,
    bound_config,
    identity,
    run_name,
    shared_config,
)
from distillmatch.suite.plan import PlannedRun, plan

TINY: dict[str, Any] = {
    "order": "parent", "network": "wrn-10-1", "epochs": 2, "batch": 8, "unlabeled_batch": 8,
    "device": "cpu",
}  # fmt: skip


def counted(runs: list[PlannedRun]) -> Counter[str]:
    return Counter(run.config.method for run in runs)


def own(tmp_path: Path, rows: dict[str, Any]) -> Experiment:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"title": "own", "columns": {"one": {}}, "rows": rows}))
    return load_experiment(str(path))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("table-2a", {"offline": 3, "base": 3, "e2e": 3, "dr": 3, "gd": 3, "dm": 3}),
        ("table-2b", {"offline": 1, "base": 2, "e2e": 2, "dr": 2, "gd": 2, "dm": 2}),
        ("table-2c", {"offline": 1, "base": 1, "e2e": 3, "dr": 3, "gd": 3, "dm": 3}),
        ("table-3a", {"offline": 1, "dm": 5}),
        ("figure-3", {"offline": 1, "base": 8, "gd": 1, "dm": 1}),
        ("ablation-parent", {"offline": 1, "dm": 5}),
        ("gd-calibration", {"offline": 2, "gd": 6}),
        ("auroc", {"offline": 2, "dm": 2}),
        ("table-7", {"offline": 1, "base": 1, "e2e": 4, "dr": 4, "gd": 4, "dm": 4}),
    ],
)
def test_base_and_bound_are_planned_once(name: str, expected: dict[str, int]) -> None:
    assert counted(plan([load_experiment(name)], [1])) == expected


def test_each_seed_has_its_runs() -> None:
    runs = plan([load_experiment("table-2c")])
    assert len(runs) == 3 * 14 and {run.config.seed for run in runs} == {1, 2, 3}


def test_a_run_is_shared_between_experiments_and_names_them() -> None:
    full = [load_experiment(name) for name in ("table-2c", "table-7", "ablation-parent")]
    runs = {run.name: run for run in plan(full, [1])}
    assert len(runs) == 14 + 4 + 4, "four methods on Uniform, four parts taken away"
    dm = runs["cifar100-parent-positive-coreset400-dm-seed1"]
    assert dm.experiments == ("table-2c", "table-7", "ablation-parent")
    assert runs["cifar100-parent-offline-seed1"].experiments == dm.experiments


def test_the_whole_paper_is_65_runs_a_seed() -> None:
    everything = [load_experiment(name) for name in experiment_names()]
    runs = plan([experiment for experiment in everything if not experiment.beyond_paper], [4])
    # RandomClass: 3 numbers of tasks; ParentClass: Uniform without, four streams with a coreset;
    # Tiny-ImageNet. Base: one with and one without a coreset of parents, seven more sizes.
    assert counted(runs) == {
        "offline": 3 + 1 + 1,
        "base": 3 + 2 + 1 + 7,
        "e2e": 3 + 5 + 1,
        "dr": 3 + 5 + 1,
        "gd": 3 + 5 + 1 + 3,
        "dm": 3 + 5 + 1 + 4 + 4,
    }
    assert len({run.name for run in runs}) == len(runs) == 65


def test_bounds_come_first() -> None:
    methods = [run.config.method for run in plan([load_experiment("table-2a")], [1, 2])]
    assert methods[:6] == ["offline"] * 6 and "offline" not in methods[6:]


def test_chosen_methods_bring_their_bound_and_nothing_else() -> None:
    runs = plan([load_experiment("table-2a")], [1], methods=["dm", "gd"])
    assert counted(runs) == {"offline": 3, "dm": 3, "gd": 3}


def names_of(cells: list[str], *experiments: str) -> set[str]:
    planned = plan([load_experiment(name) for name in experiments], [1], cells=cells)
    return {run.name.removesuffix("-seed1") for run in planned if run.config.method != "offline"}


def test_chosen_cells_are_those_of_a_row_a_column_or_both() -> None:
    assert names_of(["DM/10 tasks"], "table-2a") == {"cifar100-random10-uniform-dm"}
    assert names_of(["GD"], "table-2a") == {f"cifar100-random{n}-uniform-gd" for n in (5, 10, 20)}
    assert names_of(["/5 tasks"], "table-2a") == {
        f"cifar100-random5-uniform-{method}" for method in ("base", "e2e", "dr", "gd", "dm")
    }
    two = names_of(["DM/Positive", "DM/coreset 0"], "table-2b", "table-2c")
    assert two == {"cifar100-parent-positive-coreset400-dm", "cifar100-parent-uniform-dm"}


def test_a_chosen_cell_brings_its_bound() -> None:
    runs = plan([load_experiment("table-2a")], [1, 2], cells=["DM/20 tasks"])
    assert [(run.config.method, run.config.tasks, run.config.seed) for run in runs] == [
        ("offline", 20, 1), ("offline", 20, 2), ("dm", 20, 1), ("dm", 20, 2),
    ]  # fmt: skip


def test_a_plan_without_bounds_has_those_that_are_asked_for() -> None:
    runs = plan([load_experiment("table-2a")], [1], cells=["/20 tasks"], bounds=False)
    assert {run.config.method for run in runs} == {"offline", "base", "e2e", "dr", "gd", "dm"}
    runs = plan([load_experiment("table-2a")], [1], cells=["DM"], bounds=False)
    assert [run.config.method for run in runs] == ["dm"] * 3


def test_cells_come_in_the_order_in_which_they_are_named() -> None:
    names = ["DM/20 tasks", "Base", "/5 tasks"]
    runs = plan([load_experiment("table-2a")], [1], cells=names, bounds=False)
    assert [(run.config.method, run.config.tasks) for run in runs] == [
        ("offline", 5), ("dm", 20), *(("base", tasks) for tasks in (5, 10, 20)),
        *((method, 5) for method in ("e2e", "dr", "gd", "dm")),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["DM/11 tasks", "5 tasks", "dm", "/DM", ""])
def test_a_cell_that_no_experiment_has_is_refused(name: str) -> None:
    sentence = f"no chosen experiment has cell '{name}': expected ROW, /COLUMN or ROW/COLUMN with"
    with pytest.raises(ConfigError, match=f"^{sentence} the rows 'UB', .* columns '5 tasks', "):
        plan([load_experiment("table-2a")], [1], cells=["DM", name])


def test_a_method_that_no_experiment_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="no chosen experiment has method 'e2e'; they have dm"):
        plan([load_experiment("auroc")], [1], methods=["dm", "e2e"])


def test_options_of_a_method_bring_no_other_bound(tmp_path: Path) -> None:
    rows = {
        "rate": {"learning_rate": 0.05},
        "release": {
            "preset": "release", "coreset": 20, "initial_weights": "normal",
            "last_batches": "filled", "base_clip": None,
        },
        "gate": {"gate": "softmax", "temperature": 3.0, "unlabeled_per_task": 5},
        "bound": {"method": "offline"},
    }  # fmt: skip
    assert counted(plan([own(tmp_path, rows)], [1])) == {"offline": 1, "dm": 3}


def test_what_the_bound_depends_on_brings_another(tmp_path: Path) -> None:
    rows = {
        "longer": {"epochs": 300}, "larger": {"network": "wrn-28-4"}, "tasks": {"tasks": 5},
        "labels": {"labels_per_class": 5}, "parents": {"order": "parent"}, "plain": {},
        "last": {"last_batches": "short"}, "clipped": {"base_clip": 1.0},
    }  # fmt: skip
    assert counted(plan([own(tmp_path, rows)], [1]))["offline"] == len(rows)


def test_base_that_distils_looks_at_its_stream(tmp_path: Path) -> None:
    distils = {"method": "base", "base_distillation": True}
    rows = {
        kind: {**distils, "order": "parent", "unlabeled": kind}
        for kind in ("uniform", "positive", "negative", "random")
    }
    assert counted(plan([own(tmp_path, rows)], [1]))["base"] == 4


def test_defaults_that_are_said_are_the_same_run() -> None:
    for said in ({"tasks": 10}, {"order": "random"}, {"device": "cuda"}, {"data_dir": "x"}):
        assert run_name(RunConfig(**said)) == run_name(RunConfig())
        assert identity(RunConfig(**said)) == identity(RunConfig())
    parents = RunConfig(unlabeled="positive")
    assert identity(parents.replace(tasks=12)) == identity(parents)


def test_a_shared_configuration_stands_for_itself() -> None:
    for name in experiment_names():
        for cell in load_experiment(name).cells:
            for config in (shared_config(cell.config), bound_config(cell.config)):
                assert shared_config(config) == config


def figures(config: RunConfig) -> tuple[Any, ...]:
    result = run(config, dataset=make_dataset(per_class=10, parents=3, noise=True))
    return result["R"], result["A"], [task["losses"] for task in result["tasks"]]


def test_base_learns_the_same_whatever_the_unlabelled_stream() -> None:
    shown = [
        figures(RunConfig(**TINY, method="base", coreset=6, unlabeled=kind))
        for kind in ("uniform", "positive", "negative")
    ]
    fewer = RunConfig(**{**TINY, "unlabeled_batch": 3}, method="base", coreset=6, unlabeled="task")
    assert shown[0] == shown[1] == shown[2] == figures(fewer)
    assert shown[0] == figures(shared_config(fewer))


def test_the_options_of_some_methods_are_those_whose_help_says_so() -> None:
    of_methods = {}
    for key, field in RunConfig.model_fields.items():
        said, _, rest = str(field.description).partition(":")
        names = tuple(sorted(name.lower() for name in said.split(", ")))
        if rest and set(names) <= set(LEARNERS):
            of_methods[key] = names
    assert of_methods == {key: tuple(sorted(names)) for key, names in LOOKED_AT_BY.items()}


@pytest.mark.parametrize("method", LEARNERS)
def test_a_method_learns_the_same_whatever_the_options_are_that_it_does_not_look_at(
    method: str,
) -> None:
    plain = RunConfig(**TINY, method=method, coreset=6)
    others = {key for key, methods in LOOKED_AT_BY.items() if method not in methods}
    odd = plain.replace(**{key: VALUES[key] for key in others})
    assert figures(odd) == figures(plain)
    assert shared_config(odd) == shared_config(plain)
    assert identity(odd.replace(preset="release")) == identity(plain.replace(preset="release"))


def test_a_method_of_ones_own_may_look_at_any_option() -> None:
    own = RunConfig(method="mine:Method", gate="energy")
    assert shared_config(own).gate == "energy" != shared_config(own.replace(method="gd")).gate


def test_the_bound_learns_the_same_whatever_its_bound_config_leaves_out() -> None:
    odd = RunConfig(
        **TINY, method="offline", coreset=6, unlabeled="negative", preset="release",
        temperature=3.0, class_balancing=False, distillation=False, learning_rate=0.1,
        initial_weights="normal", last_batches="filled", base_clip=None,
    )  # fmt: skip
    assert figures(odd) == figures(shared_config(odd))
    assert shared_config(odd) == bound_config(RunConfig(**TINY, coreset=2, calibration=False))
