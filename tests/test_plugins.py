"""What a user adds: the examples of the documentation, entry points, and wrong names."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from small_runs import ROOT

from distillmatch.cli import main
from distillmatch.methods import registry
from distillmatch.runs import read_result

EXAMPLES = ROOT / "examples"
SHORT = [
    *("--network", "wrn-10-1", "--epochs", "1", "--batch", "16", "--unlabeled-batch", "16"),
    *("--device", "cpu", "--quiet"),
]


def in_a_process(
    words: Sequence[str], folder: Path, python_path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, from a folder of theirs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path)
    return subprocess.run(
        [sys.executable, "-m", "distillmatch", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_examples_run_from_their_folder(tmp_path: Path) -> None:
    words = ["run", "--source", "own_source:stripes", "--image-size", "8", "--tasks", "2"]
    words += ["--method", "own_method:LwfMatch", "--past-weight", "2"]
    done = in_a_process([*words, *SHORT, "--out", str(tmp_path)], EXAMPLES)
    assert (done.returncode, done.stderr) == (0, "")
    result = read_result(tmp_path)
    assert result["complete"] and result["method"] == "own_method:LwfMatch"
    assert result["classes"][0].split()[0] in ("fine", "medium", "broad")
    assert result["config"]["options"] == {"past_weight": 2} == result["options"]
    losses = {"loss", "labels", "consistency", "distillation"}
    assert result["tasks"][1]["losses"]["classifier"].keys() == losses


@pytest.fixture(name="installed")
def installed_package(tmp_path: Path) -> Path:
    """A package of somebody else's that registers a source and a method, as pip would leave it."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "their_package.py").write_text(
        "from distillmatch.methods.base import Base\n"
        "import own_source\n"
        "class Theirs(Base):\n"
        "    pass\n"
        "def load(config):\n"
        "    return own_source.stripes(config)\n"
    )
    (site / "own_source.py").write_text((EXAMPLES / "own_source.py").read_text("utf-8"))
    information = site / "their_package-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n"
    )
    (information / "entry_points.txt").write_text(
        "[distillmatch.sources]\ntheir-stripes = their_package:load\n"
        "[distillmatch.methods]\ntheir-base = their_package:Theirs\n"
    )
    return site


def test_an_installed_package_adds_a_source_and_a_method_by_name(
    installed: Path, tmp_path: Path
) -> None:
    words = ["run", "--source", "their-stripes", "--image-size", "8", "--tasks", "2"]
    words += ["--method", "their-base", *SHORT, "--out", str(tmp_path / "out")]
    done = in_a_process(words, tmp_path, installed)
    assert (done.returncode, done.stderr) == (0, "")
    result = read_result(tmp_path / "out")
    assert (result["method"], result["stream"]["source"]) == ("their-base", "their-stripes")
    done = in_a_process(["stream", "--source", "nothing"], tmp_path, installed)
    assert done.returncode == 2
    assert "their-stripes" in done.stderr and "cifar100" in done.stderr


THERE = "the import of module 'broken' failed with"


