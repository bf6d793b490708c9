"""TensorBoard: a run's log as event files, in the folder `tensorboard/` beside it."""

import contextlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from distillmatch.errors import ConfigError, DiskError, explain_disk_errors
from distillmatch.runs.log import LOG, Entry, history, read_log

FOLDER = "tensorboard"
"""Where this folder is, a run writes its event files."""


def begin_event_files(folder: Path) -> None:
    """Let the run in a folder, which need not be there yet, write event files."""
    if find_spec("tensorboard") is None:
        extra = "pip install 'distillmatch[tensorboard]'"
        raise ConfigError(f"event files need TensorBoard: {extra}")
    with explain_disk_errors("making a folder", folder / FOLDER):
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)


class EventFiles:
    """Writes the epochs and tasks of a log; a full disk does not stop the run.

    They are written anew when a session begins, so that a resumed run has each point once, and a
    run that was begun without TensorBoard or is finished has all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.log, self.folder = folder / LOG, folder / FOLDER
        self._writer: Any = None

    def add(self, entry: Entry) -> None:
        """Write what was just added to the log."""
        entries = [entry] if entry["event"] in ("epoch", "task") else []
        with contextlib.suppress(OSError, DiskError):
            if self._writer is None or entry["event"] in ("begun", "continued"):
                self._start_over()
                entries = history(read_log(self.log))
            for one in entries:
                for tag, value in scalars(one).items():
                    self._writer.add_scalar(tag, value, one.get("step", one["task"]))
            self._writer.flush()

    def _start_over(self) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        self.close()
        for old in self.folder.glob("events.out.tfevents.*"):
            old.unlink()
        # A TensorBoard that is open forgets what it has read of an earlier file.
        self._writer = SummaryWriter(str(self.folder), purge_step=0)

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()


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
