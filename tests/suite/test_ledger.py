"""The ledger: results found by what was run, and checked in full."""

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from made_up import changing, made_up_result
from small_runs import ROOT, TESTS, tiny

from distillmatch.config import RunConfig
from distillmatch.errors import ResultError
from distillmatch.methods import with_options
from distillmatch.runs.result import config_of
from distillmatch.suite.catalogue import at_all_scales, experiment_names, load_experiment
from distillmatch.suite.checks import Check, Report
from distillmatch.suite.ledger import Ledger
from distillmatch.suite.names import run_name
from distillmatch.suite.plan import PlannedRun, plan

REAL = ROOT / "results"
Result = dict[str, Any]
BASE = with_options(tiny(method="base", coreset=6, epochs=1, task_sizes=None, tasks=3))


@pytest.fixture(name="planned", scope="module")
def planned_runs() -> dict[str, PlannedRun]:
    experiments = [load_experiment(name) for name in experiment_names()]
    return {one.name: one for one in plan(experiments, [0])}


# Adding and finding


def test_a_result_is_found_again_by_its_configuration(tmp_path: Path, base: Result) -> None:
    ledger = Ledger(tmp_path / "made on demand")
    assert ledger.find(BASE) is None and ledger.results() == []
    path = ledger.add(base)
    assert path.name == f"{run_name(BASE)}.json" and ledger.paths() == [path]
    assert ledger.find(BASE) == base == ledger.results()[0]
    elsewhere = BASE.replace(device="auto", data_dir=Path("x"))
    assert ledger.find(elsewhere) == base, "the place does not matter"
    others = {"seed": 2, "coreset": 5, "method": "e2e", "recipe": "as-written", "splits": "authors"}
    for key, value in others.items():
        assert ledger.find(BASE.replace(**{key: value})) is None
    older = copy.deepcopy(base)
    del older["config"]["schedule"]  # an option that came later was at its default
    ledger.add(older)
    assert ledger.find(BASE) == older
    assert ledger.find(BASE.replace(schedule="cosine")) is None


def test_what_is_not_the_configurations_whole_run_is_refused(tmp_path: Path, base: Result) -> None:
    ledger = Ledger(tmp_path / "ledger")
    part = {**base, "complete": False, "tasks": base["tasks"][:1]}
    with pytest.raises(ResultError, match="complete results; this one has 1 of 3 tasks"):
        ledger.add(part)
    fold = copy.deepcopy(base)
    fold["stream"]["fingerprint"] += "/0123"
    with pytest.raises(ResultError, match="saved stream or a validation fold"):
        ledger.add(fold)
    assert not list(tmp_path.iterdir())
    path = ledger.add(base)
    path.write_text(json.dumps(fold))
    assert ledger.find(BASE) is None
    with pytest.raises(ResultError, match="expected a folder of results, found a file"):
        Ledger(path)


