"""The engine: takes a method through the tasks of a stream and reports what came of each."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.engine.data import TaskData
from distillmatch.engine.device import Placement
from distillmatch.engine.progress import NoProgress, Progress
from distillmatch.engine.steps import (
    CapturedStep,
    Optimization,
    Step,
    batches,
    run_eagerly,
    training_mode,
)
from distillmatch.errors import TrainingError
from distillmatch.methods import Scores, TaskInfo, Training, make_method
from distillmatch.networks import build_network
from distillmatch.randomness import random_integers
from distillmatch.sources import Dataset
from distillmatch.streams import (
    Coreset,
    Experience,
    Stream,
    evaluation_part,
    experience,
    true_slots_of_unlabeled,
)
from distillmatch.views import Normalization, plain_views

EVALUATION_BATCH = 2000


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a method believed of a task's unlabelled images, beside the truth."""

    pseudo_labels: NDArray[np.int64]
    accepted: NDArray[np.bool_]
    truth: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TaskOutcome:
    """What came of one task: test outputs, beliefs about unlabelled images, times and memory.

    `logits` and `labels` are those of the test images of all tasks so far, in task order.
    `familiarity` scores all test images, of unseen classes too, with `familiarity_labels`.
    """

    task: TaskInfo
    logits: NDArray[np.float32]
    labels: NDArray[np.int64]
    familiarity: NDArray[np.float32] | None
    familiarity_labels: NDArray[np.int64]
    judgement: Judgement | None
    values: dict[str, float]
    losses: dict[str, list[float]]
    seconds: dict[str, float]
    stored_images: int
    stored_bytes: int


@dataclass
class Clock:
    """Adds up the seconds of named phases."""

    seconds: dict[str, float] = field(default_factory=dict)

    def time(self, name: str, work: Callable[[], None]) -> None:
        """Run and time some work."""
        start = time.perf_counter()
        work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


