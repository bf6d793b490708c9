"""TensorBoard: a run's log as event files, written while it grows or afterwards."""

import contextlib
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from distillmatch.errors import ConfigError, RunFolderError
from distillmatch.runs.log import LOG, Entry, history, parse_log

FOLDER = "tensorboard"
SECONDS = 2.0
"""Between two looks at a log that grows."""


def require_tensorboard() -> None:
    """Refuse to begin without the extra."""
    if find_spec("tensorboard") is None:
        raise ConfigError("event files need TensorBoard: pip install 'distillmatch[tensorboard]'")


class TensorBoard:
    """Within its block, follows the log in a run's folder and writes `tensorboard/` beside it.

    Only the log is read, so a run that is finished, or was begun without TensorBoard, gets the same
    events. They are written anew whenever a run begins or is resumed, so that no epoch that was
    learned twice is there twice.
    """

    def __init__(self, folder: Path) -> None:
        require_tensorboard()
        self.log = folder / LOG
        self.folder = folder / FOLDER
        self._place = 0
        self._entries: list[Entry] = []
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
        with contextlib.suppress(OSError):
            new = self._new_entries()
            if not new:
                return
            self._entries += new
            again = any(entry["event"] in ("begun", "continued") for entry in new)
            if self._writer is None or again:
                self._entries = new = history(self._entries)
                self._start_over()
            for entry in new:
                for tag, value in scalars(entry):
                    self._writer.add_scalar(tag, value, entry.get("step", entry["task"]))
            self._writer.flush()

    def _new_entries(self) -> list[Entry]:
        """Return the whole lines since the last look."""
        with self.log.open("rb") as file:
            file.seek(self._place)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._place += len(whole)
        return parse_log(whole)

    def _start_over(self) -> None:
        if self._writer is not None:
            self._writer.close()
        for old in self.folder.glob("events.out.tfevents.*"):
            old.unlink()
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        # A TensorBoard that is open forgets what it has read of an earlier file.
        self._writer = SummaryWriter(str(self.folder), purge_step=0)


def scalars(entry: Entry) -> Iterator[tuple[str, float]]:
    """Yield the tags and values of an epoch, by its number in the run, or of a task."""
    values: dict[str, float | None] = {}
    if entry["event"] == "epoch":
        values[f"loss/{entry['training']}"] = entry["loss"]
        for name, value in entry["terms"].items():
            values[f"loss/{entry['training']}/{name}"] = value
        values[f"learning rate/{entry['training']}"] = entry["learning_rate"]
    elif entry["event"] == "task":
        values["accuracy/classes seen"] = entry["accuracy"]
        for group in ("metrics", "detector", "seconds"):
            values |= {f"{group}/{name}": value for name, value in entry[group].items()}
        values["memory/stored images"] = entry["stored_images"]
    yield from ((tag, value) for tag, value in values.items() if value is not None)
