"""The gate that learns what is new in a task, and accepts everything else."""

from typing import Any

import numpy as np
import pytest
import torch
from test_gates import colored
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.engine import Engine, TaskOutcome
from distillmatch.methods import TaskInfo
from distillmatch.methods.dm import DistillMatch
from distillmatch.streams import build_stream

LABELS = 6


class Watched:
    """An engine whose gate is looked at when a task's images are about to be judged."""

    def __init__(self, per_class: int = 14, **options: Any) -> None:
        given = {"network": "wrn-10-1", "epochs": 6, "tasks": 3, "batch": 8, "unlabeled_batch": 8}
        given |= {"device": "cpu", "labels_per_class": LABELS, "method": "dm"}
        config = RunConfig(**{**given, **options})
        dataset = colored(per_class)
        self.engine = Engine(config, dataset, build_stream(dataset, config))
        assert isinstance(self.engine.method, DistillMatch)
        self.method = self.engine.method
        self.held_out: list[list[float]] = []
        self.unlabeled: list[list[float]] = []
        self.thresholds: list[float] = []
        gate = self.method.gate
        assert gate is not None
        inner = gate.prepare

        def prepare(passes: Any, info: TaskInfo) -> None:
            inner(passes, info)
            if info.past and "newness" in self.method.networks:
                self.look(passes, info)

        gate.prepare = prepare  # type: ignore[method-assign,assignment]

    def look(self, passes: Any, info: TaskInfo) -> None:
        """Score by loops what the gate may have seen."""
        network = self.method.networks["newness"]

        def score(images: Tensor) -> dict[str, Tensor]:
            rows = network(images).double().exp().tolist()
            new = [[row[k] for k in range(info.past, info.seen)] for row in rows]
            return {"score": torch.tensor([-max(row) / sum(row) for row in new])}

        labels = passes.labels("second-half").tolist() * 4
        of_half = passes.score(score, "second-half", 4)["score"].tolist()
        pairs = zip(of_half, labels, strict=True)
        self.held_out.append([one for one, label in pairs if label >= info.past])
        self.unlabeled.append(passes.score(score, "unlabeled")["score"].tolist())
        self.thresholds.append(self.method.values["threshold"])

    def run(self) -> list[TaskOutcome]:
        return list(self.engine.run())


@pytest.mark.parametrize("coreset", [0, 6])
@pytest.mark.parametrize("rate", [None, 0.2])
def test_the_threshold_is_what_a_share_of_held_out_new_images_reach(
    rate: float | None, coreset: int
) -> None:
    watched = Watched(gate="newness", coreset=coreset, false_positive_rate=rate)
    outcomes = watched.run()
    assert len(watched.thresholds) == 2, "in the first task there is nothing to keep"
    for scores, threshold in zip(watched.held_out, watched.thresholds, strict=True):
        count = 2 * (LABELS // 2) * 4
        assert len(scores) == count, "four views of half of the images of two new classes"
        rank = next(n for n in range(1, count + 1) if n / count >= (rate or 0.5))
        assert threshold == pytest.approx(sorted(scores, reverse=True)[rank - 1], abs=1e-5)
    for outcome in outcomes:
        assert outcome.familiarity is None, "it knows nothing of all classes seen"


def test_images_are_accepted_unless_the_network_is_sure_of_a_new_class() -> None:
    watched = Watched(gate="newness")
    judged = [outcome.judgement for outcome in watched.run()]
    assert judged[0] is None
    for number, scores in enumerate(watched.unlabeled):
        judgement, threshold = judged[number + 1], watched.thresholds[number]
        assert judgement is not None
        # Views of the two passes are others, so shares are compared and not single images.
        expected = np.mean([score >= threshold for score in scores])
        assert 0 < expected <= 1
        assert judgement.accepted.mean() == pytest.approx(expected, abs=0.25)


def test_a_network_that_knows_the_new_classes_rejects_them() -> None:
    """Classes of these images differ in shade, so that half of a class teaches all of it."""
    watched = Watched(50, gate="newness", epochs=30, labels_per_class=14)
    engine, rejected = watched.engine, []
    for outcome in engine.run():
        if outcome.judgement is not None:
            truth = engine._truth(outcome.task.number)
            new = (truth >= outcome.task.past) & (truth < outcome.task.seen)
            refused = ~outcome.judgement.accepted
            rejected.append((refused[new].mean(), refused[~new].mean()))
    assert len(rejected) == 2
    assert np.mean([of_new for of_new, _ in rejected]) > 0.3
    assert all(of_new > others + 0.1 for of_new, others in rejected)


def test_its_network_starts_as_the_last_classifier_in_every_task() -> None:
    watched = Watched(gate="newness", epochs=1)
    method = watched.method
    list(watched.engine.run())
    info = TaskInfo(2, (2, 2, 2), last=False, coreset=False)
    names = [training.name for training in method.trainings(info)]
    assert names == ["newness", "classifier"]
    for name, tensor in method.networks["newness"].state_dict().items():
        torch.testing.assert_close(tensor, method.networks["past"].state_dict()[name])


@pytest.mark.parametrize("sizes", [(2,), (2, 1), (2, 0)])
def test_without_several_new_classes_beside_past_ones_everything_is_accepted(
    sizes: tuple[int, ...],
) -> None:
    method = Watched(gate="newness").method
    info = TaskInfo(len(sizes) - 1, sizes, last=False, coreset=False)
    assert [training.name for training in method.trainings(info)] == ["classifier"]
    assert method.gate is not None
    method.gate.prepare(None, info)  # type: ignore[arg-type]
    assert method.gate.accepts({"past": torch.zeros(5, 6)}, info).tolist() == [True] * 5


def test_the_oracle_of_new_classes_accepts_all_but_these() -> None:
    watched = Watched(gate="truth-new", epochs=1)
    assert watched.method.needs_truth
    for outcome in watched.engine.run():
        if outcome.judgement is not None:
            truth = watched.engine._truth(outcome.task.number)
            new = (truth >= outcome.task.past) & (truth < outcome.task.seen)
            assert 0 < new.sum() < len(new)
            np.testing.assert_array_equal(outcome.judgement.accepted, ~new)
