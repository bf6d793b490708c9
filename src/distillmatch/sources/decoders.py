"""Decoding many files at once, in order, and a bounded number ahead."""

import json
import os
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from distillmatch.sources.decode_worker import HEAD
from distillmatch.sources.images import ImageFile, decode_file

Result = NDArray[np.uint8] | str
"""An image, or the reason why there is none."""

PROCESSES_FROM = 16384
"""So many files are worth the second that processes take to start."""
_CHUNK_BYTES = 16 * 2**20
_BATCH = 32


def piece_size(side: int) -> int:
    """Return how many images are decoded before the next are begun: little memory, few files."""
    return min(1024, max(16, _CHUNK_BYTES // (side * side * 3)))


@contextmanager
def decode_in_pieces(
    files: Sequence[ImageFile], side: int, start: int = 0
) -> Iterator[Iterator[list[Result]]]:
    """Yield the results of all files from number `start` on, a piece after another.

    Many files are decoded by processes, few or those that are no files of their own by threads:
    Pillow lets threads decode side by side, but what Python does around it is as much for a small
    image.
    """
    workers = min(16, _processors())
    many = len(files) - start >= PROCESSES_FROM and files[start].path is not None
    processes = [WorkerProcess(side) for _ in range(workers)] if many and workers > 1 else []
    idle: SimpleQueue[WorkerProcess] = SimpleQueue()
    for process in processes:
        idle.put(process)

    def by_process(batch: Sequence[ImageFile]) -> list[Result]:
        process = idle.get()
        try:
            return process.decode([str(file.path) for file in batch])
        finally:
            idle.put(process)

    def by_thread(batch: Sequence[ImageFile]) -> list[Result]:
        return [decode_file(file, side) for file in batch]

    pool = ThreadPoolExecutor(max(workers, 2))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong with a file is in its result
            decode = by_process if processes else by_thread
            yield _pieces(pool, decode, files, side, start)
    finally:
        pool.shutdown(cancel_futures=True)
        for process in processes:
            process.end()


def _pieces(
    pool: ThreadPoolExecutor,
    decode: Callable[[Sequence[ImageFile]], list[Result]],
    files: Sequence[ImageFile],
    side: int,
    start: int,
) -> Iterator[list[Result]]:
    """Yield the pieces in order; one more is begun, so that nobody waits for the end of one."""
    size = piece_size(side)
    begun: deque[list[Future[list[Result]]]] = deque()
    for first in range(start, len(files), size):
        stop = min(first + size, len(files))
        cuts = range(first, stop, _BATCH)
        begun.append([pool.submit(decode, files[c : min(c + _BATCH, stop)]) for c in cuts])
        if len(begun) == 2:
            yield [result for batch in begun.popleft() for result in batch.result()]
    while begun:
        yield [result for batch in begun.popleft() for result in batch.result()]


class WorkerProcess:
    """A process that decodes; if an image ends it, that image is a bad one and another takes over.

    It may have been ended for another reason, so the image is tried twice.
    """

    def __init__(self, side: int) -> None:
        self.side = side
        self._process = self._start()

    def decode(self, paths: list[str]) -> list[Result]:
        """Return what became of each file."""
        results: list[Result] = []
        suspected = -1
        while len(results) < len(paths):
            try:
                self._decode(paths[len(results) :], results)
            except (BrokenPipeError, EOFError):
                ended = self._restart()
                if suspected == len(results):
                    results.append(f"decoding it ended the process that did so ({ended})")
                else:
                    suspected = len(results)
        return results

    def end(self) -> None:
        """Let the process go."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _decode(self, paths: list[str], results: list[Result]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(paths).encode() + b"\n")
        self._process.stdin.flush()
        for _ in paths:
            (length,) = HEAD.unpack(self._read(HEAD.size))
            if length:
                results.append(self._read(length).decode("utf-8", "replace"))
            else:
                pixels = np.frombuffer(self._read(self.side * self.side * 3), np.uint8)
                results.append(pixels.reshape(self.side, self.side, 3))

    def _read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        content = self._process.stdout.read(count)
        if len(content) < count:
            raise EOFError
        return content

    def _restart(self) -> str:
        status = self._process.wait()
        self.end()
        self._process = self._start()
        return f"signal {-status}" if status < 0 else f"exit code {status}"

    def _start(self) -> "subprocess.Popen[bytes]":
        # In a session of its own, so that Ctrl-C on the terminal is left to the one who asked.
        return subprocess.Popen(
            [sys.executable, "-m", "distillmatch.sources.decode_worker", str(self.side)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _processors() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
