"""How long a training step takes: the engine beside a plain loop, for the same method and batch."""

import itertools
import sys
from dataclasses import replace
from typing import Any

import torch

from distillmatch.bench.views import mean_seconds
from distillmatch.config import RunConfig
from distillmatch.engine import Engine
from distillmatch.engine.epochs import Epochs
from distillmatch.engine.steps import training_mode
from distillmatch.methods import Batch, Frozen, Training
from distillmatch.methods.contract import terms_of, trainings_of
from distillmatch.methods.schedule import Schedule
from distillmatch.sources import Dataset
from distillmatch.streams import build_stream
from distillmatch.views import strong_views, view_key, weak_views


def measure_training(config: RunConfig, dataset: Dataset, seconds: float) -> dict[str, Any]:
    """Time the classifier's training in the second task, about `seconds` for each way.

    The first task is learned for one epoch, so that there are past models to ask.
    """
    plain = _plain_loop(config.replace(precision="float32", epochs=1), dataset, seconds)
    prepared = _Prepared(config.replace(epochs=1), dataset)
    training, placement = prepared.training, prepared.engine.placement
    taker = prepared.engine.trainer.steps_of(training, prepared.task)
    # A schedule without an end, so that the next epoch is always prepared beside this one.
    epochs = Epochs(prepared.data, replace(training, schedule=Schedule(sys.maxsize, 0.1)))
    numbers = itertools.count()

    def take_epoch() -> None:
        with training_mode(training):
            torch.cat([taker.run(part) for part in epochs.parts(next(numbers))]).sum().item()
        placement.wait()

    take_epoch()  # captures the step, and lets libraries choose their kernels
    engine = prepared.speed(mean_seconds(take_epoch, seconds) / prepared.data.steps(training))
    return {
        "method": config.method,
        "network": config.network,
        "device": placement.name,
        "precision": str(placement.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "images_per_step": prepared.images_per_step,
        "plain": plain,
        "engine": engine,
        "ratio": plain["milliseconds_per_step"] / engine["milliseconds_per_step"],
    }


class _Prepared:
    """An engine at the beginning of its second task, or of its only one."""

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        self.engine = Engine(config, dataset, build_stream(dataset, config))
        number = min(1, len(self.engine.stream) - 1)
        if number:
            next(self.engine.run())
        self.task = self.engine.task_info(number)
        self.data = self.engine.task_data(number)
        trainings = trainings_of(self.engine.method, self.task)
        self.training: Training = next(t for t in trainings if t.name == "classifier")
        for training in trainings[: trainings.index(self.training) + 1]:
            if training.before is not None:
                training.before(self.data, self.task)
        sizes = self.engine.config.batch, self.engine.config.unlabeled_batch
        self.images_per_step = self.training.views_in_step(*sizes, self.task)

    def speed(self, seconds_per_step: float) -> dict[str, Any]:
        """Return a step's time as the figures that are reported."""
        return {
            "milliseconds_per_step": 1000 * seconds_per_step,
            "images_per_second": self.images_per_step / seconds_per_step,
            "peak_device_bytes": self.engine.placement.peak_memory(),
        }


def _plain_loop(config: RunConfig, dataset: Dataset, seconds: float) -> dict[str, Any]:
    """Time the loop that one would write first: views and frozen outputs in each step."""
    prepared = _Prepared(config, dataset)
    training, data, placement = prepared.training, prepared.data, prepared.engine.placement
    labeled, unlabeled = data.sets[training.labeled], data.sets["unlabeled"]
    all_labeled, all_unlabeled, labels = labeled.pixels, unlabeled.pixels, labeled.labels
    assert labels is not None
    rate, parameters = training.schedule.learning_rate, [*training.network.parameters()]
    optimizer, numbers = torch.optim.SGD(parameters, rate, config.momentum), itertools.count()
    optimizer.param_groups[0]["weight_decay"] = config.weight_decay

    def outputs(frozen: Frozen | None, images: torch.Tensor) -> Any:
        with torch.no_grad():
            return None if frozen is None else frozen(images, prepared.task)

    def drawn(size: int, count: int) -> torch.Tensor:
        return torch.randint(size, (count,), device=placement.device)

    def step() -> None:
        number, normalization = next(numbers), data.normalization
        rows = drawn(len(labeled), config.batch)
        chosen = all_labeled[rows]
        images = weak_views(chosen, view_key(number, "labeled"), normalization)
        weak, strong, strong_images = data.nothing(), None, None
        if training.strong_labeled:
            strong_images = strong_views(chosen, view_key(number, "taught"), normalization)
        if training.unlabeled:
            pixels = all_unlabeled[drawn(len(unlabeled), config.unlabeled_batch)]
            weak = weak_views(pixels, view_key(number, "unlabeled"), normalization)
            if training.strong:
                strong = strong_views(pixels, view_key(number, "strong"), normalization)
        asked = outputs(training.frozen_labeled, images), outputs(training.frozen_unlabeled, weak)
        batch = Batch(images, labels[rows], weak, strong, strong_images, *asked)
        loss = torch.stack(list(terms_of(training, batch, prepared.task).values())).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if training.clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, training.clip)
        optimizer.step()
        placement.wait()

    training.network.train()
    step()
    spent = mean_seconds(step, seconds)
    training.network.eval()
    return prepared.speed(spent)