class Engine:
    """Runs one configuration on one stream."""

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        stream: Stream,
        progress: Progress | None = None,
    ) -> None:
        self.config = config
        self.dataset = dataset
        self.stream = stream
        self.progress = progress or NoProgress()
        self.placement = Placement.of(config)
        self.normalization = Normalization.of(dataset.train.images)
        self.method = make_method(config, self.build)
        self.coreset = Coreset(config.coreset, dataset.image_size)

    def build(self, name: str, similarity: str | None = None) -> nn.Module:
        """Make a network whose first weights are decided by the seed and its name."""
        generator = torch.Generator()
        seed = int(random_integers(self.config.seed, "weights", name, count=1)[0] >> np.uint64(1))
        generator.manual_seed(seed)
        classes = sum(self.stream.task_sizes)
        network = build_network(
            self.config.network,
            classes,
            similarity or "linear",
            generator,  # type: ignore[call-overload]
        )
        return self.placement.place(network).eval()

    def run(self) -> Iterator[TaskOutcome]:
        """Learn the tasks one after another; yield the outcome of each."""
        self.progress.start(self._work())
        past: list[Experience] = []
        for number in range(len(self.stream)):
            given = experience(self.dataset, self.stream, number)
            past = [*past, given] if self.method.memory == "everything" else [given]
            yield self._learn(past)
        self.progress.stop()

    def task_info(self, number: int) -> TaskInfo:
        """Return what a method is told of a task before it starts."""
        return TaskInfo(
            number=number,
            sizes=self.stream.task_sizes[: number + 1],
            last=number + 1 == len(self.stream),
            coreset=self.config.coreset > 0 and number > 0 and self.method.memory == "coreset",
        )

    def _learn(self, given: list[Experience]) -> TaskOutcome:
        number = given[-1].task
        task = self.task_info(number)
        clock, losses = Clock(), dict[str, list[float]]()
        data = self._task_data(task, given)
        judgement: list[Judgement] = []
        for training in self.method.trainings(task):
            clock.time(
                training.name,
                lambda t=training: losses.update(  # type: ignore[misc]
                    {t.name: self._train(t, data, task, judgement)}
                ),
            )
        self.method.end_task(task)
        if self.method.memory == "coreset":
            self.coreset = self.coreset.after(given[-1], self.config.seed)
        outcome: list[TaskOutcome] = []
        clock.time(
            "evaluation",
            lambda: outcome.append(self._evaluate(task, judgement, losses, clock.seconds)),
        )
        return outcome[0]

    def _task_data(self, task: TaskInfo, given: list[Experience]) -> TaskData:
        truth = None
        if self.method.needs_truth:
            truth = np.concatenate(
                [true_slots_of_unlabeled(self.dataset, self.stream, one.task) for one in given]
            )
        stored = (self.coreset.images, self.coreset.labels)
        earlier = given[:-1]
        if earlier:
            stored = (
                np.concatenate([one.images for one in earlier]),
                np.concatenate([one.labels for one in earlier]),
            )
        return TaskData(
            task.number,
            task.seen,
            (given[-1].images, given[-1].labels),
            stored,
            np.concatenate([one.unlabeled for one in given]),
            normalization=self.normalization,
            placement=self.placement,
            seed=self.config.seed,
            batch=self.config.batch,
            unlabeled_batch=self.config.unlabeled_batch,
            truth=truth,
        )

    def _train(
        self, training: Training, data: TaskData, task: TaskInfo, judgement: list[Judgement]
    ) -> list[float]:
        """Run one training and return the mean loss of each epoch."""
        if training.before is not None:
            training.before(data)
        if training.score_unlabeled is not None and not judgement:
            judgement += self._judged(data.score(training.score_unlabeled, "unlabeled"), task)
        optimization = Optimization.of(
            training, self.placement, self.config.momentum, self.config.weight_decay
        )
        step = Step(training, optimization, self.placement)
        captured: CapturedStep | None = None
        sizes = (self.config.batch, self.config.unlabeled_batch)
        means = []
        with training_mode(training):
            for number in range(training.epochs):
                falls = sum(number >= decay for decay in training.decays)
                optimization.rate.fill_(training.learning_rate * 0.1**falls)
                epoch = data.epoch(training, number)
                if self.placement.device.type == "cuda":
                    captured = captured or CapturedStep(step, next(batches(epoch, *sizes)))
                    losses = captured.run(epoch, *sizes)
                else:
                    losses = run_eagerly(step, epoch, *sizes)
                means.append(_finite_mean(losses, task, training, number))
                self.progress.advance(
                    self._epoch_work(training, epoch.steps),
                    f"task {task.number + 1}/{len(self.stream)} {training.name}",
                )
        if training.after is not None:
            training.after(data)
        return means

    def _judged(self, scores: Scores, task: TaskInfo) -> list[Judgement]:
        judged = self.method.judge(scores, task)
        if judged is None:
            return []
        labels, accepted = judged
        truth = true_slots_of_unlabeled(self.dataset, self.stream, task.number)
        return [Judgement(labels.cpu().numpy(), accepted.cpu().numpy(), truth)]

    def _evaluate(
        self,
        task: TaskInfo,
        judgement: list[Judgement],
        losses: dict[str, list[float]],
        seconds: dict[str, float],
    ) -> TaskOutcome:
        parts = [
            evaluation_part(self.dataset, self.stream, number) for number in range(len(self.stream))
        ]
        labels = np.concatenate([part.labels for part in parts])
        seen = sum(len(part) for part in parts[: task.number + 1])
        outputs, scores = [], []
        for part in parts:
            for start in range(0, len(part), EVALUATION_BATCH):
                pixels = self.placement.tensor(part.images[start : start + EVALUATION_BATCH])
                images = plain_views(
                    pixels.permute(0, 3, 1, 2), self.normalization, dtype=self.placement.dtype
                )
                with torch.no_grad(), self.placement.autocast():
                    outputs.append(self.method.logits(images).float().cpu().numpy())
                    score = self.method.familiarity(images, task)
                if score is not None:
                    scores.append(score.float().cpu().numpy())
        return TaskOutcome(
            task=task,
            logits=np.concatenate(outputs)[:seen],
            labels=labels[:seen],
            familiarity=np.concatenate(scores) if scores else None,
            familiarity_labels=labels,
            judgement=judgement[0] if judgement else None,
            values=dict(self.method.values),
            losses=losses,
            seconds=seconds,
            stored_images=len(self.coreset),
            stored_bytes=self.coreset.bytes,
        )

    def _work(self) -> float:
        """Return the images that all trainings will see, for the time left."""
        total = 0.0
        for number, task in enumerate(self.stream.tasks):
            info = self.task_info(number)
            stored = min(self.config.coreset, 10**9) if info.coreset else 0
            if self.method.memory == "everything":
                stored = sum(len(t.labeled) for t in self.stream.tasks[:number])
            for training in self.method.trainings(info):
                half = 2 if training.labeled == "first-half" else 1
                steps = -(-(len(task.labeled) + stored) // half // self.config.batch)
                total += training.epochs * self._epoch_work(training, steps)
        return total

    def _epoch_work(self, training: Training, steps: int) -> float:
        unlabeled = self.config.unlabeled_batch * (training.unlabeled + training.strong)
        return steps * (self.config.batch + unlabeled)


def _finite_mean(losses: Tensor, task: TaskInfo, training: Training, epoch: int) -> float:
    """Return the mean loss of an epoch, or say where it stopped being a number."""
    values = losses.float().cpu().numpy()
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise TrainingError(
            f"the loss became {values[wrong[0]]} in task {task.number + 1}, {training.name}, "
            f"epoch {epoch + 1}, step {wrong[0] + 1}; a lower learning_rate may help"
        )
    return float(values.mean())
