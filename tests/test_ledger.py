"""The ledger: results found by what was run, and checked in full."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import make_dataset

from distillmatch.config import RunConfig
from distillmatch.errors import ResultError
from distillmatch.run import bound_of, read_result, run
from distillmatch.run.result import config_recorded
from distillmatch.suite.catalogue import experiment_names, load_experiment
from distillmatch.suite.checks import problems_of, remarks_on
from distillmatch.suite.ledger import Ledger, run_name
from distillmatch.suite.plan import PlannedRun, plan

REAL = Path(__file__).parent.parent / "results"
Result = dict[str, Any]
TINY: dict[str, Any] = {
    "network": "wrn-10-1", "epochs": 1, "tasks": 3, "batch": 8, "unlabeled_batch": 8,
    "device": "cpu",
}  # fmt: skip


def made(bound: Result | None = None, **options: Any) -> Result:
    dataset = make_dataset(classes=6, per_class=10, test_per_class=8, parents=3, noise=True)
    given = None if bound is None else bound_of(bound)
    return run(RunConfig(**{**TINY, **options}), dataset=dataset, bound=given)


@pytest.fixture(name="bound", scope="module")
def bound_result() -> Result:
    return made(method="offline")


@pytest.fixture(name="base", scope="module")
def base_result(bound: Result) -> Result:
    return made(bound, method="base", coreset=6)


@pytest.fixture(name="planned", scope="module")
def planned_runs() -> dict[str, PlannedRun]:
    experiments = [load_experiment(name) for name in experiment_names()]
    return {one.name: one for one in plan(experiments, [1, 2, 3])}


# Adding and finding


def test_a_result_is_found_again_by_its_configuration(tmp_path: Path, base: Result) -> None:
    ledger = Ledger(tmp_path / "made on demand")
    config = RunConfig(**TINY, method="base", coreset=6)
    assert ledger.find(config) is None and ledger.results() == []
    path = ledger.add(base)
    assert path.name == f"{run_name(config)}.json" and ledger.paths() == [path]
    assert ledger.find(config) == base == ledger.results()[0]
    elsewhere = config.replace(device="auto", data_dir=Path("x"), unlabeled="task")
    assert ledger.find(elsewhere) == base, "place and stream do not matter to Base"
    for other in ({"seed": 2}, {"coreset": 5}, {"method": "e2e"}, {"epochs": 2}):
        assert ledger.find(config.replace(**other)) is None


def test_an_unfinished_result_is_refused(tmp_path: Path, base: Result) -> None:
    part = {**base, "complete": False, "tasks": base["tasks"][:1]}
    with pytest.raises(ResultError, match="complete results; this one has 1 of 3 tasks"):
        Ledger(tmp_path).add(part)
    assert not list(tmp_path.iterdir())


def test_a_fold_or_a_saved_stream_is_not_the_configurations_run(
    tmp_path: Path, base: Result
) -> None:
    fold = copy.deepcopy(base)
    fold["stream"]["fingerprint"] += "/0123"
    ledger = Ledger(tmp_path)
    with pytest.raises(ResultError, match="saved stream or a validation fold"):
        ledger.add(fold)
    path = ledger.add(base)
    path.write_text(json.dumps(fold))
    assert ledger.find(RunConfig(**TINY, method="base", coreset=6)) is None


def test_a_result_under_a_wrong_name_is_not_found(tmp_path: Path, base: Result) -> None:
    ledger, other = Ledger(tmp_path), RunConfig(**TINY, method="base", coreset=5)
    ledger.add(base).rename(ledger.path_of(other))
    assert ledger.find(other) is None


def test_an_option_that_came_later_was_at_its_default_whatever_a_preset_has(
    tmp_path: Path, base: Result
) -> None:
    older = copy.deepcopy(base)
    older["config"]["preset"] = "release"
    asked = RunConfig(**older["config"])
    assert asked.last_batches == "filled" != RunConfig(preset="release").last_batches
    del older["config"]["last_batches"]
    Ledger(tmp_path).add(older)
    assert Ledger(tmp_path).find(asked) == older
    assert Ledger(tmp_path).find(asked.replace(last_batches="short")) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"format": ')
    with pytest.raises(ResultError, match=r"half.json: expected a result of a run in JSON"):
        Ledger(tmp_path).results()


def test_a_file_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match="expected a folder of results, found a file"):
        Ledger(tmp_path / "file")


# The check


def test_the_real_ledger_is_right(planned: dict[str, PlannedRun]) -> None:
    ledger = Ledger(REAL)
    assert ledger.paths()
    for path, result in zip(ledger.paths(), ledger.results(), strict=True):
        assert problems_of(result, path.stem, planned) == [], path.name
        assert ledger.find(config_recorded(result["config"])) == result
    tables = load_experiment("table-2a"), load_experiment("table-6")
    names = {one.name for one in plan(tables, [1])}
    assert {"cifar100-random10-uniform-dm-seed1", "cifar100-random10-uniform-base-seed1"} <= names


def test_a_right_result_has_no_problem(base: Result, bound: Result) -> None:
    for result in (base, bound):
        name = run_name(RunConfig(**result["config"]))
        assert problems_of(result, name, {}, bound_of(bound)) == []


def setting(*keys: str | int, to: Any) -> Callable[[Result], None]:
    def change(result: Any) -> None:
        for key in keys[:-1]:
            result = result[key]
        result[keys[-1]] = to

    return change


def removing(*keys: str | int) -> Callable[[Result], None]:
    def change(result: Any) -> None:
        for key in keys[:-1]:
            result = result[key]
        del result[keys[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (setting("metrics", "A_N", to=99.0), r"metrics.A_N is 99.0000, and \d"),
        (setting("metrics", "bwt", to=1.2345), "metrics.bwt is 1.2345"),
        (setting("metrics", "fgt", to=1.2345), "metrics.fgt is 1.2345"),
        (setting("metrics", "accuracies", 1, to=1.2345), "metrics.accuracies is "),
        (setting("metrics", "omega", to=1.2345), "metrics.omega is 1.2345"),
        (setting("metrics", "omega_curve", 0, to=1.2345), "metrics.omega_curve is "),
        (setting("metrics", "omega_double_sum", to=1.2345), "metrics.omega_double_sum is 1.2345"),
        (setting("R", 2, 0, to=87.654), "metrics.A_N is "),
        (setting("A", 2, 0, to=87.654), "metrics.bwt is "),
        (setting("P", 1, 1, to=87.654), "the diagonal of P is "),
        (setting("tasks", 1, "accuracy", to=87.654), r"tasks\[\].accuracy is "),
        (setting("R", 0, 1, to=1.0), "R must hold percentages up to its diagonal"),
        (setting("A", 1, 0, to=-1.0), "A must hold percentages"),
        (setting("R", to=[[1.0]]), "R has 1 rows for 3 tasks"),
        (setting("memory", "stored_images", to=7), "memory.stored_images is 7, and 6 at most"),
        (setting("complete", to=False), "complete is False with 3 of 3 tasks"),
        (setting("seed", to=2), "seed is 2, and 1 in config"),
        (setting("method", to="dm"), "method is 'dm', and 'base' in config"),
        (setting("stream", "order", to="parent"), "stream.order is 'parent', and 'random'"),
        (setting("task_sizes", 0, to=3), "task_sizes add up to 7, and there are 6 classes"),
        (setting("config", "epochs", to=2), "its configuration is that of shapes-random3"),
        (setting("config", "epochs", to="two"), "config: epochs must be a whole number"),
        (removing("metrics", "fgt"), "metrics.fgt is missing"),
        (removing("commit"), "commit.id is missing"),
        (removing("tasks", 0, "losses"), r"tasks\[\].losses.\* is missing in task 1"),
        (setting("tasks", 0, "losses", "classifier", to=1.0), r"tasks\[\].losses.\* must be list"),
        (setting("seed", to="1"), "seed must be whole number, not '1'"),
        (setting("uses_truth", to=None), "uses_truth must be true or false, not None"),
        (setting("classes", to=[1]), r"classes must be list of texts, not \[1\]"),
        (setting("A", to=[[1.0, 2.0]]), "A must be matrix"),
        (setting("extra", to=1), "extra is no field of a result"),
    ],
)
def test_what_was_tampered_with_is_found(
    base: Result, bound: Result, change: Callable[[Result], None], sentence: str
) -> None:
    tampered, name = copy.deepcopy(base), run_name(RunConfig(**base["config"]))
    change(tampered)
    problems = problems_of(tampered, name, {}, bound_of(bound))
    assert any(re.search(sentence, problem) for problem in problems), problems


def test_a_run_that_is_not_its_experiments_is_told_by_the_keys(
    planned: dict[str, PlannedRun],
) -> None:
    result = read_result(REAL / "cifar100-random10-uniform-dm-seed1.json")
    result["config"]["epochs"] = 20
    (problem,) = problems_of(result, "cifar100-random10-uniform-dm-seed1", planned)
    assert problem.startswith("its configuration is not that of ablation-random and ")
    assert problem.endswith(": epochs is 20 and not 200")


@pytest.mark.parametrize(
    ("commit", "remark"),
    [
        ({"id": "unknown", "dirty": None}, "it was made by an unknown commit"),
        ({"id": "ab", "dirty": True}, "it was made with changes beside its commit"),
        ({"id": "ab", "dirty": None}, "whether there were changes beside its commit is not known"),
        ({"id": "ab", "dirty": False}, None),
    ],
)
def test_code_that_cannot_be_had_again_is_remarked_on(
    base: Result, commit: dict[str, Any], remark: str | None
) -> None:
    remarks = remarks_on({**base, "commit": commit}, {})
    assert remarks == [*([remark] if remark else []), "no experiment has this run"]
