"""Captured graphs that are replayed at once leave each other alone."""

import threading
from functools import partial

import pytest
import torch
from torch import Tensor

from distillmatch.engine.graphs import CapturedWork

pytestmark = pytest.mark.gpu
ROWS, REPLAYS = 4096, 300


def gradient_of(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of a linear layer: a sum over so many rows is made in parts."""
    (gradient,) = torch.autograd.grad((rows @ weight).square().sum(), weight)
    return gradient


def test_matrix_products_of_graphs_at_once_do_not_share_a_workspace() -> None:
    captured, expected, streams, read = [], [], [], []
    for seed in range(4):
        torch.manual_seed(seed)
        rows = torch.randn(ROWS, 128, device="cuda")
        weight = torch.randn(128, 100, device="cuda", requires_grad=True)
        read.append((rows, weight))  # a graph does not keep what it reads
        captured.append(CapturedWork(partial(gradient_of, rows, weight), trials=1))
        expected.append(captured[-1].replay().clone())
        streams.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    wrong = [0] * len(captured)

    def replay(number: int) -> None:
        with torch.cuda.stream(streams[number]):
            differs = torch.zeros((), dtype=torch.int64, device="cuda")
            for _ in range(REPLAYS):
                differs += (captured[number].replay() != expected[number]).any()
            wrong[number] = int(differs)

    threads = [threading.Thread(target=replay, args=(number,)) for number in range(len(captured))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * len(captured)