def test_a_result_imports_nothing_that_it_names(
    tmp_path: Path, base: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    result = copy.deepcopy(base)
    result["config"] |= dict.fromkeys(("source", "method", "network"), "named:Thing")
    result["stream"]["source"] = result["method"] = "named:Thing"
    assert checked(result, None).problems == []
    ledger = Ledger(tmp_path / "ledger")
    ledger.add(result)
    assert ledger.find(config_of(result)) == result


# The archive


def with_index(folder: Path, runs: Any) -> Ledger:
    """Return a ledger whose archive's index says this."""
    (folder / "archive").mkdir(exist_ok=True)
    index = {"format": "distillmatch archive", "version": 1, "runs": runs}
    (folder / "archive" / "index.json").write_text(json.dumps(index))
    return Ledger(folder)


def test_the_archive_stands_in_for_runs_by_the_results_that_are_nearest(tmp_path: Path) -> None:
    name = "cifar100-random10-uniform-gd-seed"
    release, other = ({"preset": preset} for preset in ("release", "other"))
    runs = {
        f"{name}1": [{"file": "old-release-1", **release}, {"file": "old-1", **other}],
        f"{name}2": [{"file": "old-2", **other}, {"file": "old-release-2", **release}],
        f"{name}3": [{"file": "old-3", **other}],
    }
    ledger = with_index(tmp_path, runs)
    for file in ("old-release-1", "old-release-2"):
        shutil.copy(TESTS / "fixtures" / "version1.json", tmp_path / "archive" / f"{file}.json")
    config = RunConfig(source="cifar100", method="gd", splits="authors", seed=0)
    found = ledger.archive.nearest(config)
    files = {seed: one.file for seed, one in found.items()}
    assert files == {1: "old-release-1", 2: "old-release-2"}, "all by the preset of the first"
    assert all(ledger.archive.read(one)["version"] == 1 for one in found.values())
    assert not ledger.archive.nearest(config.replace(coreset=400))
    assert not ledger.archive.nearest(config.replace(recipe="as-written"))
    assert len(ledger.archive.paths()) == 2 and ledger.paths() == []


def test_a_ledger_without_an_archive_has_nothing_to_stand_in(tmp_path: Path) -> None:
    assert not Ledger(tmp_path).archive.nearest(BASE)
    for runs in (None, {"a": 3}, {"a": [{"file": "b"}]}):
        with pytest.raises(ResultError, match="expected runs, each with a list of files"):
            with_index(tmp_path, runs).archive.nearest(BASE)


def test_the_real_archives_index_names_runs_and_files_that_are_there(
    planned: dict[str, PlannedRun],
) -> None:
    archive = Ledger(REAL).archive
    index = json.loads((REAL / "archive" / "index.json").read_text())["runs"]
    named = {entry["file"] for entries in index.values() for entry in entries}
    assert named and named <= {path.stem for path in archive.paths()}
    stood_for = [run for run in planned.values() if archive.nearest(run.config)]
    assert stood_for, "runs of today that an archived one stands in for"
    (nearest, *_) = archive.nearest(stood_for[0].config).values()
    assert archive.read(nearest)["method"] == stood_for[0].config.method


# The check


def checked(result: Result, name: str | None, planned: Any = None, bound: Any = None) -> Report:
    check = Check(planned or {})
    report = check.add(result, name)
    if bound is not None:
        check.add(bound, None)
    check.finish()
    return report


def test_cells_are_as_their_methods_see_them() -> None:
    """So the ledger finds their results without asking a method, which would import torch."""
    for name in experiment_names():
        for experiment in at_all_scales(load_experiment(name)):
            assert all(with_options(cell.config) == cell.config for cell in experiment.cells)


def test_the_real_ledger_is_right(planned: dict[str, PlannedRun]) -> None:
    ledger = Ledger(REAL)
    assert ledger.paths()
    for path, result in zip(ledger.paths(), ledger.results(), strict=True):
        assert checked(result, path.stem, planned).problems == [], path.name
        assert ledger.find(config_of(result)) == result


TAMPERED = [
    (changing("metrics", "A_N", to=99.0), r"metrics.A_N is 99.0000, and \d"),
    (changing("metrics", "omega", to=1.2345), "metrics.omega is 1.2345"),
    (changing("metrics", "omega_double_sum", to=1.2345), "metrics.omega_double_sum is 1.2345"),
    (changing("R", 2, 0, to=87.654), "metrics.A_N is "),
    (changing("A", 2, 0, to=87.654), "metrics.bwt is "),
    (changing("P", 1, 1, to=87.654), "the diagonal of P is "),
    (changing("tasks", 1, "accuracy", to=87.654), r"tasks\[\].accuracy is "),
    (changing("memory", "stored_images", to=7), "memory.stored_images is 7, and 6 at"),
    (changing("complete", to=False), "complete is false, and true with 3 of 3 tasks"),
    (changing("seed", to=2), "seed is 2, and 1 in config"),
    (changing("method", to="dm"), 'method is "dm", and "base" in config'),
    (changing("stream", "repetition", to=0.5), "stream.repetition is 0.5000, and 0"),
    (changing("task_sizes", 0, to=3), "the sum of task_sizes is 7, and 6 by classes"),
    (changing("config", "epochs", to=2), "its configuration is that of shapes-random3"),
    (changing("config", "epochs", to="two"), "config: epochs must be a whole number"),
    (changing("options", to={"a": 1}), "options.a is 1, and null by default"),
]


def test_what_was_tampered_with_is_found(base: Result, bound: Result) -> None:
    name = run_name(config_of(base))
    assert checked(bound, None).problems == checked(base, name, bound=bound).problems == []
    for change, sentence in TAMPERED:
        tampered = copy.deepcopy(base)
        change(tampered)
        problems = checked(tampered, name, bound=bound).problems
        assert any(re.search(sentence, problem) for problem in problems), (sentence, problems)


def test_a_run_that_is_not_its_experiments_is_told_by_the_keys(
    planned: dict[str, PlannedRun],
) -> None:
    name = "cifar100-authors-random10-uniform-dm-seed0"
    result = made_up_result(planned[name].config.replace(epochs=20))
    (problem,) = checked(result, name, planned).problems
    assert problem.startswith("its configuration is not that of ablation-random and ")
    assert problem.endswith(": epochs is 20 and not 200")
