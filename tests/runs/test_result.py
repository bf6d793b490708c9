"""The result of a run: as documented, and right when computed again from what it stores."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import make_dataset
from small_runs import TESTS, tiny

from distillmatch.errors import ResultError, RunFolderError, StreamError
from distillmatch.runs import Bound, bound_of, read_result, run
from distillmatch.runs.result import config_of
from distillmatch.runs.schema import problems_of_form
from distillmatch.sources import Dataset

VERSION_1 = TESTS / "fixtures" / "version1.json"
"""A result of version 1: the archived run of the upper bound with one task on CIFAR-100."""
SIZES = (1, 2, 3)
COUNTS = [8 * size for size in SIZES]
Result = dict[str, Any]


def six_classes() -> Dataset:
    return make_dataset(classes=6, per_class=10, test_per_class=8, parents=3, noise=True)


@pytest.fixture(name="bound", scope="module")
def bound_result() -> Result:
    return run(tiny(method="offline"), dataset=six_classes())


@pytest.fixture(name="result", scope="module")
def dm_result(bound: Result) -> Result:
    """Of dm with a coreset, against the bound."""
    config = tiny(method="dm", coreset=4, options={"consistency_threshold": 0.2})
    return run(config, dataset=six_classes(), bound=bound_of(bound))


def test_a_result_is_strict_json_in_the_form_that_is_checked(result: Result, bound: Result) -> None:
    for one in (result, bound):
        assert problems_of_form(json.loads(json.dumps(one, allow_nan=False))) == []


def test_a_result_records_its_configuration_and_all_options_of_its_method(result: Result) -> None:
    config = tiny(method="dm", coreset=4, options={"consistency_threshold": 0.2})
    assert config_of(result) == config
    assert result["config"]["options"] == {"consistency_threshold": 0.2}
    assert result["options"] == {
        "pseudo_labels": True,
        "class_balancing": True,
        "consistency_weight": 1.0,
        "distillation_weight": 1.0,
        "consistency_threshold": 0.2,
        "true_positive_rate": None,
    }


def changing(*keys: str | int, to: Any) -> Callable[[Any], None]:
    def change(result: Any) -> None:
        for key in keys[:-1]:
            result = result[key]
        if to is ...:
            del result[keys[-1]]
        else:
            result[keys[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (changing("metrics", "fgt", to=...), "metrics.fgt is missing"),
        (changing("seconds", "total", to=...), "seconds.total is missing"),
        (
            changing("config", "options", to="all"),
            "config.options: input should be a valid dictionary, not 'all'",
        ),
        (changing("commit", to=...), "commit is missing"),
        (changing("tasks", 0, "losses", to=...), "tasks[0].losses is missing"),
        (changing("tasks", 0, "losses", "classifier", to=[1.0]), "tasks[0].losses.classifier: "),
        (changing("seed", to="1"), "seed: input should be a valid integer, not '1'"),
        (changing("uses_truth", to=None), "uses_truth: input should be a valid boolean, not None"),
        (changing("classes", to=[1]), "classes[0]: input should be a valid string, not 1"),
        (changing("R", 1, 0, to="much"), "R[1][0]: input should be a valid number, not 'much'"),
        (changing("R", 0, 1, to=1.0), "R must hold percentages up to its diagonal"),
        (changing("A", 1, 0, to=-1.0), "A must hold percentages up to its diagonal"),
        (changing("P", 2, to=[1.0]), "P must hold percentages up to its diagonal"),
        (changing("R", to=[[1.0]]), "R has 1 rows for 3 tasks"),
        (changing("extra", to=1), "extra is no field of a result"),
        (changing("stream", "splits", to=...), "stream.splits is missing"),
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


def test_a_result_of_version_1_is_read_and_cannot_be_run_again() -> None:
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


def test_a_run_is_not_continued_in_the_folder_of_a_result_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(VERSION_1.read_text())
    config = tiny(method="base")
    with pytest.raises(RunFolderError, match="holds the result of an earlier version"):
        run(config, tmp_path, dataset=six_classes())
    assert run(config, tmp_path, dataset=six_classes(), resume="no")["version"] == 2


def test_the_metrics_are_those_of_the_stored_matrices(result: Result) -> None:
    seen, own, metrics = result["R"], result["A"], result["metrics"]
    accuracies = []
    for i in range(3):
        right = sum(seen[i][n] * COUNTS[n] for n in range(i + 1))
        accuracies.append(right / sum(COUNTS[: i + 1]))
        assert all(own[i][n] >= seen[i][n] for n in range(i + 1)), "fewer classes to confuse"
        assert result["P"][i][i] == pytest.approx(accuracies[i])
        assert all(matrix[i][n] is None for matrix in (seen, own) for n in range(i + 1, 3))
    assert metrics["accuracies"] == pytest.approx(accuracies)
    assert [task["accuracy"] for task in result["tasks"]] == metrics["accuracies"]
    assert metrics["A_N"] == pytest.approx(accuracies[-1])
    transfer = sum(own[2][n] - own[n][n] for n in range(2)) / 2
    assert metrics["bwt"] == pytest.approx(transfer)
    lost = 0.0
    for i in (1, 2):
        for n in range(i):
            lost += SIZES[n] / sum(SIZES[: i + 1]) * (seen[n][n] - seen[i][n])
    assert metrics["fgt"] == pytest.approx(lost / 2)


def test_omega_is_measured_against_the_bound(result: Result, bound: Result) -> None:
    metrics, offline = result["metrics"], bound["metrics"]["accuracies"]
    assert all(offline), "the bound must have learned something for this test to test anything"
    running, curve = 0.0, []
    for i in range(3):
        running += 100 * metrics["accuracies"][i] / offline[i]
        curve.append(running / (i + 1))
    assert metrics["omega_curve"] == pytest.approx(curve)
    assert metrics["omega"] == pytest.approx(curve[-1])
    double = 0.0
    for i in range(3):
        for n in range(i + 1):
            double += SIZES[n] / sum(SIZES[: i + 1]) * result["P"][i][n] / offline[n]
    assert metrics["omega_double_sum"] == pytest.approx(100 * double / 3)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 2}, "another stream: seed"),
        ({"labels_per_class": 3}, "another stream: labels_per_class"),
        ({"recipe": "as-written"}, "by recipe 'paper', and this run is by 'as-written'"),
    ],
)
def test_a_bound_of_another_stream_or_recipe_is_refused(
    bound: Result, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(StreamError, match=named) as refusal:
        run(tiny(method="base", **change), dataset=six_classes(), bound=bound_of(bound))
    assert "\n" not in str(refusal.value)
    other = make_dataset(classes=6, per_class=11, parents=3)
    with pytest.raises(StreamError, match="fingerprint"):
        run(tiny(method="base"), dataset=other, bound=bound_of(bound))


def test_a_bound_serves_all_unlabeled_streams_and_coresets(bound: Result) -> None:
    given = bound_of(bound)
    assert isinstance(given, Bound)
    other = tiny(method="base", unlabeled="task", coreset=3, epochs=1)
    assert run(other, dataset=six_classes(), bound=given)["metrics"]["omega"] is not None


def test_memory_is_that_of_the_coreset(result: Result, bound: Result) -> None:
    # Two labels a class: one class holds two images, three classes share four, six share four.
    assert [task["stored_images"] for task in result["tasks"]] == [2, 4, 4]
    image = 8 * 8 * 3
    assert [task["stored_bytes"] for task in result["tasks"]] == [2 * image, 4 * image, 4 * image]
    assert result["memory"]["stored_images"] == 4
    assert result["memory"]["stored_bytes"] == 4 * image
    assert result["memory"]["peak_device_bytes"] is None
    assert bound["memory"]["stored_images"] == 0


def test_seconds_add_up(result: Result) -> None:
    for phase in ("classifier", "detector", "evaluation"):
        spent = [task["seconds"].get(phase, 0.0) for task in result["tasks"]]
        assert result["seconds"][phase] == pytest.approx(sum(spent))
    phases = [value for name, value in result["seconds"].items() if name != "total"]
    assert sum(phases) <= result["seconds"]["total"]


def test_the_detector_is_diagnosed_where_it_is_used(result: Result) -> None:
    first, middle, last = (task["detector"] for task in result["tasks"])
    assert first["accepted"] is None, "no pseudo-labels in the first task"
    for used in (middle, last):
        assert 0 <= used["accepted"] <= 100
    for left in (first, middle):
        assert 0 <= left["auroc"] <= 100 and left["threshold"] is not None
    assert last["auroc"] is None and last["tpr"] is None, "no detector after the last task"


@pytest.mark.parametrize(("accept", "marked"), [("truth", True), ("everything", False)])
def test_a_run_that_was_given_the_truth_is_marked(accept: str, marked: bool) -> None:
    config = tiny(method="worldmatch", options={"accept": accept}, epochs=1)
    result = run(config, dataset=six_classes())
    assert result["uses_truth"] is marked
    if marked:
        assert all(task["detector"]["accepted_past"] in (None, 100) for task in result["tasks"])


def test_a_result_is_read_from_its_file_or_its_folder(tmp_path: Path) -> None:
    made = run(tiny(method="base", epochs=1), tmp_path / "run", dataset=six_classes())
    for where in (tmp_path / "run", tmp_path / "run" / "result.json", str(tmp_path / "run")):
        assert read_result(where) == made


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("not json", "expected a result of a run in JSON, found something else"),
        ("\x00\xff", "expected a result of a run in JSON, found something else"),
        ("[1, 2]", "expected a result of a run, found other JSON"),
        ('{"format": "distillmatch stream"}', "expected a result of a run, found other JSON"),
        ('{"format": "distillmatch result", "version": 99}', "expected version 1 or 2 .* found 99"),
        ('{"format": "distillmatch result"}', "expected version 1 or 2 .* found None"),
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
    assert str(file) in str(refusal.value) and "\n" not in str(refusal.value)
