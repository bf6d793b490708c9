"""The engine: takes a method through the tasks of a stream and reports what came of each."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from distillmatch.config import RunConfig
from distillmatch.engine.batch_order import TrainingOrder
from distillmatch.engine.data import Labeled, TaskData
from distillmatch.engine.device import NetworkFactory, Placement
from distillmatch.engine.outcome import Progress, TaskOutcome, Underway
from distillmatch.engine.outputs import evaluate
from distillmatch.engine.snapshot import Snapshot, restored_coreset
from distillmatch.engine.trainer import EpochDone, Trainer
from distillmatch.methods import ImageSet, TaskInfo, make_method
from distillmatch.methods.contract import trainings_of
from distillmatch.sources import Dataset
from distillmatch.streams import Coreset, Stream, stored_sizes
from distillmatch.views import Normalization


class Engine:
    """Runs one configuration on one stream.

    Its trainer calls `pause` wherever a snapshot can be taken, and an engine that is given one by
    `resume` goes on from there as if nothing had happened; `epoch_done` is as for the trainer. With
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
        epoch_done: EpochDone = lambda training, epoch: None,
    ) -> None:
        self.config = config
        self.stream = stream
        self.placement = Placement.of(config)
        self.normalization = Normalization.of(dataset.train.images)
        given = sum(stream.task_sizes), dataset.image_size, self.placement
        self.factory = NetworkFactory.of(config, *given)
        self.method = make_method(config, self.factory)
        self.coreset = Coreset(config.coreset, dataset.image_size)
        self.tasks = range(len(stream)) if only is None else range(only, only + 1)
        self.trainer = Trainer(
            config, self.method, self.placement, progress, pause, self.tasks.start, epoch_done
        )

    @property
    def underway(self) -> Underway:
        """How far the run is."""
        return self.trainer.underway

    def resume(self, snapshot: Snapshot) -> None:
        """Let `run` begin where the snapshot was taken."""
        self.trainer.resume(snapshot)
        self.coreset = restored_coreset(snapshot, self.coreset)

    def snapshot(self) -> Snapshot:
        """Return all that the rest of the run depends on, as it is now."""
        return self.trainer.snapshot(self.coreset)

    def run(self) -> Iterator[TaskOutcome]:
        """Learn the tasks one after another; yield the outcome of each."""
        # This asks for all trainings, for which a method may make networks or give them new
        # weights: what was learned is put back only after it.
        self.trainer.begin(self.work_of(self.tasks))
        for number in range(self.underway.task, self.tasks.stop):
            yield self._learn(self.task_info(number))
        self.trainer.progress.stop()

    def task_info(self, number: int) -> TaskInfo:
        """Return what a method knows of a task before it starts."""
        return TaskInfo(
            number=number,
            sizes=self.stream.task_sizes[: number + 1],
            last=number + 1 == len(self.stream),
            coreset=self.config.coreset > 0 and number > 0 and self.method.memory == "coreset",
            returning=self.stream.returning(number),
        )

    def _learn(self, task: TaskInfo) -> TaskOutcome:
        underway = self.underway
        doing = f"task {task.number + 1}/{len(self.stream)}"
        self.trainer.learn(task, self.task_data(task.number), doing)
        self.method.end_task(task)
        if self.method.memory == "coreset":
            self.coreset = self.coreset.after(self.stream.experience(task.number), self.config.seed)
        with underway.clock.phase("evaluation"):
            where = self.stream, self.normalization, self.placement
            outputs = evaluate(self.method, task, *where)
        self.trainer.underway = Underway(task.number + 1, work=underway.work)
        learned = outputs.labels < task.seen
        return TaskOutcome(
            task=task,
            logits=outputs.logits[learned],
            labels=outputs.labels[learned],
            familiarity=outputs.familiarity,
            familiarity_labels=outputs.labels,
            judgement=underway.judgement,
            truth=self.stream.true_slots_of_unlabeled(task.number),
            values=dict(self.method.values),
            losses=underway.losses,
            seconds=underway.clock.seconds,
            stored_images=len(self.coreset),
            stored_bytes=self.coreset.bytes,
        )

    def task_data(self, number: int) -> TaskData:
        """Return a task's data as they would be if the tasks before it were learned."""
        first = 0 if self.method.memory == "everything" else number
        *earlier, new = (self.stream.experience(n) for n in range(first, number + 1))
        truth = None
        if self.method.needs_truth:
            by_task = map(self.stream.true_slots_of_unlabeled, range(first, number + 1))
            truth = np.concatenate([*by_task])
        stored: Labeled = (self.coreset.images, self.coreset.labels)
        if earlier:
            stored = [one.images for one in earlier], np.concatenate([e.labels for e in earlier])
        data = TaskData(
            self.task_info(number),
            (new.images, new.labels),
            stored,
            [one.unlabeled for one in (*earlier, new)],
            self.config,
            normalization=self.normalization,
            placement=self.placement,
            truth=truth,
        )
        data.networks = self.method.networks
        return data

    def work_of(self, tasks: Iterable[int]) -> float:
        """Return the images that all trainings of some tasks will see, for the time left."""
        total = 0.0
        in_coreset = [0, *(images for images, _ in stored_sizes(self.stream))]
        for number in tasks:
            info, task = self.task_info(number), self.stream.tasks[number]
            stored = in_coreset[number]
            if self.method.memory == "everything":
                stored = sum(len(t.labeled) for t in self.stream.tasks[:number])
            labeled = len(task.labeled) + stored
            counts: dict[ImageSet, int] = {
                "labeled": labeled,
                "new": len(task.labeled),
                "coreset": stored,
                "first-half": labeled // 2,
                "second-half": labeled // 2,
                "unlabeled": len(task.unlabeled),
            }
            for training in trainings_of(self.method, info):
                size = training.labeled_batch(self.config.batch, info)
                last = self.method.recipe.last_batches
                order = TrainingOrder(training, number, counts, size, self.config, last)
                total += self.trainer.work_of(training, info, order.steps)
        return total
