"""The progress of a queue: how its runs stand, and the time that is left."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from suite_sources import nothing

from distillmatch.cli.queue import QueueProgress
from distillmatch.config import RunConfig
from distillmatch.runs.side_by_side import Job
from distillmatch.suite.queue import Queue


class Shown:
    """A queue of runs called by letters, and its progress by a clock that the test sets."""

    def __init__(self, folder: Path, names: str, monkeypatch: pytest.MonkeyPatch) -> None:
        config = RunConfig(method="base")
        self.queue = Queue([Job(name, config, folder / name) for name in names], None, nothing)
        self.progress, self.now = QueueProgress(), 1000.0
        monkeypatch.setattr("distillmatch.terminal.time.monotonic", lambda: self.now)
        for _ in names:
            self.queue.take()

    def after(self, seconds: float, total: float, before: float = 0.0, **done: float) -> str:
        """Report work of some runs, and return how long the rest is said to take."""
        self.now += seconds
        for name, amount in done.items():
            self.queue.progress(name, total, left=total - amount, worked=amount - before)
        self.progress.show(self.queue)
        return self.progress.left()


@pytest.fixture
def shown(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shown]:
    made = Shown(tmp_path, request.param, monkeypatch)
    yield made
    made.progress.stop()


@pytest.mark.parametrize("shown", ["a"], indirect=True)
def test_lines_tell_how_the_runs_stand_with_the_time_left_at_the_pace_so_far(
    shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    for seconds, done in ((0, 0.0), (7, 20.0), (70, 60.0), (100, 80.0)):
        shown.after(seconds, 100.0, a=done)
    assert capsys.readouterr().err.splitlines() == [
        "distillmatch: 0 of 1 runs done, 1 running: 0 % done",
        # After 70 s, 40 of 100 percent were done since the first; then 60 in 170 s.
        "distillmatch: 0 of 1 runs done, 1 running: 60 % done, about 70 s left",
        "distillmatch: 0 of 1 runs done, 1 running: 80 % done, about 57 s left",
    ]


@pytest.mark.parametrize("shown", ["abc"], indirect=True)
def test_the_pace_counts_from_when_as_many_runs_as_ever_are_under_way(shown: Shown) -> None:
    """Runs that are continued begin one after the other, at a pace that is not the last."""
    left = [
        shown.after(seconds, 1000.0, 700.0, **done)
        for seconds, done in (
            (0, {"a": 700.0}),
            (2, {"a": 710.0}),
            (2, {"a": 760.0, "b": 700.0}),
            (3, {"a": 762.0, "c": 700.0}),
            (3, {"a": 770.0, "b": 720.0, "c": 710.0}),
            (10, {"a": 782.0, "b": 736.0, "c": 722.0}),
        )
    ]
    assert left[:5] == [""] * 5
    # In 13 s, since all three are under way, 20 + 36 + 22 of the 900 that were left at first.
    assert left[5] == f"about {13 * (900 - 82 - 36 - 22) / (20 + 36 + 22) / 60:.0f} min left"
