"""The gate that learns what is new in a task, and accepts everything else."""

from math import log
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_gates import colored
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.engine import Engine, TaskOutcome
from distillmatch.methods import Batch, TaskInfo
from distillmatch.methods.dm import DistillMatch
from distillmatch.methods.newness import CrossedNewnessGate
from distillmatch.streams import build_stream

LABELS = 6


def slow_scores(logits: Tensor, info: TaskInfo) -> list[float]:
    """Return less the largest probability of a new class among the new ones, row by row."""
    rows = [row[info.past : info.seen] for row in logits.double().exp().tolist()]
    return [-max(row) / sum(row) for row in rows]


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
            return {"score": torch.tensor(slow_scores(network(images), info))}

        labels = passes.labels("second-half").tolist() * 4
        of_half = passes.score(score, "second-half", 4)["score"].tolist()
        pairs = zip(of_half, labels, strict=True)
        self.held_out.append([one for one, label in pairs if label >= info.past])
        self.thresholds.append(self.method.values["threshold"])

    def run(self) -> list[TaskOutcome]:
        return list(self.engine.run())


def of_new_classes(outcome: TaskOutcome) -> NDArray[np.bool_]:
    assert outcome.judgement is not None
    truth = outcome.judgement.truth
    return (truth >= outcome.task.past) & (truth < outcome.task.seen)


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


def assert_half_pass(watched: Watched, count: int, names: tuple[str, ...]) -> None:
    """Compare what the gate accepts of some images with loops, each judged by one network."""
    last = watched.run()[-1].task
    method, gate = watched.method, watched.method.gate
    assert gate is not None
    images = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    half = torch.arange(count) % 2
    with torch.no_grad():
        logits, scores = gate.ask(images, last.past, "past")
        said = [slow_scores(method.networks[name](images), last) for name in names]
    torch.testing.assert_close(logits, method.networks["past"](images))
    expected = [said[1 - i % 2 if len(said) == 2 else 0][i] for i in range(count)]
    # Where half of them are accepted, whatever the threshold of the task was.
    method.values["threshold"] = threshold = sorted(expected)[count // 2] - 1e-6
    accepted = gate.accepts({"past": logits, "half": half, **scores}, last).tolist()
    assert accepted == [score >= threshold for score in expected]
    assert sum(accepted) == count // 2


def test_images_are_accepted_unless_the_network_is_sure_of_a_new_class() -> None:
    assert_half_pass(Watched(gate="newness"), 200, ("newness",))


def test_a_network_that_knows_the_new_classes_rejects_them() -> None:
    """Classes of these images differ in shade, so that half of a class teaches all of it."""
    watched = Watched(50, gate="newness", epochs=30, labels_per_class=14)
    rejected = []
    for outcome in watched.run():
        if outcome.judgement is not None:
            new, refused = of_new_classes(outcome), ~outcome.judgement.accepted
            rejected.append((refused[new].mean(), refused[~new].mean()))
    assert len(rejected) == 2
    assert np.mean([of_new for of_new, _ in rejected]) > 0.3
    assert all(of_new > others + 0.2 for of_new, others in rejected)


def test_its_network_starts_as_the_last_classifier_in_every_task() -> None:
    watched = Watched(gate="newness", epochs=1)
    method = watched.method
    watched.run()
    info = TaskInfo(2, (2, 2, 2), last=False, coreset=False)
    names = [training.name for training in method.trainings(info)]
    assert names == ["newness", "classifier"]
    for name, tensor in method.networks["newness"].state_dict().items():
        torch.testing.assert_close(tensor, method.networks["past"].state_dict()[name])


OF_HALVES = ("newness of even images", "newness of odd images")


def test_crossed_no_network_learns_the_unlabelled_images_that_it_judges() -> None:
    watched = Watched(gate="newness-crossed", epochs=1)
    watched.run()
    method, info = watched.method, TaskInfo(1, (2, 2), last=False, coreset=False)
    generator = torch.Generator().manual_seed(2)
    images, unlabeled = torch.randn(2, 6, 3, 8, 8, generator=generator)
    labels, half = torch.tensor([2, 3, 2, 3, 2, 3]), torch.tensor([0, 1, 1, 0, 0, 1])
    batch = Batch(images, labels, unlabeled, of_unlabeled={"half": half})
    trainings = [one for one in method.trainings(info) if one.name in OF_HALVES]
    assert [one.name for one in trainings] == list(OF_HALVES)
    for learned, training in enumerate(trainings):
        with torch.no_grad():
            logits = training.network(torch.cat([images, unlabeled]))[:, 2:4].double()
            loss = training.loss(batch).item()
        logs = (logits - logits.exp().sum(dim=1, keepdim=True).log()).tolist()
        supervised = -sum(logs[i][label - 2] for i, label in enumerate(labels.tolist())) / 6
        rows = [logs[6 + i] for i in range(6) if half[i] == learned]
        unsure = -sum(map(sum, rows)) / (2 * len(rows)) - log(2)
        assert loss == pytest.approx(supervised + unsure, abs=1e-4)


def test_crossed_the_network_that_has_not_learned_an_image_judges_it() -> None:
    assert_half_pass(Watched(gate="newness-crossed"), 40, OF_HALVES)


@pytest.mark.parametrize("views", [1, 2])
def test_crossed_the_images_of_a_task_are_divided_evenly_and_the_new_ones_rejected(
    views: int,
) -> None:
    options = {"epochs": 30, "labels_per_class": 14, "pseudo_label_views": views, "seed": 0}
    watched = Watched(50, gate="newness-crossed", **options)
    gate, divided = watched.method.gate, []
    assert isinstance(gate, CrossedNewnessGate)
    inner = gate.prepare

    def prepare(passes: Any, info: TaskInfo) -> None:
        if info.past:
            divided.append(passes.notes["half"].tolist())
        inner(passes, info)

    gate.prepare = prepare  # type: ignore[method-assign,assignment]
    rejected = []
    for outcome in watched.run():
        if outcome.judgement is not None:
            new, refused = of_new_classes(outcome), ~outcome.judgement.accepted
            rejected.append((refused[new].mean(), refused[~new].mean()))
    assert [abs(len(half) - 2 * sum(half)) <= 1 for half in divided] == [True, True]
    assert np.mean([of_new for of_new, _ in rejected]) > 0.3
    assert all(of_new > others + 0.2 for of_new, others in rejected)


@pytest.mark.parametrize("gate", ["newness", "newness-crossed"])
@pytest.mark.parametrize("sizes", [(2,), (2, 1), (2, 0)])
def test_without_several_new_classes_beside_past_ones_everything_is_accepted(
    sizes: tuple[int, ...], gate: str
) -> None:
    method = Watched(gate=gate).method
    info = TaskInfo(len(sizes) - 1, sizes, last=False, coreset=False)
    assert [training.name for training in method.trainings(info)] == ["classifier"]
    assert method.gate is not None
    method.gate.prepare(None, info)  # type: ignore[arg-type]
    assert method.gate.accepts({"past": torch.zeros(5, 6)}, info).tolist() == [True] * 5


def test_the_oracle_of_new_classes_accepts_all_but_these() -> None:
    watched = Watched(gate="truth-new", epochs=1)
    assert watched.method.needs_truth
    for outcome in watched.run():
        if outcome.judgement is not None:
            new = of_new_classes(outcome)
            assert 0 < new.sum() < len(new)
            np.testing.assert_array_equal(outcome.judgement.accepted, ~new)
