"""The engine: takes a method through the tasks of a stream and reports what came of each."""

import warnings
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.engine.data import Epoch, TaskData
from distillmatch.engine.device import Placement
from distillmatch.engine.epochs import Epochs
from distillmatch.engine.evaluation import evaluate
from distillmatch.engine.factory import NetworkFactory
from distillmatch.engine.graphs import why
from distillmatch.engine.outcome import Judgement, TaskOutcome, Underway
from distillmatch.engine.progress import NoProgress, Progress
from distillmatch.engine.snapshot import (
    Snapshot,
    restore_method,
    restore_optimizer,
    restored_coreset,
    restored_underway,
    take_snapshot,
)
from distillmatch.engine.steps import (
    CapturedStep,
    Optimization,
    Step,
    batches,
    run_eagerly,
    training_mode,
)
from distillmatch.errors import TrainingError
from distillmatch.methods import Batch, Method, Scores, TaskInfo, Training, make_method
from distillmatch.sources import Dataset
from distillmatch.streams import (
    Coreset,
    Experience,
    Stream,
    experience,
    stored_sizes,
    true_slots_of_unlabeled,
)
from distillmatch.views import Normalization


class Engine:
    """Runs one configuration on one stream.

    `pause` is called wherever a snapshot can be taken: between epochs and between trainings. An
    engine that is given a snapshot by `resume` goes on from there as if nothing had happened. With
    `only`, of a method whose tasks are independent, that one task is learned.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        stream: Stream,
        progress: Progress | None = None,
        pause: Callable[[], None] | None = None,
        only: int | None = None,
    ) -> None:
        self.config = config
        self.dataset = dataset
        self.stream = stream
        self.progress = progress or NoProgress()
        self.placement = Placement.of(config)
        self.normalization = Normalization.of(dataset.train.images)
        classes = sum(stream.task_sizes)
        factory = NetworkFactory(config.network, classes, config.seed, self.placement)
        self.method = make_method(config, factory)
        self.coreset = Coreset(config.coreset, dataset.image_size)
        self.tasks = range(len(stream)) if only is None else range(only, only + 1)
        self.underway = Underway(self.tasks.start)
        self._pause = pause or (lambda: None)
        self._work_done = 0.0
        self._resumed: Snapshot | None = None

    def resume(self, snapshot: Snapshot) -> None:
        """Let `run` begin where the snapshot was taken."""
        self._resumed = snapshot
        task = snapshot.values["task"]
        truth = true_slots_of_unlabeled(self.dataset, self.stream, task)
        self.underway = restored_underway(snapshot, truth)
        self.coreset = restored_coreset(snapshot, self.coreset)

    def snapshot(self) -> Snapshot:
        """Return all that the rest of the run depends on, as it is now."""
        return take_snapshot(self.method, self.coreset, self.underway, self._work_done)

    def run(self) -> Iterator[TaskOutcome]:
        """Learn the tasks one after another; yield the outcome of each."""
        # This asks for all trainings, for which a method may make networks or give them new
        # weights: what was learned is put back only after it.
        total = self.work_of(self.tasks)
        if self._resumed is not None:
            self._work_done = self._resumed.values["work"]
        self.progress.start(total, self._work_done)
        for number in range(self.underway.task, self.tasks.stop):
            yield self._learn(self.task_info(number))
        self.progress.stop()

    def task_info(self, number: int) -> TaskInfo:
        """Return what a method is told of a task before it starts."""
        return TaskInfo(
            number=number,
            sizes=self.stream.task_sizes[: number + 1],
            last=number + 1 == len(self.stream),
            coreset=self.config.coreset > 0 and number > 0 and self.method.memory == "coreset",
        )

    def _learn(self, task: TaskInfo) -> TaskOutcome:
        underway = self.underway
        given = self._given(task)
        data = self._task_data(task, given)
        trainings = self._trainings(task, data)
        for training in trainings[underway.trainings :]:
            with underway.clock.phase(training.name):
                self._train(training, data, task)
            underway.trainings, underway.epochs = underway.trainings + 1, 0
            self._pause()
        self._resumed = None
        self.method.end_task(task)
        if self.method.memory == "coreset":
            self.coreset = self.coreset.after(given[-1], self.config.seed)
        with underway.clock.phase("evaluation"):
            outputs = evaluate(
                self.method, task, self.dataset, self.stream, self.normalization, self.placement
            )
        self.underway = Underway(task.number + 1)
        return TaskOutcome(
            task=task,
            logits=outputs.logits[: outputs.seen],
            labels=outputs.labels[: outputs.seen],
            familiarity=outputs.familiarity,
            familiarity_labels=outputs.labels,
            judgement=underway.judgement,
            values=dict(self.method.values),
            losses=underway.losses,
            seconds=underway.clock.seconds,
            stored_images=len(self.coreset),
            stored_bytes=self.coreset.bytes,
        )

    def _trainings(self, task: TaskInfo, data: TaskData) -> list[Training]:
        """Return a task's trainings, with the method as it was where a resumed run stopped.

        A task that had not begun may start with fresh weights, so what was learned is put back
        before its trainings are asked for; in one that had begun, after. What the finished
        trainings counted beforehand is counted again, for the later ones may use it.
        """
        resumed, begun = self._resumed, self.underway.begun
        if resumed is not None and not begun:
            restore_method(resumed, self.method)
            self._resumed = None
        trainings = self.method.trainings(task)
        if resumed is not None and begun:
            restore_method(resumed, self.method)
            if self.underway.trainings < len(trainings):
                for finished in trainings[: self.underway.trainings]:
                    if finished.before is not None:
                        finished.before(data)
        return trainings

    def task_data(self, number: int) -> TaskData:
        """Return a task's data as they would be if the tasks before it were learned."""
        task = self.task_info(number)
        return self._task_data(task, self._given(task))

    def steps_of(self, training: Training, resumed: Snapshot | None = None) -> "EpochSteps":
        """Return what takes a training's steps, with a fresh optimizer."""
        optimization = Optimization.of(
            training, self.placement, self.config.momentum, self.config.weight_decay
        )
        return EpochSteps(Step(training, optimization, self.placement), self.config, resumed)

    def _given(self, task: TaskInfo) -> list[Experience]:
        """Return what the method is given: the task's experience, or all of them up to it."""
        first = 0 if self.method.memory == "everything" else task.number
        return [experience(self.dataset, self.stream, n) for n in range(first, task.number + 1)]

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

    def _train(self, training: Training, data: TaskData, task: TaskInfo) -> list[float]:
        """Run one training, or what is left of it, and return the mean loss of each epoch."""
        underway = self.underway
        if training.before is not None:
            training.before(data)
        judges = type(self.method).judge is not Method.judge
        if judges and training.score_unlabeled is not None and underway.judgement is None:
            scores = data.score(training.score_unlabeled, "unlabeled")
            underway.judgement = self._judged(scores, task)
        resumed, self._resumed = self._resumed, None
        steps = self.steps_of(training, resumed)
        optimization = steps.step.optimization
        underway.optimizer = optimization.optimizer
        means = underway.losses.setdefault(training.name, [])
        epochs = Epochs(data, training)
        with training_mode(training):
            for number in range(underway.epochs, training.epochs):
                optimization.rate.fill_(training.schedule.rate(number))
                epoch = epochs.take(number)
                losses = steps.run(epoch)
                epochs.prepare(number + 1)
                means.append(_finite_mean(losses, task, training, number))
                underway.epochs = number + 1
                self._advance(
                    self._epoch_work(training, epoch.steps),
                    f"task {task.number + 1}/{len(self.stream)} {training.name}",
                )
                self._pause()
        underway.optimizer = None
        if training.after is not None:
            training.after(data)
        return means

    def _judged(self, scores: Scores, task: TaskInfo) -> Judgement | None:
        judged = self.method.judge(scores, task)
        if judged is None:
            return None
        labels, accepted = judged
        truth = true_slots_of_unlabeled(self.dataset, self.stream, task.number)
        return Judgement(labels.cpu().numpy(), accepted.cpu().numpy(), truth)

    def _advance(self, work: float, doing: str) -> None:
        self._work_done += work
        self.progress.advance(work, doing)

    def work_of(self, tasks: Iterable[int]) -> float:
        """Return the images that all trainings of some tasks will see, for the time left."""
        total = 0.0
        in_coreset = [0, *(images for images, _ in stored_sizes(self.dataset, self.stream))]
        for number in tasks:
            info = self.task_info(number)
            stored = in_coreset[number]
            if self.method.memory == "everything":
                stored = sum(len(t.labeled) for t in self.stream.tasks[:number])
            new = len(self.stream.tasks[number].labeled)
            counts = {"new": new, "coreset": stored, "first-half": (new + stored + 1) // 2}
            for training in self.method.trainings(info):
                images = counts.get(training.labeled, new + stored)
                steps = -(-images // self.config.batch)
                total += training.epochs * self._epoch_work(training, steps)
        return total

    def _epoch_work(self, training: Training, steps: int) -> float:
        unlabeled = self.config.unlabeled_batch * (training.unlabeled + training.strong)
        return steps * (self.config.batch + unlabeled)


class EpochSteps:
    """Takes the steps of a training's epochs: captured once on CUDA, eagerly elsewhere."""

    def __init__(self, step: Step, config: RunConfig, resumed: Snapshot | None) -> None:
        self.step = step
        self.sizes = (config.batch, config.unlabeled_batch)
        self.capturable = step.placement.device.type == "cuda"
        self.captured: CapturedStep | None = None
        self.resumed = resumed

    def run(self, epoch: Epoch) -> Tensor:
        """Take all steps of an epoch and return their losses."""
        if self.capturable and self.captured is None:
            self.captured = self._capture(next(batches(epoch, *self.sizes)))
        if self.resumed is not None:
            # After the capture, whose trial steps leave the optimizer as good as new.
            restore_optimizer(self.resumed, self.step.optimization.optimizer)
            self.resumed = None
        if self.captured is not None:
            return self.captured.run(epoch, *self.sizes)
        return run_eagerly(self.step, epoch, *self.sizes)

    def _capture(self, example: Batch) -> CapturedStep | None:
        """Capture the step; where that cannot be done, say why and let it run eagerly."""
        try:
            return CapturedStep(self.step, example)
        except RuntimeError as error:
            self.capturable = False
            warnings.warn(
                f"the step of training '{self.step.training.name}' cannot be captured as a CUDA "
                f"graph and runs eagerly, which is slower: {why(error)}",
                stacklevel=2,
            )
            return None


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
