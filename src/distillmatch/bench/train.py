"""How long a training step takes: the engine beside a plain loop, for the same method and batch."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from distillmatch.bench.hardware import Floor, floor_of, mean_seconds
from distillmatch.config import RunConfig
from distillmatch.engine import Engine
from distillmatch.engine.data import Epoch
from distillmatch.engine.epochs import Epochs, Place
from distillmatch.engine.outcome import LossMeans
from distillmatch.engine.outputs import evaluate
from distillmatch.engine.steps import batches, training_mode
from distillmatch.methods import Batch, Frozen, TaskInfo, Training
from distillmatch.methods.contract import terms_of, trainings_of
from distillmatch.methods.schedule import Schedule
from distillmatch.sources import Dataset
from distillmatch.streams import build_stream
from distillmatch.views import strong_views, view_key, weak_views


@dataclass(frozen=True)
class Speed:
    """What one way of training costs."""

    milliseconds_per_step: float
    images_per_second: float
    peak_device_bytes: int | None


@dataclass(frozen=True)
class TrainBenchmark:
    """The plain float32 loop and the engine, and where the engine's time goes.

    `shares` are those of views, answers of frozen networks, and steps, each measured alone. On a
    GPU the views and answers of the next epoch are made beside the steps of this one, so that the
    engine is faster than all of them in a row by the factor `overlap`.
    """

    method: str
    network: str
    device: str
    precision: str
    threads: int
    images_per_step: int
    plain: Speed
    engine: Speed
    shares: dict[str, float]
    overlap: float
    evaluation_seconds: float
    floor: Floor | None

    @property
    def ratio(self) -> float:
        """How many times faster the engine is than the plain loop."""
        return self.plain.milliseconds_per_step / self.engine.milliseconds_per_step


def measure_training(config: RunConfig, dataset: Dataset, seconds: float) -> TrainBenchmark:
    """Time the classifier's training in the second task, about `seconds` for each way.

    The first task is learned for one epoch, so that there are past models to ask.
    """
    plain = _plain_loop(config.replace(precision="float32", epochs=1), dataset, seconds)
    engine = _Prepared(config.replace(epochs=1), dataset)
    engine.take_epoch()  # captures the step, and lets libraries choose their kernels
    fixed = engine.first_part()
    views = engine.time(engine.first_views, seconds / 4)
    drawing = engine.time(engine.first_part, seconds / 4)
    training = engine.time(lambda: engine.take_steps(fixed), seconds / 4)
    whole = engine.time(engine.take_epoch, seconds)
    started = time.perf_counter()
    engine.evaluate()
    parts = {"views": views, "answers": max(0.0, drawing - views), "training": training}
    total = sum(parts.values())
    placement = engine.engine.placement
    return TrainBenchmark(
        method=config.method,
        network=config.network,
        device=placement.name,
        precision=str(placement.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        images_per_step=engine.images_per_step,
        plain=plain,
        engine=engine.speed(whole / engine.steps),
        shares={name: spent / total for name, spent in parts.items()},
        overlap=total * engine.steps / fixed.steps / whole,
        evaluation_seconds=time.perf_counter() - started,
        floor=floor_of(placement, engine.training.network, lambda: engine.eager_step(fixed)),
    )


class _Prepared:
    """An engine at the beginning of its second task, or of its only one."""

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        self.engine = Engine(config, dataset, build_stream(dataset, config))
        number = min(1, len(self.engine.stream) - 1)
        if number:
            next(self.engine.run())
        self.task: TaskInfo = self.engine.task_info(number)
        self.data = self.engine.task_data(number)
        trainings = trainings_of(self.engine.method, self.task)
        self.training: Training = next(t for t in trainings if t.name == "classifier")
        for training in trainings[: trainings.index(self.training) + 1]:
            if training.before is not None:
                training.before(self.data, self.task)
        self.steps = self.data.steps(self.training)
        config = self.engine.config
        self.images_per_step = self.training.views_in_step(config.batch, config.unlabeled_batch)
        self.taker = self.engine.trainer.steps_of(self.training, self.task)
        self.epochs = Epochs(self.data, replace(self.training, schedule=Schedule(sys.maxsize, 0.1)))
        self.number = 0
        self.means = LossMeans({}, self.training.name)

    def take_epoch(self) -> None:
        """Do all that the engine does for an epoch, and prepare the next as it does."""
        with training_mode(self.training):
            losses = [self.taker.run(part) for part in self.epochs.parts(self.number)]
        self.number += 1
        self.means.add(torch.cat(losses), self.taker.step.names)

    def first_part(self) -> Epoch:
        """Make the views and scores of an epoch's first part, which most often is all of it."""
        return self.epochs.take(Place(0, 0))

    def first_views(self) -> None:
        """Make those views alone."""
        first = self.data.parts(self.training)[0]
        self.data.views(self.training, self.data.draft(self.training, 0, first))

    def take_steps(self, epoch: Epoch) -> None:
        """Take the steps of an epoch that is there already."""
        with training_mode(self.training):
            self.taker.run(epoch)

    def eager_step(self, epoch: Epoch) -> None:
        """Take one step of an epoch as a method writes it."""
        with training_mode(self.training):
            self.taker.step(next(batches(epoch)))

    def evaluate(self) -> None:
        """Look at all test images."""
        engine = self.engine
        evaluate(
            engine.method,
            self.task,
            engine.dataset,
            engine.stream,
            engine.normalization,
            engine.placement,
        )

    def time(self, work: Callable[[], Any], seconds: float) -> float:
        """Return the mean seconds of some work, repeated for about so long."""
        return mean_seconds(self.engine.placement.wait, work, seconds)

    def speed(self, seconds_per_step: float) -> Speed:
        """Return a step's time as the figures that are reported."""
        return Speed(
            1000 * seconds_per_step,
            self.images_per_step / seconds_per_step,
            self.engine.placement.peak_memory(),
        )


