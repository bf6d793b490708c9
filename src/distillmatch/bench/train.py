"""How long a training step takes: the engine beside a plain loop, for the same method and batch."""

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from distillmatch.bench.hardware import Floor, floor_of, mean_seconds
from distillmatch.config import RunConfig
from distillmatch.engine import Engine, Placement
from distillmatch.engine.data import Epoch
from distillmatch.engine.epochs import Epochs, Place
from distillmatch.engine.evaluation import evaluate
from distillmatch.engine.loss_means import LossMeans
from distillmatch.engine.steps import batches, training_mode
from distillmatch.methods import Batch, Scores, TaskInfo, Training
from distillmatch.methods.contract import trainings_of
from distillmatch.methods.method import ScoreFunction
from distillmatch.methods.schedule import Schedule
from distillmatch.networks import shared_device
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

    `streamed` is the engine where none of the images stays on the device: each part of an epoch is
    fetched from where the source has them.
    `shares` are those of views, scores and steps measured each alone; on a GPU the views and scores
    of the next epoch are made beside the steps of this one, so that the engine takes less than all
    of them one after the other, by the factor `overlap`.
    """

    method: str
    network: str
    device: str
    precision: str
    threads: int
    images_per_step: int
    plain: Speed
    engine: Speed
    streamed: Speed
    shares: dict[str, float]
    overlap: float
    evaluation_seconds: float
    floor: Floor | None

    @property
    def ratio(self) -> float:
        """How many times faster the engine is than the plain loop."""
        return self.plain.milliseconds_per_step / self.engine.milliseconds_per_step

    @property
    def streamed_ratio(self) -> float:
        """How many times as long a step takes whose images have to be fetched."""
        return self.streamed.milliseconds_per_step / self.engine.milliseconds_per_step


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
    streamed = _streamed(config, dataset, seconds)
    started = time.perf_counter()
    engine.evaluate()
    parts = {"views": views, "scoring": max(0.0, drawing - views), "training": training}
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
        streamed=streamed,
        shares={name: spent / total for name, spent in parts.items()},
        overlap=total * engine.steps / fixed.steps / whole,
        evaluation_seconds=time.perf_counter() - started,
        floor=floor_of(placement, engine.training.network, lambda: engine.eager_step(fixed)),
    )


def measure_side_by_side(
    config: RunConfig, dataset: Dataset, seconds: float, counts: Sequence[int] = (1, 2, 3)
) -> dict[str, float]:
    """Return the milliseconds a step of each run costs, with so many runs at once on one GPU.

    Each run has a thread and a stream of its own. Without a GPU there is nothing to share.
    """
    if Placement.of(config).device.type != "cuda":
        return {}
    costs = {}
    for count in counts:
        with shared_device() if count > 1 else nullcontext():
            costs[str(count)] = _cost_beside(config, dataset, seconds, count)
    return costs


def _cost_beside(config: RunConfig, dataset: Dataset, seconds: float, count: int) -> float:
    """Return the milliseconds of a step of each of so many runs at once."""
    streams = [torch.cuda.Stream() for _ in range(count)]  # type: ignore[no-untyped-call]
    runs = []
    for number, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            runs.append(_Prepared(config.replace(epochs=1, seed=config.seed + number), dataset))
            runs[-1].take_epoch()

    def work(number: int) -> None:
        with torch.cuda.stream(streams[number]):
            runs[number].take_epoch()
            streams[number].synchronize()

    with ThreadPoolExecutor(count) as threads:
        spent = runs[0].time(lambda: list(threads.map(work, range(count))), seconds)
    return 1000 * spent / runs[0].steps / count


def measure_growth(
    config: RunConfig, dataset: Dataset, seconds: float
) -> dict[str, dict[str, float]]:
    """Time the engine's step as tasks, unlabelled images and the network's width grow."""
    depth, width = config.network.rsplit("-", 1)
    half = max(1, config.unlabeled_batch // 2)
    variants: dict[str, dict[str, RunConfig]] = {
        "tasks": {
            str(n): config.replace(tasks=n, task_sizes=None)
            for n in (2, 5, 10)
            if len(dataset.class_names) % n == 0
        },
        "unlabeled_batch": {
            str(n): config.replace(unlabeled_batch=n) for n in (half, 2 * half, 4 * half)
        },
        "network": {
            f"{depth}-{n}": config.replace(network=f"{depth}-{n}")
            for n in (int(width), 2 * int(width))
        },
    }
    return {
        name: {value: _milliseconds(variant, dataset, seconds) for value, variant in row.items()}
        for name, row in variants.items()
    }


def _milliseconds(config: RunConfig, dataset: Dataset, seconds: float) -> float:
    prepared = _Prepared(config.replace(epochs=1), dataset)
    prepared.take_epoch()
    return 1000 * prepared.time(prepared.take_epoch, seconds) / prepared.steps


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
                training.before(self.data)
        self.steps = self.data.steps(self.training)
        config = self.engine.config
        self.images_per_step = self.training.views_in_step(config.batch, config.unlabeled_batch)
        self.taker = self.engine.trainer.steps_of(self.training)
        self.epochs = Epochs(self.data, replace(self.training, schedule=Schedule(sys.maxsize, 0.1)))
        self.number = 0
        self.means = LossMeans([], self.training.name)

    def take_epoch(self) -> None:
        """Do all that the engine does for an epoch, and prepare the next as it does."""
        with training_mode(self.training):
            losses = [self.taker.run(part) for part in self.epochs.parts(self.number)]
        self.number += 1
        self.means.add(torch.cat(losses))

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
        return mean_seconds(self.engine.placement, work, seconds)

    def speed(self, seconds_per_step: float) -> Speed:
        """Return a step's time as the figures that are reported."""
        return Speed(
            1000 * seconds_per_step,
            self.images_per_step / seconds_per_step,
            self.engine.placement.peak_memory(),
        )


