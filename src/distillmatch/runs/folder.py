"""The folder of a run: its result, checkpoints, log and lock."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from distillmatch.config import LOCATION_KEYS, RunConfig
from distillmatch.errors import RunFolderError, explain_disk_errors
from distillmatch.runs.checkpoints import FOLDER as CHECKPOINTS
from distillmatch.runs.checkpoints import Checkpoint, Checkpoints
from distillmatch.runs.interruption import Interrupted
from distillmatch.runs.lock import FolderLock
from distillmatch.runs.log import RunLog
from distillmatch.runs.result import VERSION, complete_record, read_result, recorded_config

Resume = Literal["no", "auto", "must"]
Record = dict[str, Any]
RESULT = "result.json"
STAGES = "stages"
OTHERWISE = "choose another folder, or resume 'no' to start over"


def is_begun(folder: Path) -> bool:
    """Return whether a folder has something that a run is resumed from."""
    return any((folder / name).exists() for name in (CHECKPOINTS, STAGES))


class RunFolder:
    """The folder of a run, locked for this process within its block."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path)
        self.log = RunLog(path)
        self._tell = tell

    def __enter__(self) -> Self:
        self._lock = FolderLock(self.path)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_refusal = isinstance(error, RunFolderError)  # not an event of the run in the folder
        if error is not None and not is_refusal and self.log.path.exists():
            event = "interrupted" if isinstance(error, Interrupted) else "failed"
            reason = " ".join(str(error).split())
            self.log.note(event, error=type(error).__name__, reason=reason)
        self.log.close()
        self._lock.release()

    def tell(self, sentence: str, event: str = "told", **fields: Any) -> None:
        """Tell the user something, and note it in the log."""
        self.log.note(event, sentence=sentence, **fields)
        self._tell(sentence)

    def find(
        self, resume: Resume, config: RunConfig, fingerprint: str, weights: str | None
    ) -> tuple[Record | None, Checkpoint | None]:
        """Return the whole result of a run, or what it is resumed from; refuse another run's.

        `fingerprint` and `weights` are the hashes of the data and of the pretrained weights.
        """
        self.checkpoints.sweep()
        for path in self.path.glob(f".{RESULT}.*.part"):
            path.unlink(missing_ok=True)
        if resume == "no":
            self.start_over()
            return None, None
        result = read_result(self.path) if (self.path / RESULT).exists() else None
        if result is not None and result["version"] != VERSION:
            raise RunFolderError(
                f"{self.path} holds the result of an earlier version, which cannot be resumed; "
                f"{OTHERWISE}"
            )
        checkpoint, problems = self.checkpoints.load()
        stages = [Checkpoints(path).load()[0] for path in (self.path / STAGES).glob("[0-9]*")]
        for record in (result, *(one.values for one in (checkpoint, *stages) if one is not None)):
            if record is not None:
                self._check_same_run(record, config, fingerprint, weights)
        if result is not None and result["complete"]:
            self.clear()
            return result, None
        if checkpoint is None and not self.has_stages and resume == "must":
            reason = f": {'; '.join(problems)}" if problems else ""
            raise RunFolderError(f"{self.path}: there is no run to continue{reason}")
        for problem in problems:
            self.tell(f"{problem}; it is not used")
        return None, checkpoint

    def start_over(self) -> None:
        """Remove the result, and all that a run is resumed from."""
        self.clear()
        (self.path / RESULT).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all that a run is resumed from."""
        self.checkpoints.clear()
        shutil.rmtree(self.path / STAGES, ignore_errors=True)

    @property
    def has_stages(self) -> bool:
        """Whether tasks were learned side by side and are not joined yet."""
        return (self.path / STAGES).is_dir()

    def stage(self, number: int) -> "RunFolder":
        """Return the folder of a task that is learned beside others, under this folder's lock."""
        path = self.path / STAGES / f"{number + 1:02d}"
        with explain_disk_errors("making a folder", path):
            path.mkdir(parents=True, exist_ok=True)
        return RunFolder(path, self.tell)

    def _check_same_run(
        self, record: Record, config: RunConfig, fingerprint: str, weights: str | None
    ) -> None:
        there = record["stream"]["fingerprint"]
        if listed := differences(record["config"], config):
            other = f"another run: {listed}"
        elif there != fingerprint:
            other = f"a run on other data: its fingerprint is {there} there and {fingerprint} here"
        elif record.get("pretrained_sha256") != weights:
            other = f"a run from other weights: {config.pretrained} has changed"
        else:
            return
        raise RunFolderError(f"{self.path} holds {other}; {OTHERWISE}")


def differing_keys(recorded: Record, config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ, as recorded and as now."""
    now, there = recorded_config(config), complete_record(recorded)
    return {
        key: (there.get(key), now.get(key))
        for key in {**now, **there}
        if key not in LOCATION_KEYS and there.get(key) != now.get(key)
    }


def differences(recorded: Record, config: RunConfig, passed: Sequence[str] = ()) -> str:
    """Return what differs in words, or nothing; keys in `passed` are left out."""
    return ", ".join(
        f"{key} is {there} there and {here} here"
        for key, (there, here) in differing_keys(recorded, config).items()
        if key not in passed
    )
