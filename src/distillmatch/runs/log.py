"""The log of a run: one JSON object per line, and event files of TensorBoard that say the same."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from distillmatch.errors import ConfigError, DiskError, explain_disk_errors
from distillmatch.files import read_bytes

LOG = "log.jsonl"
EVENT_FILES = "tensorboard"
"""Where a run's folder has this one, the run writes event files in it."""
Entry = dict[str, Any]


class RunLog:
    """Adds lines to `log.jsonl` in a folder; a log that cannot be written does not stop a run.

    Event files are written anew when a session begins, so that a resumed run has each point once,
    and a run that was begun without TensorBoard or is finished has all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.event_files = folder / LOG, folder / EVENT_FILES
        self._writer: Any = None

    def note(self, event: str, **fields: Any) -> None:
        """Write a line by a single call, so that it is whole or missing."""
        moment = datetime.now().astimezone().isoformat(timespec="milliseconds")
        entry = {"time": moment, "event": event, **fields}
        text = json.dumps(entry, ensure_ascii=False) + "\n"
        with contextlib.suppress(OSError), self.path.open("ab+", buffering=0) as file:
            # A process that was killed, or a disk that was full, may have left half a line.
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    text = "\n" + text
            file.write(text.encode(errors="replace"))
        if self.event_files.is_dir():
            if self._writer is None or event in ("begun", "continued"):
                self.write_events()
            elif event in ("epoch", "task"):
                self._add([entry])

    def close(self) -> None:
        """End the event file, if there is one."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()

    def write_events(self) -> None:
        """Write a new event file with all that the log has."""
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        self.close()
        with contextlib.suppress(OSError, DiskError):
            for old in self.event_files.glob("events.out.tfevents.*"):
                old.unlink()
            # A TensorBoard that is open forgets what it has read of an earlier file.
            self._writer = SummaryWriter(str(self.event_files), purge_step=0)
            self._add(history(read_log(self.path)))

    def _add(self, entries: Iterable[Entry]) -> None:
        with contextlib.suppress(OSError):
            for entry in entries:
                for tag, value in scalars(entry).items():
                    self._writer.add_scalar(tag, value, entry.get("step", entry["task"]))
            self._writer.flush()


@contextlib.contextmanager
def event_files_in(*folders: Path) -> Iterator[None]:
    """Let the runs in these folders write event files, of what their logs have so far too.

    Folders that stay empty, as those of a refused run do, are removed.
    """
    if find_spec("tensorboard") is None:
        extra = "pip install 'distillmatch[tensorboard]'"
        raise ConfigError(f"event files need TensorBoard: {extra}")
    logs = [RunLog(folder) for folder in folders]
    try:
        for log in logs:
            with explain_disk_errors("making a folder", log.event_files):
                log.event_files.mkdir(parents=True, exist_ok=True)
            if log.path.exists() and not any(log.event_files.iterdir()):
                log.write_events()
                log.close()
        yield
    finally:
        for log in logs:
            with contextlib.suppress(OSError):
                log.event_files.rmdir()
                log.event_files.parent.rmdir()


def epochs_of(training: str, tasks: Iterable[Mapping[str, Any]]) -> int:
    """Return how many epochs a training had in some tasks, by their records."""
    return sum(len(task["losses"].get(training, {}).get("loss", ())) for task in tasks)


def steps_of(tasks: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many epochs each training had in some tasks."""
    return {name: epochs_of(name, tasks) for task in tasks for name in task["losses"]}


def read_log(path: Path) -> list[Entry]:
    """Read a log, from its file or its folder, without the half of a line that a crash left."""
    path = path / LOG if path.is_dir() else path
    with explain_disk_errors("reading the log", path):
        content = read_bytes(path)
    entries = []
    for line in content.split(b"\n"):
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and "event" in entry:
                entries.append(entry)
    return entries


def history(entries: Iterable[Entry]) -> list[Entry]:
    """Return the epochs and tasks of the run, each once.

    Epochs after the last checkpoint of a killed process are learned and noted again, after a line
    "continued" that says from where.
    """
    kept: list[Entry] = []
    for entry in entries:
        match entry["event"]:
            case "begun":
                kept = []
            case "continued":
                kept = [one for one in kept if not _lost(one, entry)]
            case "epoch" if {"task", "training", "step"} <= entry.keys():
                kept.append(entry)
            case "task" if "task" in entry:
                kept.append(entry)
    return kept


def _lost(entry: Entry, continued: Entry) -> bool:
    if entry["event"] == "task":
        return bool(entry["task"] >= continued["task"])
    return bool(entry["step"] > continued["steps"].get(entry["training"], 0))


def scalars(entry: Entry) -> dict[str, float]:
    """Return the tags and values of an epoch, by its number in the run, or of a task."""
    if entry["event"] == "epoch":
        loss = f"loss/{entry['training']}"
        values = {loss: entry["loss"], f"learning rate/{entry['training']}": entry["learning_rate"]}
        values |= {f"{loss}/{name}": value for name, value in entry["terms"].items()}
    else:
        values = {"accuracy/classes seen": entry["accuracy"]}
        values["memory/stored images"] = entry["stored_images"]
        for group in ("metrics", "detector", "seconds"):
            values |= {f"{group}/{name}": value for name, value in entry[group].items()}
    return {tag: value for tag, value in values.items() if value is not None}
