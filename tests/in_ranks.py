"""What tests have several processes do together: `torchrun in_ranks.py NAME OUT`."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from test_checkpoints import six_classes, tiny

from distillmatch.cli import main
from distillmatch.config import RunConfig, StreamConfig
from distillmatch.engine.distributed import Ranks
from distillmatch.errors import SourceError
from distillmatch.run import Interrupted, run
from distillmatch.run.ranks import joined_ranks
from distillmatch.sources import Dataset

METHODS: dict[str, dict[str, Any]] = {
    "dm": {"epochs": 3},
    "dm averaged": {
        "method": "dm",
        "gate": "features",
        "weight_averaging": 0.8,
        "strong_labels": "labels-and-pseudo-labels",
    },
    "dm in parts": {
        "method": "dm",
        "labeled_statistics": "apart",
        "accepted_statistics": "unlabeled",
        "strong_statistics": "unlabeled",
    },
    "gd": {},
    "base": {},
    "e2e": {},
    "dr": {"coreset": 0},
}
STOPS = {"stopped": (2, 4), "left": (6,)}
"""After how many epochs of a session a signal comes, of runs in these folders."""
BROKEN = ["run", "--quiet", "--source", "in_ranks:broken", "--device", "cpu", "--epochs", "1"]


def config_of(method: str, **options: Any) -> RunConfig:
    given = {"method": method, "epochs": 2, "tasks": 2, "learning_rate": 0.02}
    return tiny(**{**given, **METHODS[method], **options})


class Sends:
    """Progress that sends its own process a signal after so many epochs."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def start(self, total: float, done: float = 0.0) -> None:
        pass

    def advance(self, done: float, doing: str) -> None:
        self.epochs -= 1
        if self.epochs == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> None:
        pass


def broken(config: StreamConfig) -> Dataset:
    """A source that the second process has not."""
    if os.environ["RANK"] == "1":
        raise SourceError("this machine has no images")
    return six_classes()


def learn(out: Path) -> None:
    """Learn by each method; be stopped by a signal to one process; fail in one process."""
    data = six_classes()
    with joined_ranks() as ranks:
        for method in METHODS:
            run(config_of(method), out / method, dataset=data, ranks=ranks)
        for folder, moments in STOPS.items():
            for moment in moments:
                progress = Sends(moment if ranks.number == 1 else -1)
                try:
                    run(
                        config_of("dm"),
                        out / folder,
                        dataset=data,
                        ranks=ranks,
                        progress=progress,
                    )
                except Interrupted as stop:
                    (out / f"{folder}-{moment}-{ranks.number}.txt").write_text(str(stop))
        run(config_of("dm"), out / "stopped", dataset=data, ranks=ranks)
    sys.exit(main([*BROKEN, "--out", str(out / "failed")]))


def learn_on_gpu(out: Path) -> None:
    """Learn on one GPU: by NCCL alone, or by gloo, which lets two processes share it."""
    alone = os.environ["WORLD_SIZE"] == "1"
    ranks = Ranks.join() if alone else replace(Ranks.join("gloo"), local=0, local_count=1)
    for precision in ("float32", "bfloat16"):
        config = config_of("dm", device="cuda", precision=precision)
        run(config, out / precision, dataset=six_classes(), ranks=ranks)
    ranks.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"learn": learn, "gpu": learn_on_gpu}[sys.argv[1]](Path(sys.argv[2]))
