"""The commands over the ledger: results listed, filtered, checked and added, experiments listed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_up import made_up_ledger
from test_ledger import REAL, Result, base_result, bound_result, made  # noqa: F401  fixtures

from distillmatch.cli import main
from distillmatch.errors import ResultError
from distillmatch.run import read_result
from distillmatch.run.result import recorded_config
from distillmatch.suite.catalogue import at_scale, experiment_names, load_experiment
from distillmatch.suite.ledger import Ledger, config_of
from distillmatch.suite.plan import plan


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


def test_omega_is_that_of_the_ledgers_bounds_whatever_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the document's example; nothing that it leaves is a bound."""
    words = ["results", "--ledger", str(REAL), "--experiment", "table-2a", "--where", "tasks=10"]
    row = re.compile(r"│ DM │ 3 │ [^│]+ │ ([^│]+) │")
    of_all, alone = (
        row.findall(said([*words, *more], capsys))[-1] for more in ([], ["--method", "dm"])
    )
    assert alone == of_all != "-"


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


FOREIGN = {
    "notes": '{"title": "our notes"}',
    "half": '{"format": ',
    "null": '{"format": "distillmatch result", "version": 1, "config": null}',
    "list": '{"format": "distillmatch result", "version": 1, "config": [1], "tasks": 3}',
    "old": '{"format": "distillmatch result", "version": 1, "config": {"epochs": "two"}}',
}


@pytest.mark.parametrize("words", [[], ["--experiment", "table-2a"], ["--method", "base"]])
def test_foreign_files_are_named_and_the_others_checked(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FOREIGN.items():
        (folder / f"{name}.json").write_text(text)
    shown = said(["results", "check", "--ledger", str(folder), *words], capsys, 2)
    right = {"--method": 1, "--experiment": 0}.get("".join(words[:1]), 2)
    assert shown.count(": right") == right
    assert f"{len(FOREIGN)} of {len(FOREIGN) + right} results are wrong" in shown
    for name in FOREIGN:
        assert re.search(rf"{name}(\.json)?: wrong", shown), name
    assert "half.json: expected a result of a run in JSON" in shown


@pytest.mark.parametrize("config", [None, [1], "dm"])
def test_a_result_without_a_configuration_is_one_sentence(
    config: Any, tmp_path: Path, base: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ResultError, match=r"x.json: config: expected the options of a run by name"):
        config_of({"config": config}, Path("x.json"))
    file = tmp_path / "x.json"
    file.write_text(json.dumps({**base, "config": config}))
    for words in (
        ["results", str(file), "--experiment", "table-2a"],
        ["results", "add", str(file)],
    ):
        assert "x.json: " in said(words, capsys, 2)


def test_results_of_small_runs_are_where_the_suite_puts_them(
    tmp_path: Path,
    base: Result,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Ledger(Path("runs/quick/results")).add(base)
    assert "1 result" in said(["results", "--scale", "quick"], capsys)
    assert "all 1 results are right" in said(["results", "check", "--scale", "quick"], capsys)
    assert "results: expected results of runs, found none" in said(["results"], capsys, 2)


def test_runs_of_experiments_beyond_the_paper_are_right_and_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path)
    for name in ("coreset-readings", "gates", "readings"):
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
    dm = read_result(REAL / "cifar100-random10-uniform-dm-seed1.json")
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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["add", "x", "--method", "dm"], "--method goes with listing and checking"),
        (["add", "x", "--seed", "0"], "--seed goes with listing and checking"),
        (["add", "x", "--where", "tasks=5"], "--where goes with listing and checking"),
        (["--replace"], "--replace goes with results add only"),
        (["check", "--replace"], "--replace goes with results add only"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["results", *words]) == 2
    assert sentence in capsys.readouterr().err