def _streamed(config: RunConfig, dataset: Dataset, seconds: float) -> Speed:
    """Time the engine with all images left where the source has them."""
    prepared = _Prepared(config.replace(epochs=1, resident_bytes=0), dataset)
    prepared.take_epoch()
    return prepared.speed(prepared.time(prepared.take_epoch, seconds) / prepared.steps)


def _plain_loop(config: RunConfig, dataset: Dataset, seconds: float) -> Speed:
    """Time the loop that one would write first: each step makes its views and asks its models."""
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

    def ask(score: ScoreFunction | None, images: torch.Tensor) -> Scores:
        with torch.no_grad():
            return {} if score is None else score(images)

    def step() -> None:
        nonlocal counter
        counter += 1
        rows = torch.randint(len(labeled), (config.batch,), device=placement.device)
        chosen = all_labeled[rows]
        images = weak_views(chosen, view_key(counter, "labelled"), data.normalization)
        weak, strong, strong_images = data.nothing(), None, None
        if training.strong_labeled:
            strong_images = strong_views(chosen, view_key(counter, "taught"), data.normalization)
        if training.unlabeled:
            others = torch.randint(
                len(unlabeled), (config.unlabeled_batch,), device=placement.device
            )
            pixels = all_unlabeled[others]
            weak = weak_views(pixels, view_key(counter, "unlabelled"), data.normalization)
            if training.strong:
                strong = strong_views(pixels, view_key(counter, "strong"), data.normalization)
        batch = Batch(
            images,
            labels[rows],
            weak,
            strong,
            strong_images,
            ask(training.score_images, images),
            ask(training.score_unlabeled, weak),
        )
        loss = training.loss(batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if training.clip is not None:
            torch.nn.utils.clip_grad_norm_(training.network.parameters(), training.clip)
        optimizer.step()

    training.network.train()
    step()
    spent = mean_seconds(placement, step, seconds)
    training.network.eval()
    return prepared.speed(spent)
