"""The ledger: a folder with one result file for each run, named by what was run."""

import json
from pathlib import Path
from typing import Any

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError, ResultError
from distillmatch.files import check_writable, write_atomically
from distillmatch.run import read_result
from distillmatch.run.result import config_recorded
from distillmatch.suite.identity import identity, run_name

__all__ = ["Ledger", "config_of", "run_name"]

Result = dict[str, Any]
WRITING = "writing to the ledger"


class Ledger:
    """A folder of results. It may not exist yet: then it is empty, and made by the first `add`."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ResultError(f"{self.folder}: expected a folder of results, found a file")

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

        Device, precision and folders do not matter, nor does what the method does not look at.
        """
        path = self.path_of(config)
        if not path.exists():
            return None
        result = read_result(path)
        same = identity(config_of(result, path)) == identity(config)
        return result if same and result["complete"] and not _of_saved_stream(result) else None

    def check_writable(self) -> None:
        """Refuse to begin where no result could be added."""
        check_writable(self.folder, WRITING)

    def add(self, result: Result) -> Path:
        """Write a result under its name, at once; one that is not whole is refused."""
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
        path = self.path_of(config_of(result, self.folder))
        text = json.dumps(result, indent=1, allow_nan=False)
        write_atomically(path, text + "\n", WRITING)
        return path


def config_of(result: Result, path: Path) -> RunConfig:
    """Return the configuration that a result records; `path` is named where it is none."""
    recorded = result.get("config")
    if not isinstance(recorded, dict):
        raise ResultError(
            f"{path}: config: expected the options of a run by name, found {recorded!r:.60}"
        )
    try:
        return config_recorded(recorded)
    except ConfigError as error:
        raise ResultError(f"{path}: config: {error}") from None


def _of_saved_stream(result: Result) -> bool:
    """Tell whether the index lists came from elsewhere than the configuration; see result.md."""
    return "/" in result["stream"]["fingerprint"]
