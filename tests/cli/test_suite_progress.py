"""The progress of a suite: how its runs stand, and the time that is left."""

from pathlib import Path

import pytest
from suite_sources import nothing

from distillmatch.cli.suite_progress import SuiteProgress, begun_runs
from distillmatch.config import RunConfig
from distillmatch.runs.side_by_side import Job
from distillmatch.suite.queue import Queue


def test_the_time_left_is_that_of_the_rest_at_the_pace_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunConfig(method="base")
    queue = Queue([Job(name, config, tmp_path / name) for name in "ab"], None, nothing)
    progress, now = SuiteProgress(), [1000.0]
    monkeypatch.setattr("distillmatch.cli.suite_progress.time.monotonic", lambda: now[0])
    queue.take()
    for seconds, done in ((0, 0.0), (7, 20.0), (40, 60.0), (100, 80.0)):
        now[0] += seconds
        queue.progress("a", total=100.0, done=done)
        progress.show(queue)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "distillmatch: 0 of 2 runs done, 1 running: 0 %",
        # After 40 s 20 of 100 percent were done since the first, then 30 in 140 s.
        "distillmatch: 0 of 2 runs done, 1 running: 30 %, about 2 min left",
        "distillmatch: 0 of 2 runs done, 1 running: 40 %, about 5 min left",
    ]


def test_no_time_is_told_before_there_is_enough_to_judge_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that are taken up again begin one after the other, at a pace that is not the last."""
    config = RunConfig(method="base")
    queue = Queue([Job(name, config, tmp_path / name) for name in "abc"], None, nothing)
    progress, now, left = SuiteProgress(), [1000.0], list[str]()
    monkeypatch.setattr("distillmatch.cli.suite_progress.time.monotonic", lambda: now[0])

    def show(seconds: float, **done: float) -> None:
        now[0] += seconds
        for name, amount in done.items():
            queue.progress(name, total=1000.0, done=amount, before=700.0)
        left.append(progress._left(*queue.work(), begun_runs(queue)))

    for _ in "abc":
        queue.take()
    show(0, a=700)
    show(2, a=710)
    show(20, a=760, b=700)  # alone for as long as the second took to begin
    show(3, a=762, c=700)
    show(5, a=770, b=720, c=710)
    show(4, a=776, b=728, c=716)
    show(4, a=782, b=736, c=722)
    assert left[:6] == [""] * 6
    # In 13 s, since all three are under way, 20 + 36 + 22 of the 900 that were left at first.
    assert left[6] == f"about {13 * (900 - 82 - 36 - 22) / (20 + 36 + 22) / 60:.0f} min left"


def test_a_queue_of_hours_is_judged_by_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(method="base")
    queue = Queue([Job("a", config, tmp_path / "a")], None, nothing)
    progress, now = SuiteProgress(), [1000.0]
    monkeypatch.setattr("distillmatch.cli.suite_progress.time.monotonic", lambda: now[0])
    queue.take()
    left = []
    for seconds, done in ((0, 1.0), (30, 31.0), (30, 61.0)):
        now[0] += seconds
        queue.progress("a", total=36061.0, done=done)
        left.append(progress._left(*queue.work(), begun_runs(queue)))
    assert left == ["", "", "about 10 h 0 min left"]
