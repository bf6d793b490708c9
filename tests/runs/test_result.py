"""The result of a run: as documented, and right when computed again from what it stores."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_dataset
from made_up import changing
from small_runs import TESTS, tiny

from distillmatch.errors import ResultError, RunFolderError, StreamError
from distillmatch.methods import find_method
from distillmatch.metrics import (
    accuracy_matrix,
    backward_transfer,
    forgetting,
    omega_curve,
    omega_double_sum,
    overall_accuracies,
)
from distillmatch.runs import bound_of, read_result, run
from distillmatch.runs.result import config_of
from distillmatch.runs.schema import problems_of_form
from distillmatch.sources import Dataset

VERSION_1 = TESTS / "fixtures" / "version1.json"
"""A result of version 1: the archived run of the upper bound with one task on CIFAR-100."""
SIZES = (1, 2, 3)
COUNTS = [8 * size for size in SIZES]
DM = tiny(method="dm", coreset=4, options={"consistency_threshold": 0.2})
Result = dict[str, Any]


def six_classes() -> Dataset:
    return make_dataset(classes=6, per_class=10, test_per_class=8, parents=3, noise=True)


@pytest.fixture(name="bound", scope="module")
def bound_result() -> Result:
    return run(tiny(method="offline"), dataset=six_classes())


@pytest.fixture(name="result", scope="module")
def dm_result(bound: Result) -> Result:
    """Of DM, against the bound."""
    return run(DM, dataset=six_classes(), bound=bound_of(bound))


def test_a_result_is_strict_json_with_its_configuration_and_all_options_of_its_method(
    result: Result, bound: Result
) -> None:
    for one in (result, bound):
        assert problems_of_form(json.loads(json.dumps(one, allow_nan=False))) == []
    assert config_of(result) == DM
    assert result["config"]["options"] == DM.options
    assert result["options"] == find_method("dm").Options(**DM.options).model_dump(mode="json")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (changing("metrics", "fgt", to=...), "metrics.fgt is missing"),
        (changing("config", "options", to="all"), "config.options: input should be a valid dict"),
        (changing("tasks", 0, "losses", "classifier", to=[1.0]), "tasks[0].losses.classifier: "),
        (changing("seed", to="1"), "seed: input should be a valid integer, not '1'"),
        (changing("R", 1, 0, to="much"), "R[1][0]: input should be a valid number, not 'much'"),
        (changing("R", 0, 1, to=1.0), "R must hold percentages up to its diagonal"),
        (changing("P", 2, to=[1.0]), "P must hold percentages up to its diagonal"),
        (changing("R", to=[[1.0]]), "R has 1 rows for 3 tasks"),
        (changing("extra", to=1), "extra is no field of a result"),
    ],
)
def test_what_is_wrong_with_the_form_of_a_result_is_named(
    result: Result, change: Callable[[Any], None], sentence: str, tmp_path: Path
) -> None:
    wrong = copy.deepcopy(result)
    change(wrong)
    (problem,) = problems_of_form(wrong)
    assert problem.startswith(sentence)
    (tmp_path / "result.json").write_text(json.dumps(wrong))
    with pytest.raises(ResultError) as refusal:
        read_result(tmp_path)
    assert str(refusal.value).endswith(f"expected a result of a run, but {problem}")


def test_a_result_of_version_1_is_read_and_cannot_be_run_again_or_continued(tmp_path: Path) -> None:
    """Its figures are there in the form of today; the options that it was made by are gone."""
    raw = json.loads(VERSION_1.read_text())
    result = read_result(VERSION_1)
    assert raw["version"] == result["version"] == 1
    for key in ("metrics", "R", "A", "P", "config", "memory", "task_sizes"):
        assert result[key] == raw[key]
    assert result["options"] == {} and result["stream"] == {**raw["stream"], "splits": "hashed"}
    for task, was in zip(result["tasks"], raw["tasks"], strict=True):
        assert task["losses"] == {name: {"loss": means} for name, means in was["losses"].items()}
    with pytest.raises(ResultError, match=r"there: an earlier version made it, by options that"):
        config_of(result, "there")
    (tmp_path / "result.json").write_text(VERSION_1.read_text())
    config = tiny(method="base")
    with pytest.raises(RunFolderError, match="holds the result of an earlier version"):
        run(config, tmp_path, dataset=six_classes())
    assert run(config, tmp_path, dataset=six_classes(), resume="no")["version"] == 2


def test_the_metrics_are_those_of_the_stored_matrices(result: Result, bound: Result) -> None:
    seen, own, prefix = (
        accuracy_matrix([r[: i + 1] for i, r in enumerate(result[n])]) for n in "RAP"
    )
    metrics, offline = result["metrics"], bound["metrics"]["accuracies"]
    assert (own >= seen)[np.tril_indices(3)].all(), "fewer classes to confuse"
    overall = overall_accuracies(seen, COUNTS)
    assert metrics["accuracies"] == pytest.approx(overall) == np.diagonal(prefix)
    assert [task["accuracy"] for task in result["tasks"]] == metrics["accuracies"]
    assert metrics["A_N"] == metrics["accuracies"][-1]
    assert metrics["bwt"] == backward_transfer(own) and metrics["fgt"] == forgetting(seen, SIZES)
    assert all(offline), "the bound must have learned something for this test to test anything"
    assert metrics["omega_curve"] == pytest.approx(omega_curve(overall, offline))
    assert metrics["omega"] == metrics["omega_curve"][-1]
    assert metrics["omega_double_sum"] == omega_double_sum(prefix, offline, SIZES)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 2}, "another stream: seed"),
        ({"labels_per_class": 3}, "another stream: labels_per_class"),
        ({"repetition": 0.5}, "another stream: repetition"),
        ({"recipe": "as-written"}, "by recipe 'paper', and this run is by 'as-written'"),
    ],
)
def test_a_bound_of_another_stream_or_recipe_is_refused(
    bound: Result, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(StreamError, match=named):
        run(tiny(method="base", **change), dataset=six_classes(), bound=bound_of(bound))


def test_a_bound_of_other_data_or_divided_labels_is_refused(bound: Result) -> None:
    divided = {**bound, "stream": {**bound["stream"], "repetition": 0.5}}
    with pytest.raises(StreamError, match="another stream: repetition"):
        run(tiny(method="base"), dataset=six_classes(), bound=bound_of(divided))
    other = make_dataset(classes=6, per_class=11, parents=3)
    with pytest.raises(StreamError, match="fingerprint"):
        run(tiny(method="base"), dataset=other, bound=bound_of(bound))


def test_memory_and_seconds_add_up(result: Result, bound: Result) -> None:
    # Two labels a class: one class holds two images, three classes share four, six share four.
    assert [task["stored_images"] for task in result["tasks"]] == [2, 4, 4]
    assert all(t["stored_bytes"] == 8 * 8 * 3 * t["stored_images"] for t in result["tasks"])
    most = {"stored_images": 4, "stored_bytes": 4 * 8 * 8 * 3, "peak_device_bytes": None}
    assert result["memory"] == most
    assert bound["memory"]["stored_images"] == 0
    spent = {name: value for name, value in result["seconds"].items() if name != "total"}
    assert spent.keys() > {"classifier", "detector", "evaluation"}
    for name, value in spent.items():
        assert value == pytest.approx(sum(t["seconds"].get(name, 0.0) for t in result["tasks"]))
    assert sum(spent.values()) <= result["seconds"]["total"]


def test_the_detector_is_diagnosed_where_it_is_used(result: Result) -> None:
    first, middle, last = (task["detector"] for task in result["tasks"])
    assert first["accepted"] is None, "no pseudo-labels in the first task"
    assert all(0 <= used["accepted"] <= 100 for used in (middle, last))
    for left in (first, middle):
        assert 0 <= left["auroc"] <= 100 and left["threshold"] is not None
    assert last["auroc"] is None and last["tpr"] is None, "no detector after the last task"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("not json", "expected a result of a run in JSON, found something else"),
        ('{"format": "distillmatch stream"}', "expected a result of a run, found other JSON"),
        ('{"format": "distillmatch result", "version": 99}', "expected version 1 or 2 .* found 99"),
        (None, "No such file"),
    ],
)
def test_other_files_are_refused_in_one_sentence(
    tmp_path: Path, content: str | None, sentence: str
) -> None:
    file = tmp_path / "result.json"
    if content is not None:
        file.write_text(content, encoding="latin-1")
    with pytest.raises(ResultError, match=sentence) as refusal:
        read_result(file)
    assert str(file) in str(refusal.value)
