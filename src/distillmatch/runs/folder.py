"""The folder of a run: its result, checkpoints, log and lock."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from distillmatch.config import LOCATION_KEYS, RunConfig
from distillmatch.errors import ResultError, RunFolderError
from distillmatch.files import is_other_json, read_record
from distillmatch.runs.checkpoints import Checkpoint, Checkpoints
from distillmatch.runs.interruption import Interrupted
from distillmatch.runs.lock import FolderLock
from distillmatch.runs.log import RunLog
from distillmatch.runs.result import (
    FORMAT,
    VERSION,
    VERSIONS,
    complete_record,
    read_result,
    recorded_config,
)
from distillmatch.runs.schema import StageSchema, check_form

Resume = Literal["no", "auto", "must"]
RESULT = "result.json"
STAGES = "stages"
STAGE = "stage.json"
STAGE_FORMAT = "distillmatch stage"
STAGE_VERSION = 1


@dataclass(frozen=True)
class Found:
    """What a folder has of a run: its whole result, or what it is resumed from, or nothing.

    A run is resumed from a checkpoint or, of tasks learned side by side, from `stages/`, or both.
    `stages` are the records of finished tasks by their numbers, and what checkpoints say of others.
    """

    result: dict[str, Any] | None = None
    checkpoint: Checkpoint | None = None
    stages: dict[int, dict[str, Any]] = field(default_factory=dict)


class RunFolder:
    """The folder of a run, locked for this process within its block."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path)
        self.log = RunLog(path)
        self._tell = tell
        self._lock: FolderLock | None = None
        self._made = False

    def __enter__(self) -> Self:
        self._made = not self.path.exists()
        self._lock = FolderLock(self.path, self.tell)
        self.checkpoints.sweep()
        for path in self.path.glob(f".{RESULT}.*.part"):
            path.unlink(missing_ok=True)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_refusal = isinstance(error, RunFolderError)  # not an event of the run in the folder
        if error is not None and not is_refusal and self.log.path.exists():
            event = "interrupted" if isinstance(error, Interrupted) else "failed"
            reason = " ".join(str(error).split())
            self.log.note(event, error=type(error).__name__, reason=reason)
        assert self._lock is not None
        self._lock.release()
        if self._made:  # a run that could not begin leaves nothing behind
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def tell(self, sentence: str, event: str = "told", **fields: Any) -> None:
        """Tell the user something, and note it in the log."""
        self.log.note(event, sentence=sentence, **fields)
        self._tell(sentence)

    def find(
        self, resume: Resume, config: RunConfig, fingerprint: str, weights: str | None = None
    ) -> Found:
        """Return what the run is resumed from; refuse the folder of another run.

        `fingerprint` and `weights` are the hashes of the data and of the pretrained weights.
        """
        if resume == "no":
            self.clear()
            (self.path / RESULT).unlink(missing_ok=True)
            return Found()
        result = self._read_result()
        if result is not None and result["version"] != VERSION:
            raise RunFolderError(
                f"{self.path} holds the result of an earlier version, which cannot be resumed; "
                "choose another folder, or resume 'no' to start over"
            )
        checkpoint, problems = self.checkpoints.load()
        stages = dict(self._stages())
        for record in (result, None if checkpoint is None else checkpoint.values, *stages.values()):
            if record is not None:
                self._check_same_run(record, config, fingerprint, weights)
        if result is not None and result["complete"]:
            self.clear()
            return Found(result=result)
        if checkpoint is None and not stages and resume == "must":
            reason = f": {'; '.join(problems)}" if problems else ""
            raise RunFolderError(f"{self.path}: there is no run to continue{reason}")
        if checkpoint is not None:
            instead = "the one before it is used"
        else:
            instead = "it is not used" if stages else "the run starts over"
        for problem in problems:
            self.tell(f"{problem}; {instead}")
        return Found(checkpoint=checkpoint, stages=stages)

    def _read_result(self) -> dict[str, Any] | None:
        """Return the result in the folder; a damaged one is passed over, as checkpoints are."""
        path = self.path / RESULT
        if not path.exists():
            return None
        try:
            return read_result(path)
        except ResultError as error:
            if is_other_json(path, FORMAT, VERSIONS):
                raise
            self.tell(f"{error}; it is passed over")
            return None

    def clear(self) -> None:
        """Remove all that a run is resumed from."""
        self.checkpoints.clear()
        shutil.rmtree(self.path / STAGES, ignore_errors=True)

    def stage(self, number: int) -> Path:
        """Return the folder of a task that is learned side by side with others."""
        return self.path / STAGES / f"{number + 1:02d}"

    def _finished_stage(self, number: int) -> dict[str, Any] | None:
        """Return the record of a finished stage; one that is damaged is learned again."""
        path = self.stage(number) / STAGE
        if not path.exists():
            return None
        try:
            record = read_record(path, "finished stage", STAGE_FORMAT, STAGE_VERSION, ResultError)
            check_form(StageSchema, record, path)
            if {len(record["row"][name]) for name in "RAP"} != {number + 1}:
                raise ResultError(f"{path}: expected accuracies of {number + 1} tasks")
        except ResultError as error:
            if is_other_json(path, STAGE_FORMAT, (STAGE_VERSION,)):
                raise
            self.tell(f"{error}; the stage is learned again")
            return None
        return record

    def _stages(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the stages that were begun: their numbers, and their records or checkpoints."""
        folders = sorted((self.path / STAGES).glob("[0-9][0-9]*"))
        for number in (int(path.name) - 1 for path in folders if path.name.isdecimal()):
            record = self._finished_stage(number)
            if record is None:
                checkpoint, _ = Checkpoints(self.stage(number)).load()
                record = None if checkpoint is None else checkpoint.values
            if record is not None:
                yield number, record

    def _check_same_run(
        self, record: dict[str, Any], config: RunConfig, fingerprint: str, weights: str | None
    ) -> None:
        listed = differences(record["config"], config)
        if listed:
            raise RunFolderError(
                f"{self.path} holds another run: {listed}; choose another folder, or resume 'no' "
                "to start over"
            )
        there = record["stream"]["fingerprint"]
        if there != fingerprint:
            raise RunFolderError(
                f"{self.path} holds a run on other data: its fingerprint is {there} there and "
                f"{fingerprint} here; choose another folder, or resume 'no' to start over"
            )
        if record.get("pretrained_sha256") != weights:
            raise RunFolderError(
                f"{self.path} holds a run from other weights: {config.pretrained} has changed; "
                "choose another folder, or resume 'no' to start over"
            )


def differing_keys(recorded: dict[str, Any], config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ, as recorded and as now."""
    now, there = recorded_config(config), complete_record(recorded)
    return {
        key: (there.get(key), now.get(key))
        for key in {**now, **there}
        if key not in LOCATION_KEYS and there.get(key) != now.get(key)
    }


def differences(recorded: dict[str, Any], config: RunConfig, passed: Sequence[str] = ()) -> str:
    """Return what differs in words, or nothing; keys in `passed` are left out."""
    return ", ".join(
        f"{key} is {there} there and {here} here"
        for key, (there, here) in differing_keys(recorded, config).items()
        if key not in passed
    )
