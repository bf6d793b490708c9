"""What a result says of the code that made it."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from made_up import made_up_run

from distillmatch.runs import machine
from distillmatch.runs.machine import PACKAGE, commit, tree_in_history, tree_of
from distillmatch.suite.checks import Check


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    return subprocess.check_output(["git", "-C", str(folder), *who, *words], text=True).strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository with the package in it, as it is now, and folders that sort oddly."""
    package = tmp_path / "src" / "distillmatch"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("run.py", "run-2/a.py", "run/b.py", "run0", "äöü/ß.py"):
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_bytes(name.encode() + b"\r\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "-c", "core.autocrlf=false", "add", "--force", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all of it")
    return tmp_path


def test_files_are_named_as_git_names_them(repository: Path) -> None:
    package = repository / "src" / "distillmatch"
    named = git(repository, "rev-parse", "HEAD:src/distillmatch")
    (package / "run" / "__pycache__").mkdir()
    (package / "run" / "__pycache__" / "b.pyc").write_bytes(b"made by Python")
    (package / "empty" / "emptier").mkdir(parents=True)
    assert tree_of(package) == named
    (package / "run" / "b.py").write_bytes(b"changed")
    assert tree_of(package) != named


def test_a_copy_without_history_can_be_held_against_its_commit(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    package = repository / "src" / "distillmatch"
    copied = tmp_path_factory.mktemp("elsewhere") / "distillmatch"
    shutil.copytree(package, copied)
    head = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("DISTILLMATCH_COMMIT", head)
    monkeypatch.setattr(machine, "PACKAGE", copied)
    said = commit.__wrapped__()
    assert (said["id"], said["dirty"]) == (head, None)
    (copied / "run0").write_bytes(b"changed")
    changed = commit.__wrapped__()
    monkeypatch.setattr(machine, "PACKAGE", package)
    tree_in_history.cache_clear()
    assert tree_in_history(head) == tree_in_history(head[:10]) == said["tree"]
    assert [remarks(one) for one in (said, changed, {**said, "id": "0" * 40})] == [
        [],
        ["the code that made it is not that of its commit"],
        ["whether there were changes beside its commit is not known"],
    ]
    tree_in_history.cache_clear()


def remarks(said: dict[str, Any]) -> list[str]:
    report = Check({}).add({**made_up_run("base"), "commit": said}, None)
    return [one for one in report.remarks if not one.startswith("no experiment")]
