"""The wheel works without the repository around it."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from made_images import save
from small_runs import ROOT

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(
        ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(copy))
    subprocess.run([*PIP, "wheel", *options, str(copy)], check=True)
    return next(copy.glob("*.whl"))


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    ours = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "distillmatch").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert ours <= set(ZipFile(wheel).namelist())


def test_an_installed_wheel_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ("install", "--no-deps", "--no-index", "--target", str(site))
    subprocess.run([*PIP, *install, str(wheel)], check=True)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    where = run("-c", "import distillmatch; print(distillmatch.__file__)")
    assert Path(where).is_relative_to(site)
    assert run("-m", "distillmatch", "--version").split()[-1] == VERSION
    assert "DM" in run("-m", "distillmatch", "suite", "list", "table-2a", "--scale", "quick")
    for number, name in enumerate(["cat", "dog", "fox", "owl"]):
        for image in range(8):
            save(tmp_path / "photos" / name / f"{image}.png", (60 * number, 30 * image, 99), 8)
    small = "--source folder --data-dir photos --tasks 2 --epochs 1 --network wrn-10-1"
    run("-m", "distillmatch", "run", *small.split(), "--device", "cpu", "--out", "result")
    assert (tmp_path / "result" / "result.json").exists()
