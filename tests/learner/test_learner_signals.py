"""A learner that is told to stop before it has learned anything stops at once."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from learner_world import CLOWNFISH, GOLDFISH, SMALL, write_classes

from distillmatch.learner import learn, learning
from distillmatch.runs import Interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_images_are_read_ends_it_there(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not put off to the end of an epoch, and names no checkpoint, as there is none."""
    write_classes(tmp_path / "march", CLOWNFISH, GOLDFISH, count=10)
    state, read, told = tmp_path / "fish", list[str](), list[str]()

    def look(*given: Any, **settings: Any) -> Any:
        read.append("begun")
        os.kill(os.getpid(), number)
        read.append("done")

    settings = {**SMALL, "method": "e2e"}
    with monkeypatch.context() as patch:
        patch.setattr(learning, "look_around", look)
        with pytest.raises(Interrupted, match="before anything was learned") as end:
            learn(state, labeled=tmp_path / "march", settings=settings, tell=told.append)
    assert (end.value.exit_code, read, told) == (128 + number, ["begun"], [])
    learn(state, labeled=tmp_path / "march", settings=settings, tell=told.append)
    assert not told
