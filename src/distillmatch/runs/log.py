"""The log of a run: one JSON object per line."""

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from distillmatch.engine.outcome import Underway
from distillmatch.errors import explain_disk_errors
from distillmatch.files import read_bytes

LOG = "log.jsonl"
Entry = dict[str, Any]


class RunLog:
    """Adds lines to `log.jsonl` in a folder; a log that cannot be written does not stop a run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG

    def note(self, event: str, **fields: Any) -> None:
        """Write a line by a single call, so that it is whole or missing."""
        moment = datetime.now().astimezone().isoformat(timespec="milliseconds")
        text = json.dumps({"time": moment, "event": event, **fields}, ensure_ascii=False) + "\n"
        with contextlib.suppress(OSError), self.path.open("ab+", buffering=0) as file:
            # A process that was killed, or a disk that was full, may have left half a line.
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    text = "\n" + text
            file.write(text.encode(errors="replace"))


class EpochNotes:
    """Notes every epoch once: the losses that are new since the last call."""

    def __init__(self, log: RunLog, underway: Underway) -> None:
        self.log = log
        self._task = underway.task
        self._noted = {name: _epochs(terms) for name, terms in underway.losses.items()}
        self._last = time.perf_counter()

    def update(self, underway: Underway, finished: Sequence[Mapping[str, Any]]) -> None:
        """Note new epochs; `finished` are the records of earlier tasks."""
        if underway.task != self._task:
            self._task, self._noted = underway.task, {}
        for name, terms in underway.losses.items():
            for number in range(self._noted.get(name, 0), _epochs(terms)):
                self._note(underway, name, number, finished)
            self._noted[name] = _epochs(terms)

    def _note(
        self,
        underway: Underway,
        training: str,
        number: int,
        finished: Sequence[Mapping[str, Any]],
    ) -> None:
        now = time.perf_counter()
        terms = {term: means[number] for term, means in underway.losses[training].items()}
        self.log.note(
            "epoch",
            task=underway.task + 1,
            training=training,
            epoch=number + 1,
            step=_epochs_of(training, finished) + number + 1,
            loss=terms.pop("loss"),
            terms=terms,
            learning_rate=_learning_rate(underway, training, number),
            seconds=round(now - self._last, 4),
        )
        self._last = now


def steps_so_far(underway: Underway, finished: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of epochs of each training over all tasks."""
    names = [*(name for task in finished for name in task["losses"]), *underway.losses]
    return {
        name: _epochs_of(name, finished) + _epochs(underway.losses.get(name, {}))
        for name in dict.fromkeys(names)
    }


def read_log(path: Path) -> list[Entry]:
    """Read a log, from its file or its folder, without the half of a line that a crash left."""
    path = path / LOG if path.is_dir() else path
    with explain_disk_errors("reading the log", path):
        content = read_bytes(path)
    return parse_log(content)


def parse_log(content: bytes) -> list[Entry]:
    """Return the whole lines of a log, or of a part of one."""
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


def _epochs_of(training: str, finished: Sequence[Mapping[str, Any]]) -> int:
    return sum(_epochs(task["losses"].get(training, {})) for task in finished)


def _epochs(terms: Mapping[str, Sequence[float]]) -> int:
    """Return the number of epochs that losses are of."""
    return len(terms.get("loss", ()))


def _learning_rate(underway: Underway, training: str, epoch: int) -> float | None:
    """Return the rate of an epoch; asking the optimizer would wait for the device."""
    if training not in underway.schedules:
        return None
    return float(f"{underway.schedules[training].rate(epoch):.6g}")
