"""The commands over the ledger: results listed, filtered, checked and added, experiments listed."""

import json
import re
from pathlib import Path

import pytest
from made_up import made_up_ledger, made_up_result
from small_runs import ROOT, TESTS, Result

from distillmatch.cli import main
from distillmatch.suite.catalogue import experiment_names, load_experiment
from distillmatch.suite.ledger import Ledger
from distillmatch.suite.plan import plan

REAL = ROOT / "results"


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


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([], 2),
        (["--method", "base"], 1),
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
    assert (f"{count} result" if count else "none of 2 results matches the options") in shown
    assert count < 2 or ("01234567 with changes" in shown and "Base (coreset 6)" in shown)


@pytest.fixture(name="paper", scope="module")
def ledger_of_two_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up results of all runs of two tables."""
    ledger = Ledger(tmp_path_factory.mktemp("paper"))
    tables = [load_experiment(name) for name in ("table-2a", "table-3a")]
    for result in made_up_ledger(tables, [0, 1, 2]):
        ledger.add(result)
    return ledger.folder


def test_results_are_chosen_by_their_experiment_and_by_options_of_their_method(
    paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["results", "--ledger", str(paper), "--seed", "1"]
    shown = said([*words, "--experiment", "table-3a"], capsys)
    assert "cifar100-authors-random10-uniform-dm-seed1" in shown and "base" not in shown
    assert "6 results" in shown, "DM and its parts, and their bound"
    assert "1 result " in said([*words, "--where", "pseudo-labels=false"], capsys)
    assert "3 results" in said([*words, "--where", "recipe=paper", "method=gd"], capsys)


def test_the_archive_is_listed_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["results", "--ledger", str(folder)]
    assert "archive: expected results of runs, found none" in said([*words, "--archive"], capsys, 2)
    (folder / "archive").mkdir()
    old = (TESTS / "fixtures" / "version1.json").read_text()
    (folder / "archive" / "an-old-bound.json").write_text(old)
    (folder / "archive" / "index.json").write_text("{}")
    shown = said([*words, "--archive"], capsys)
    assert "1 result" in shown and "an-old-bound" in shown and "UB" in shown
    assert "an-old-bound" not in said(words, capsys)


def test_check_says_what_is_right_and_what_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = said(["results", "check", "--ledger", str(folder)], capsys)
    assert "all 2 results are right" in shown
    assert "remark: it was made with changes beside its commit" in shown
    path = next(folder.glob("*base*"))
    result = json.loads(path.read_text())
    result["metrics"]["A_N"] += 1
    path.write_text(json.dumps(result))
    shown = said(["results", "check", str(path)], capsys, 2)
    assert f"{path.stem}: wrong metrics.A_N is" in shown and "1 of 1 results are wrong" in shown


FOREIGN = {
    "notes": '{"title": "our notes"}',
    "half": '{"format": ',
    "null": '{"format": "distillmatch result", "version": 2, "config": null}',
    "list": '{"format": "distillmatch result", "version": 2, "config": [1], "tasks": 3}',
    "wrong": '{"format": "distillmatch result", "version": 2, "config": {"epochs": "two"}}',
    "old": (TESTS / "fixtures" / "version1.json").read_text(),
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
    # The old one can be read, and is of another method.
    named = [name for name in FOREIGN if (name, words) != ("old", ["--method", "base"])]
    assert f"{len(named)} of {len(named) + right} results are wrong" in shown
    for name in named:
        assert re.search(rf"{name}(\.json)?: wrong", shown), name
    assert "half.json: expected a result of a run in JSON" in shown


def test_the_suite_is_listed_with_what_is_done(
    tmp_path: Path, paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = said(["suite", "list", "--seeds", "1", "--ledger", str(paper)], capsys)
    for name in experiment_names():
        assert name in shown
    tables = [load_experiment(name) for name in ("table-2a", "table-3a")]
    done = len(plan(tables, [1]))
    assert re.search(rf"once: 65 for the paper, {done} done", shown)
    assert shown.index(" memory ") > shown.index(" table-8 "), "ours come after the paper's"
    experiments = [load_experiment(name) for name in experiment_names()]
    assert re.search(rf"{len(plan(experiments, [1]))} with ours, \d+ done", shown)
    empty = said(["suite", "list", "--ledger", str(tmp_path)], capsys)
    assert re.search("195 for the paper, 0 done", empty)


def test_the_cells_of_an_experiment_are_listed_with_both_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cell,) = [one for one in load_experiment("table-2a").cells if one.name == "DM/10 tasks"]
    dm = made_up_result(cell.config.replace(seed=1))
    Ledger(tmp_path).add(dm)
    words = ["suite", "list", "table-2a", "--seeds", "1", "--ledger", str(tmp_path)]
    shown = said(words, capsys)
    assert f"37.5 ± 0.7 | {dm['metrics']['A_N']:.1f}" in shown
    assert "8.2 ± 0.1 | – " in shown
    assert "17 of 18 runs are missing" in shown
    assert " cifar100-authors-random10-base-seed1" in shown
    assert " cifar100-authors-random10-uniform-dm-seed1" not in shown
    as_written = said([*words, "--recipe", "as-written"], capsys)
    assert "18 of 18 runs are missing" in as_written
    assert " cifar100-authors-random10-uniform-dm-as-written-seed1" in as_written


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
