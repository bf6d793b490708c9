"""The log of a run: one JSON object per line."""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from distillmatch.errors import explain_disk_errors
from distillmatch.files import read_bytes

LOG = "log.jsonl"
Entry = dict[str, Any]


class RunLog:
    """Adds lines to `log.jsonl` in a folder; a log that cannot be written does not stop a run.

    `listener` is called with each entry.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        self.listener: Callable[[Entry], None] = lambda entry: None

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
        self.listener(entry)


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
            case "epoch" | "task":
                kept.append(entry)
    return kept


def _lost(entry: Entry, continued: Entry) -> bool:
    if entry["event"] == "task":
        return bool(entry["task"] >= continued["task"])
    return bool(entry["step"] > continued["steps"].get(entry["training"], 0))
