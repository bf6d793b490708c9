"""The ledger: a folder with one result file for each run, named by what was run."""

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from distillmatch.config import RunConfig
from distillmatch.errors import ResultError
from distillmatch.files import read_record, write_atomically
from distillmatch.runs import read_result
from distillmatch.runs.result import config_of
from distillmatch.suite.names import run_name

Result = dict[str, Any]
INDEX = "index.json"
ARCHIVED_SEEDS = (1, 2, 3)


class Ledger:
    """A folder of results. It may not exist yet: then it is empty, and made by the first `add`."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ResultError(f"{self.folder}: expected a folder of results, found a file")
        self.archive = Archive(self.folder / "archive")

    def paths(self) -> list[Path]:
        """Return its files, by name."""
        return sorted(self.folder.glob("*.json"))

    def results(self) -> list[Result]:
        """Return all results, by the names of their files."""
        return [read_result(path) for path in self.paths()]

    def path_of(self, config: RunConfig) -> Path:
        """Return where the result of a run is, or would be."""
        return self.folder / f"{run_name(config)}.json"

    def find(self, config: RunConfig) -> Result | None:
        """Return the complete result of this configuration and seed, if it is here.

        The configuration is one that `with_options` returns, as those of experiments are. Device,
        precision and folders do not matter.
        """
        path = self.path_of(config)
        if not path.exists():
            return None
        result = read_result(path)
        same = config_of(result, path).identity() == config.identity()
        return result if same and result["complete"] and not _of_saved_stream(result) else None

    def add(self, result: Result) -> Path:
        """Write a complete result under its name, atomically."""
        if not result.get("complete"):
            raise ResultError(
                f"the ledger takes complete results; this one has {len(result['tasks'])} of "
                f"{len(result['task_sizes'])} tasks"
            )
        if _of_saved_stream(result):
            raise ResultError(
                "the ledger takes runs that their configuration describes; this one learned a "
                "saved stream or a validation fold"
            )
        from distillmatch.methods import with_options  # noqa: PLC0415  torch takes its time

        config = config_of(result, self.folder)
        if ":" not in config.method:  # a result does not decide which module is imported
            config = with_options(config)
        path = self.path_of(config)
        write_atomically(
            path, json.dumps(result, indent=1, allow_nan=False) + "\n", "writing to the ledger"
        )
        return path


class Archived(BaseModel, frozen=True):
    """An archived result that stands in for a run: its file's stem, and the preset it was by."""

    file: str
    preset: str


class Archive:
    """A folder of results of options that are gone; `index.json` says what stands in for what."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def paths(self) -> list[Path]:
        """Return its files, by name."""
        return sorted(path for path in self.folder.glob("*.json") if path.name != INDEX)

    def nearest(self, config: RunConfig) -> dict[int, Archived]:
        """Return the archived results nearest to a run, by seed; they are of one preset."""
        found: dict[int, Archived] = {}
        for seed in ARCHIVED_SEEDS:
            name = run_name(config.replace(splits="hashed", seed=seed))
            preset = {one.preset for one in found.values()}
            alike = [one for one in self._runs.get(name, []) if {one.preset} >= preset]
            found.update((seed, one) for one in alike[:1])
        return found

    def read(self, one: Archived) -> Result:
        """Return an archived result."""
        return read_result(self.folder / f"{one.file}.json")

    @cached_property
    def _runs(self) -> dict[str, list[Archived]]:
        path = self.folder / INDEX
        if not path.is_file():
            return {}
        record = read_record(path, "index of an archive", "distillmatch archive", 1, ResultError)
        try:
            return TypeAdapter(dict[str, list[Archived]]).validate_python(record.get("runs"))
        except ValidationError:
            raise ResultError(f"{path}: expected runs, each with a list of files") from None


def read_results(paths: Iterable[Path]) -> list[Result]:
    """Read results from files, from folders of runs, and from folders that are ledgers."""
    found = []
    for path in paths:
        is_ledger = path.is_dir() and not (path / "result.json").exists()
        files = Ledger(path).paths() if is_ledger else [path]
        if not files:
            raise ResultError(f"{path}: expected results of runs, found none in this folder")
        found += [read_result(file) for file in files]
    return found


def _of_saved_stream(result: Result) -> bool:
    """Return whether the index lists came from elsewhere than the configuration."""
    return "/" in result["stream"]["fingerprint"]
