"""The ledger: results found by what was run, checked in full, listed and compared."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import make_dataset
from made_up import made_up_ledger

from distillmatch.cli import main
from distillmatch.config import RunConfig
from distillmatch.errors import ResultError
from distillmatch.run import bound_of, run
from distillmatch.run.result import recorded_config
from distillmatch.suite.catalogue import at_scale, experiment_names, load_experiment
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
        assert ledger.find(RunConfig(**result["config"])) == result
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
    (result,) = [r for r in Ledger(REAL).results() if r["method"] == "dm"]
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


# The commands


@pytest.fixture(name="folder")
def filled_ledger(tmp_path: Path, base: Result, bound: Result) -> Path:
    ledger = Ledger(tmp_path / "ledger")
    ledger.add(bound)
    ledger.add({**base, "commit": {"id": "0123456789ab", "dirty": True}})
    return ledger.folder


def said(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert main(words) == code
    captured = capsys.readouterr()
    if code:
        assert captured.err.count("\n") == 1 and captured.err.startswith("distillmatch: error: ")
    return " ".join((captured.out + captured.err).split())


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


def test_results_are_listed_and_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(["results", "--ledger", str(folder)], capsys)
    assert "2 results" in shown and "01234567 with changes" in shown
    assert "Base (coreset 6)" in shown and "UB (coreset 0)" in shown


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--method", "base"], 1),
        (["--seed", "1"], 2),
        (["--where", "coreset=6", "epochs=1"], 1),
        (["--where", "unlabeled-batch=8"], 2),
        (["--method", "base", "--where", "coreset=0"], 0),
        (["--seed", "2"], 0),
        (["--experiment", "table-2a"], 0),
    ],
)
def test_results_are_filtered(
    folder: Path, words: list[str], count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = said(["results", "--ledger", str(folder), *words], capsys, 0 if count else 2)
    assert (f"{count} result" if count else "none of 2 results is as asked for") in shown


def test_the_runs_of_an_experiment_are_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["results", "--ledger", str(REAL), "--experiment", "table-3a", "--seed", "1"]
    shown = said(words, capsys)
    assert "cifar100-random10-uniform-dm-seed1" in shown and "base" not in shown


def test_small_runs_belong_to_their_experiments_too(
    tmp_path: Path, base: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    small = at_scale(load_experiment("table-2b"), "quick").cells
    config = next(cell.config for cell in small if cell.config.method == "base")
    # Another configuration over the figures of a run: the choice looks at nothing else.
    result = {**base, "config": recorded_config(config)}
    words = ["--ledger", str(Ledger(tmp_path).add(result).parent)]
    assert "1 result" in said(["results", "--experiment", "table-2b", *words], capsys)
    assert "none of 1 results" in said(["results", "--experiment", "table-2a", *words], capsys, 2)


def test_check_says_that_all_is_right(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(["results", "check", "--ledger", str(folder)], capsys)
    assert "all 2 results are right" in shown
    assert "remark: it was made with changes beside its commit" in shown


def test_check_says_what_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(folder.glob("*base*"))
    result = json.loads(path.read_text())
    result["metrics"]["A_N"] += 1
    path.write_text(json.dumps(result))
    shown = said(["results", "check", "--ledger", str(folder)], capsys, 2)
    assert f"{path.stem}: wrong metrics.A_N is" in shown
    assert "1 of 2 results are wrong" in shown
    shown = said(["results", "check", str(path)], capsys, 2)
    assert "1 of 1 results are wrong" in shown


def test_runs_of_experiments_beyond_the_paper_are_right_and_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path)
    for name in ("gates", "readings"):
        for result in made_up_ledger([load_experiment(name)], [1]):
            result["commit"]["dirty"] = False
            result["stream"]["fingerprint"] = "made"
            ledger.add(result)
    shown = said(["results", "check", "--ledger", str(tmp_path)], capsys)
    assert f"all {len(ledger.paths())} results are right" in shown
    assert "no experiment has this run" not in shown
    assert "gate=truth-seed1: right remark: its method was given the truth" in shown


def test_a_run_outside_the_ledger_may_have_any_name(
    tmp_path: Path, base: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "result.json").write_text(json.dumps(base))
    assert "all 1 results are right" in said(["results", "check", str(tmp_path)], capsys)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["results", "--ledger", "{}/none"], "none: expected results of runs, found none"),
        (["results", "--where", "colour=red"], "--where takes key=value with an option of a run"),
        (["results", "--where", "tasks"], "--where takes key=value with an option of a run"),
        (["results", "--where", "tasks=[1"], "'[1' is no value"),
        (["results", "x.json", "--ledger", "y"], "takes files or --ledger, not both"),
        (["results", "--experiment", "table-9", "--ledger", "{}"], "expected results of runs"),
        (["suite", "list", "table-9"], "unknown experiment 'table-9'"),
        (["suite", "list", "--seeds", "1,1"], "different whole numbers such as 1,2,3, not '1,1'"),
        (["suite", "list", "--seeds", "one"], "different whole numbers such as 1,2,3, not 'one'"),
        (["suite", "list", "--scale", "tiny"], "invalid choice: 'tiny'"),
        (["suite"], "the following arguments are required: PART"),
    ],
)
def test_wrong_words_are_refused_in_one_sentence(
    tmp_path: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in said([word.format(tmp_path) for word in words], capsys, 2)


def test_the_suite_is_listed_with_what_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = said(["suite", "list", "--seeds", "1", "--ledger", str(REAL)], capsys)
    for name in experiment_names():
        assert name in shown
    assert re.search(r"the paper, shared runs once [│ ]+65 [│ ]+\d+", shown)
    assert shown.index(" gates ") > shown.index(" table-8 "), "ours come after the paper's"
    experiments = [load_experiment(name) for name in experiment_names()]
    assert re.search(rf"with ours [│ ]+{len(plan(experiments, [1]))} [│ ]+\d+", shown)
    empty = said(["suite", "list", "--ledger", str(tmp_path)], capsys)
    assert re.search(r"the paper, shared runs once [│ ]+195 [│ ]+0 ", empty)


def test_the_cells_of_an_experiment_are_listed_with_both_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dm,) = [
        r for r in Ledger(REAL).results() if r["config"]["tasks"] == 10 and r["method"] == "dm"
    ]
    Ledger(tmp_path).add(dm)
    shown = said(["suite", "list", "table-2a", "--seeds", "1", "--ledger", str(tmp_path)], capsys)
    assert f"37.5 ± 0.7 | {dm['metrics']['A_N']:.1f}" in shown and "1 of 1" in shown
    assert "8.2 ± 0.1 | – " in shown and "0 of 1" in shown
    assert "17 of 18 runs are missing" in shown
    assert "cifar100-random10-uniform-base-seed1" in shown
    assert " cifar100-random10-uniform-dm-seed1" not in shown


def test_results_made_elsewhere_are_added_all_or_none(
    tmp_path: Path, base: Result, bound: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, result in (("one", base), ("two", bound)):
        (tmp_path / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
    files = [str(tmp_path / "one.json"), str(tmp_path / "two.json")]

    def add(*files: str) -> int:
        return main(["results", "add", *files, "--ledger", str(tmp_path / "ledger")])

    broken = {**base, "metrics": {**base["metrics"], "A_N": 99.0}}
    (tmp_path / "broken.json").write_text(json.dumps(broken), encoding="utf-8")
    assert add(*files, str(tmp_path / "broken.json")) == 2
    assert "broken.json: " in capsys.readouterr().err
    assert not (tmp_path / "ledger").exists()
    assert add(*files) == 0
    assert add(*files) == 0, "the same again changes nothing"
    ledger = Ledger(tmp_path / "ledger")
    assert len(ledger.results()) == 2
    again = {**base, "seconds": {**base["seconds"], "total": 1.0}}
    (tmp_path / "one.json").write_text(json.dumps(again), encoding="utf-8")
    assert add(files[0]) == 2
    assert "--replace" in capsys.readouterr().err
    assert add(files[0], "--replace") == 0
    assert again in ledger.results()
    assert add() == 2
