"""Commands in processes of their own, which fork from a server that has imported everything."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    # The first optimizer would import the compiler, in every fork.
    ["__main__", "torch._dynamo", "distillmatch.report.comparison", "processes", "small_runs"]
)


class Command:
    """A command under way, whose standard error goes to a file."""

    def __init__(
        self, words: Sequence[str], stderr: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.stderr = stderr
        given = list(words), stderr, dict(environment or {})
        self._process = SERVER.Process(target=_run, args=given)
        self._process.start()
        self.pid = self._process.pid or 0

    def wait(self, seconds: float = 600) -> int:
        """Return its exit code, or the signal that ended it, negative."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, "it does not end"
        return self._process.exitcode

    def ends_within(self, seconds: float) -> bool:
        """Wait so long; return whether it has ended."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def wait_until_stopped(self) -> None:
        """Wait until a signal has stopped it, and not ended it."""
        until = time.monotonic() + 600
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < until, "it does not stop"
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def said(self) -> list[str]:
        """Return the lines that it wrote."""
        return self.stderr.read_text().splitlines()


def _run(words: list[str], stderr: Path, environment: dict[str, str]) -> None:
    import torch

    from distillmatch.cli import main

    os.environ.update(environment)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, path, mode in ((1, os.devnull, os.O_WRONLY), (2, stderr, os.O_WRONLY | os.O_CREAT)):
        os.dup2(os.open(path, mode | os.O_APPEND), number)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.exit(main(words))
