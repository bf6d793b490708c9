"""TensorBoard: a run's log as event files, written while it grows or afterwards."""

import contextlib
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from distillmatch.errors import ConfigError, DiskError, RunFolderError
from distillmatch.runs.log import LOG, Entry, history, read_log

SECONDS = 2.0
"""Between two looks at a log that grows."""


class TensorBoard:
    """Within its block, follows the log in a run's folder and writes `tensorboard/` beside it.

    Only the log is read, so a run that is finished, or was begun without TensorBoard, gets the same
    events. They are written anew whenever a run starts over or lost epochs, so that none is there
    twice.
    """

    def __init__(self, folder: Path) -> None:
        if find_spec("tensorboard") is None:
            extra = "pip install 'distillmatch[tensorboard]'"
            raise ConfigError(f"event files need TensorBoard: {extra}")
        self.log, self.folder = folder / LOG, folder / "tensorboard"
        self._written: list[Entry] = []
        self._writer: Any = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end.set()
        self._thread.join()
        if not isinstance(error, RunFolderError):  # the folder is another's
            self._catch_up()
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()

    def _follow(self) -> None:
        while not self._end.wait(SECONDS):
            self._catch_up()

    def _catch_up(self) -> None:
        """Write new entries; a full disk does not stop the run."""
        with contextlib.suppress(OSError, DiskError):
            entries, written = history(read_log(self.log)), self._written
            if self._writer is None or entries[: len(written)] != written:
                self._start_over()
                written = []
            for entry in entries[len(written) :]:
                for tag, value in scalars(entry).items():
                    self._writer.add_scalar(tag, value, entry.get("step", entry["task"]))
            self._written = entries
            self._writer.flush()

    def _start_over(self) -> None:
        if self._writer is not None:
            self._writer.close()
        for old in self.folder.glob("events.out.tfevents.*"):
            old.unlink()
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        # A TensorBoard that is open forgets what it has read of an earlier file.
        self._writer = SummaryWriter(str(self.folder), purge_step=0)


def scalars(entry: Entry) -> dict[str, float]:
    """Return the tags and values of an epoch, by its number in the run, or of a task."""
    if entry["event"] == "epoch":
        loss = f"loss/{entry['training']}"
        values = {loss: entry["loss"]}
        values |= {f"{loss}/{name}": value for name, value in entry["terms"].items()}
        values[f"learning rate/{entry['training']}"] = entry["learning_rate"]
    else:
        values = {"accuracy/classes seen": entry["accuracy"]}
        for group in ("metrics", "detector", "seconds"):
            values |= {f"{group}/{name}": value for name, value in entry[group].items()}
        values["memory/stored images"] = entry["stored_images"]
    return {tag: value for tag, value in values.items() if value is not None}