def _plain_loop(config: RunConfig, dataset: Dataset, seconds: float) -> Speed:
    """Time the loop that one would write first: views and frozen outputs in each step."""
    prepared = _Prepared(config, dataset)
    training, data, placement = prepared.training, prepared.data, prepared.engine.placement
    labeled, unlabeled = data.sets[training.labeled], data.sets["unlabeled"]
    all_labeled, all_unlabeled, labels = labeled.pixels, unlabeled.pixels, labeled.labels
    assert labels is not None
    optimizer = torch.optim.SGD(
        training.network.parameters(),
        lr=training.schedule.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    counter = 0

    def outputs(frozen: Frozen | None, images: torch.Tensor) -> Any:
        with torch.no_grad():
            return None if frozen is None else frozen(images, prepared.task)

    def step() -> None:
        nonlocal counter
        counter += 1
        rows = torch.randint(len(labeled), (config.batch,), device=placement.device)
        chosen = all_labeled[rows]
        images = weak_views(chosen, view_key(counter, "labeled"), data.normalization)
        weak, strong, strong_images = data.nothing(), None, None
        if training.strong_labeled:
            strong_images = strong_views(chosen, view_key(counter, "taught"), data.normalization)
        if training.unlabeled:
            others = torch.randint(
                len(unlabeled), (config.unlabeled_batch,), device=placement.device
            )
            pixels = all_unlabeled[others]
            weak = weak_views(pixels, view_key(counter, "unlabeled"), data.normalization)
            if training.strong:
                strong = strong_views(pixels, view_key(counter, "strong"), data.normalization)
        batch = Batch(
            images,
            labels[rows],
            weak,
            strong,
            strong_images,
            outputs(training.frozen_labeled, images),
            outputs(training.frozen_unlabeled, weak),
        )
        terms = terms_of(training, batch, prepared.task)
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        if training.clip is not None:
            torch.nn.utils.clip_grad_norm_(training.network.parameters(), training.clip)
        optimizer.step()

    training.network.train()
    step()
    spent = mean_seconds(placement.wait, step, seconds)
    training.network.eval()
    return prepared.speed(spent)