@pytest.mark.parametrize(
    ("code", "words", "sentence"),
    [
        ("", "--method nowhere:Lwf", "method 'nowhere:Lwf': there is no module 'nowhere'"),
        ("", "--method broken:Lwf", "method 'broken:Lwf': module 'broken' has no 'Lwf'"),
        ("f = print", "--method broken:f", "must be a subclass of distillmatch.methods.Method"),
        ("", "--method ../x:y", "method must be module:name, not '../x:y'"),
        ("def f(): raise SystemExit(0)", "--network broken:f", "SystemExit"),
        (
            "def f(:",
            "--source broken:f",
            f"{THERE} SyntaxError: invalid syntax (broken.py, line 1)",
        ),
        ("import no", "--method broken:f", f"{THERE} ModuleNotFoundError: No module named 'no'"),
        ("{}['missing']", "--source broken:f", f"{THERE} KeyError: 'missing'"),
        ("raise SystemExit(0)", "--method broken:f", f"{THERE} SystemExit: 0"),
    ],
)
def test_a_wrong_name_is_one_sentence_and_exit_code_2(
    code: str,
    words: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken.py").write_text(f"{code}\n")
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--tasks", "2", *SHORT, *words.split(), "--out", "out"]) == 2
    said = capsys.readouterr()
    assert sentence in said.err and said.err.startswith("distillmatch: error: ")
    assert said.err.count("\n") == 1 and said.out == ""
    assert not (tmp_path / "out" / "result.json").exists()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import no", "the import of module 'their_package' failed with ModuleNotFoundError"),
        ("def load(config): raise SystemExit(0)", "'their-stripes' failed with SystemExit: 0"),
        ("def load(config): return 3", "must return a distillmatch.sources.Dataset, not an int"),
    ],
)
def test_an_installed_source_that_fails_or_exits_is_one_sentence(
    code: str,
    sentence: str,
    installed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (installed / "their_package.py").write_text(f"{code}\n")
    monkeypatch.syspath_prepend(installed)
    monkeypatch.delitem(sys.modules, "their_package", raising=False)
    assert main(["stream", "--source", "their-stripes"]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_an_option_that_an_own_method_does_not_have_is_refused_and_the_nearest_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.delitem(sys.modules, "own_method", raising=False)
    monkeypatch.delitem(registry._given, "own_method:LwfMatch", raising=False)
    file = tmp_path / "run.yaml"
    file.write_text("method: own_method:LwfMatch\noptions: {pats_weight: 2}\n")
    allow, wrong = ["--allow-import", "own_method:LwfMatch"], ["--pats-weight", "2"]
    by_file = ["--config", str(file)]
    for words, sentence in (
        ([*by_file, *wrong], "a file does not decide what is imported"),
        ([*by_file, *wrong, *allow], "option '--pats-weight' (did you mean '--past-weight'?)"),
        ([*by_file, *allow], "has no option 'pats_weight' (did you mean 'past_weight'?)"),
        (["--method", allow[1], *wrong], "option '--pats-weight' (did you mean '--past-weight'?)"),
    ):
        assert main(["run", *words, "--out", str(tmp_path / "out")]) == 2
        assert sentence in capsys.readouterr().err
        assert ("own_method" in sys.modules) == ("import" not in sentence)


BROKEN = """
from dataclasses import replace
from typing import NamedTuple
import torch
from distillmatch.methods.base import Base

class Rows(NamedTuple):
    a: object

class Broken(Base):
    def trainings(self, task):
        one = self.training(task)
        {training}

    def loss(self, batch, task):
        right = super().loss(batch, task)
        {loss}

    def logits(self, images):
        {logits}

    def frozen(self, images, task):
        {frozen}
"""
SOUND = {
    "training": "return [one]",
    "loss": "return right",
    "logits": "return super().logits(images)",
    "frozen": "return Rows(images)",
}
FROZEN = "return [replace(one, frozen_labeled=self.frozen)]"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"training": "pass"}, "method 'broken:Broken': trainings must return a list of"),
        ({"training": "return [None]"}, "Training, not with None in it"),
        ({"loss": "return 0.5"}, "must be a number, or numbers by name, not a float"),
        ({"loss": "return {'a': right, 'b': 1}"}, "and 'b' is an int"),
        ({"loss": "return {'loss': right, 'other': right}"}, "'loss'"),
        ({"loss": "return torch.ones(2)"}, "not a tensor of shape (2,): take a sum or"),
        ({"loss": "return torch.ones(())"}, "weights, and it does not"),
        ({"training": FROZEN, "frozen": "return 1"}, "frozen must return a NamedTuple of tensors"),
        ({"training": FROZEN, "frozen": "return Rows(images[:1])"}, "'a' has a shape of (1, "),
        ({"logits": "pass"}, "of at least 20 outputs, not None"),
        ({"logits": "return super().logits(images)[:, :2]"}, "outputs, not a shape of ("),
    ],
)
def test_what_an_own_method_gives_against_the_contract_is_one_sentence_and_exit_code_2(
    parts: dict[str, str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN.format(**{**SOUND, **parts}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    words = ["run", "--source", "shapes", "--tasks", "3", "--method", "broken:Broken", *SHORT]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.startswith("distillmatch: error: ")
    assert said.count("\n") == 1
