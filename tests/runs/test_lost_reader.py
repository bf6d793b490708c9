"""Whoever reads the progress of a run may go away: the run is done all the same."""

import os
import subprocess
import sys
from pathlib import Path

from distillmatch.runs import read_result


def test_a_run_goes_on_when_nobody_reads_its_progress(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["run", "--tasks", "2", "--method", "base", "--network", "wrn-10-1", "--epochs", "5"]
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "distillmatch", *words, "--device", "cpu", "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=writer,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    os.close(writer)
    assert b"base" in os.read(reader, 1000)
    os.close(reader)
    assert process.wait() == 0
    assert read_result(out)["complete"]
