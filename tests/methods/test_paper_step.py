"""One step of each method by both recipes, against a plain computation of the whole step."""

import math
from typing import Any

import plain
import pytest
import torch
from plain import Row, Rows
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.methods import Batch, Method, TaskInfo, Training, make_method
from distillmatch.networks import build_network, by_batch_statistics

SIZES = (2, 3, 2)
PAST, SEEN = 5, 7
TASK = TaskInfo(number=2, sizes=SIZES, last=False, coreset=False)
WITH_CORESET = TaskInfo(number=2, sizes=SIZES, last=False, coreset=True)
LABELS = [5, 6, 6, 5, 5]
STORED = [5, 6, 0, 3, 5]
WEIGHTS: Row = [0.5, 1.5, 0.7, 2.0, 1.0, 0.8, 1.2]
RECIPES = ("paper", "as-written")
CONFIDENT = {"paper": 0.1725, "as-written": 0.185}
"""A confidence that some weak views reach, of networks that have learned nothing."""


def build(name: str, head: Any = "linear", initial_weights: Any = "normal") -> nn.Module:
    generator = torch.Generator().manual_seed(len(name))
    network = build_network("wrn-10-1", 9, head, generator, initial_weights=initial_weights)
    for key, values in network.state_dict().items():
        if key.endswith(("running_mean", "running_var", "bias")):  # like none of a batch
            values.add_(0.1 * torch.rand(values.shape, generator=generator))
    made: nn.Module = network.double().eval()
    return made


def method_in_third_task(recipe: str, **options: Any) -> Method:
    given = {"unlabeled_batch": 6, "recipe": recipe, **options}
    method = make_method(RunConfig(**given), build)
    method.networks["past"] = build("past").requires_grad_(False)
    if "detector" in method.networks:
        past = build("past detector", method.recipe.detector).requires_grad_(False)
        method.networks["past detector"] = past
    return method


def images(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 8, 8, generator=generator, dtype=torch.float64)


def batch_of(
    training: Training, labels: list[int], task: TaskInfo = TASK, method: Method | None = None
) -> Batch:
    """What the engine would give; networks of the method that the training names go by batches."""
    labeled, unlabeled = images(5, 1), images(6 * training.unlabeled, 2)
    frozen = [method.networks[name] for name in training.by_batch] if method else []
    with torch.no_grad(), by_batch_statistics(frozen, [6]):
        return Batch(
            images=labeled,
            labels=torch.tensor(labels),
            unlabeled=unlabeled,
            strong=images(6, 3) if training.strong else None,
            labeled_outputs=training.frozen_labeled and training.frozen_labeled(labeled, task),
            unlabeled_outputs=training.frozen_unlabeled
            and training.frozen_unlabeled(unlabeled, task),
        )


def training_of(method: Method, name: str, task: TaskInfo = TASK) -> Training:
    (training,) = [one for one in method.trainings(task) if one.name == name]
    return training


def loss_of(training: Training, batch: Batch, task: TaskInfo = TASK) -> float:
    training.network.train(training.parameters == "all" or training.head_statistics == "batch")
    loss = training.loss(batch, task)
    training.network.eval()
    terms = loss.values() if isinstance(loss, dict) else [loss]
    return float(sum(term.detach() for term in terms))


def rows(network: nn.Module, given: Tensor, by_batch: bool = True) -> Rows:
    """Plain logits of images that share their statistics, over the classes seen."""
    with torch.no_grad():
        found: Rows = plain.logits(given, network.state_dict(), by_batch)[:, :SEEN].tolist()
    return found


def labels_by(method: Method, batch: Batch) -> Rows:
    """Plain logits that the labels of E2E, DR and GD are learned by."""
    if method.recipe.statistics.labeled == "alone":
        return rows(method.classifier, batch.images)
    return rows(method.classifier, torch.cat([batch.images, batch.unlabeled]))[:5]


def supervised(logits: Rows, labels: list[int], weights: Row | None = None) -> float:
    weights = weights or [1.0] * SEEN
    return sum(
        weights[y] * plain.cross_entropy(row, y) for row, y in zip(logits, labels, strict=True)
    ) / len(labels)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_of_e2e_and_of_its_fine_tuning(recipe: str) -> None:
    method = method_in_third_task(recipe, method="e2e")
    training = training_of(method, "classifier")
    batch = batch_of(training, LABELS, method=method)
    both = torch.cat([batch.images, batch.unlabeled])
    factor = 4.0 if recipe == "paper" else 1.0
    student, teacher = rows(method.classifier, both), rows(method.networks["past"], both, False)
    slow = supervised(labels_by(method, batch), LABELS)
    slow += factor * plain.per_task(teacher, student, SIZES)
    assert loss_of(training, batch) == pytest.approx(slow, rel=1e-9)

    stored: Any = method_in_third_task(recipe, method="e2e", coreset=4)
    tuning = training_of(stored, "fine-tuning", WITH_CORESET)
    stored.weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    batch = batch_of(tuning, STORED, WITH_CORESET)
    slow = supervised(labels_by(stored, batch), STORED, WEIGHTS)
    assert loss_of(tuning, batch, WITH_CORESET) == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_of_dr_and_of_its_teacher(recipe: str) -> None:
    method = method_in_third_task(recipe, method="dr")
    training, of_teacher = training_of(method, "classifier"), training_of(method, "teacher")
    assert of_teacher.labeled == "new"
    batch = batch_of(training, LABELS, method=method)
    both = torch.cat([batch.images, batch.unlabeled])
    student, past = rows(method.classifier, both), rows(method.networks["past"], both, False)
    new = rows(method.networks["teacher"], both, False)
    factor = 4.0 if recipe == "paper" else 1.0
    slow = supervised(labels_by(method, batch), LABELS)
    slow += factor * plain.per_task(past, student, SIZES)
    slow += 2 / 7 * 4.0 * plain.cooled(new, student, PAST, SEEN)
    assert loss_of(training, batch) == pytest.approx(slow, rel=1e-9)
    taught = [row[PAST:] for row in rows(method.networks["teacher"], both)[:5]]
    slow = supervised(taught, [label - PAST for label in LABELS])
    assert loss_of(of_teacher, batch_of(of_teacher, LABELS)) == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_of_gd_of_its_teacher_and_of_its_fine_tuning(recipe: str) -> None:
    method = method_in_third_task(recipe, method="gd", coreset=4)
    training = training_of(method, "classifier", WITH_CORESET)
    batch = batch_of(training, STORED, WITH_CORESET)
    both = torch.cat([batch.images, batch.unlabeled])
    student, past = rows(method.classifier, both), rows(method.networks["past"], both, False)
    new = rows(method.networks["teacher"], both, False)

    def labels_and_target(logits: Rows, weak: Rows, weights: Row | None) -> float:
        total = 5 * supervised(logits, STORED, weights)
        for row, past_row, new_row in zip(weak, past[5:], new[5:], strict=True):
            shared = past_row if recipe == "paper" else new_row
            target = plain.ensemble(past_row[:PAST], shared[PAST:])
            total += plain.divergence(target, plain.softmax(row))
        return total / 11

    slow = labels_and_target(labels_by(method, batch), student[5:], None)
    slow += 5 / 7 * 4.0 * plain.cooled(past, student, 0, PAST)
    slow += 2 / 7 * 4.0 * plain.cooled(new, student, PAST, SEEN)
    assert loss_of(training, batch, WITH_CORESET) == pytest.approx(slow, rel=1e-9)

    of_teacher = training_of(method, "teacher", WITH_CORESET)
    taught = [row[PAST:] for row in rows(method.networks["teacher"], both)]
    learned = [(row, y - PAST) for row, y in zip(taught, STORED, strict=False) if y >= PAST]
    others = [row for row, y in zip(taught, STORED, strict=False) if y < PAST] + taught[5:]
    slow = sum(plain.cross_entropy(row, y) for row, y in learned) / len(learned)
    slow += sum(plain.divergence([0.5, 0.5], plain.softmax(row)) for row in others) / len(others)
    given = batch_of(of_teacher, STORED, WITH_CORESET)
    assert loss_of(of_teacher, given, WITH_CORESET) == pytest.approx(slow, rel=1e-9)

    tuning = training_of(method, "fine-tuning", WITH_CORESET)
    method.weights = torch.tensor(WEIGHTS, dtype=torch.float64)  # type: ignore[attr-defined]
    new = rows(method.networks["teacher"], both, False)  # whose running statistics have moved
    if recipe == "paper":
        logits, weak = labels_by(method, batch), student[5:]
    else:
        weak = rows(method.classifier, both, False)
        logits, weak = weak[:5], weak[5:]
    slow = labels_and_target(logits, weak, WEIGHTS)
    given = batch_of(tuning, STORED, WITH_CORESET)
    assert loss_of(tuning, given, WITH_CORESET) == pytest.approx(slow, rel=1e-9)


def accepted_scores(method: Method, batch: Batch, epsilon: float) -> Row:
    scaled = method.recipe.detector == "scaled-cosine"
    by_batch = method.recipe.statistics.teachers == "batch"
    weights = method.networks["past detector"].state_dict()
    return plain.scores(batch.unlabeled, weights, PAST, epsilon, by_batch, scaled)


def dm_labels(
    method: Method, learning: nn.Module, batch: Batch, found: Row, expected: int
) -> tuple[float, int]:
    """(ℓ_s + ℓ_pl) and B + B_pl, eqs. 6 and 7."""
    of_detector, given = learning is not method.classifier, batch.labels.tolist()
    past_by_batch = method.recipe.statistics.teachers == "batch"
    guesses = rows(method.networks["past"], batch.unlabeled, past_by_batch)
    threshold = method.values["threshold"]
    accepted = [n for n, score in enumerate(found) if score >= threshold]
    labels = {n: guesses[n].index(max(guesses[n][:PAST])) for n in accepted}

    def made(images: Tensor) -> Rows:
        with torch.no_grad():
            if of_detector:
                scaled = method.recipe.detector == "scaled-cosine"
                f = plain.detector(images, learning.state_dict(), True, scaled)[1]
            else:
                f = plain.logits(images, learning.state_dict())
        out: Rows = f[:, :SEEN].tolist()
        return out

    if method.recipe.statistics.labeled == "alone":
        # Images that are accepted beyond the expected number keep their own statistics; where fewer
        # are, labeled images are repeated in their places.
        beside = accepted[:expected]
        filled = [batch.images[n : n + 1] for n in range(len(beside), expected)]
        taken = [batch.unlabeled[n : n + 1] for n in beside]
        alone = made(torch.cat([batch.images, *taken, *filled]))
        weak = made(torch.cat([batch.images, batch.unlabeled]))[5:]
        learned = {n: alone[5 + place] for place, n in enumerate(beside)}
        learned |= {n: weak[n] for n in accepted[expected:]}
        logits = alone[:5]
    else:
        weak = made(torch.cat([batch.images, batch.unlabeled]))
        logits, learned = weak[:5], {n: weak[5 + n] for n in accepted}
    total = 5 * supervised(logits, given, WEIGHTS)
    for n in accepted:
        total += WEIGHTS[labels[n]] * plain.cross_entropy(learned[n], labels[n])
    return total, 5 + len(accepted)


@pytest.mark.parametrize(
    ("coreset", "expected", "accepted"), [(0, 3, 0), (0, 3, 2), (0, 3, 3), (0, 3, 5), (4, 1, 2)]
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_of_dm_of_its_detector_and_of_its_fine_tuning(
    recipe: str, coreset: int, expected: int, accepted: int
) -> None:
    """Of six unlabeled images half are expected to be accepted, with a coreset 5 %, so one."""
    options = {"consistency_threshold": CONFIDENT[recipe]}
    method: Any = method_in_third_task(recipe, method="dm", options=options, coreset=coreset)
    task, labels = (WITH_CORESET, STORED) if coreset else (TASK, LABELS)
    method.values |= {"epsilon": 0.004, "threshold": 0.0}
    training = training_of(method, "classifier", task)
    found = accepted_scores(method, batch_of(training, labels, task, method), 0.004)
    method.values["threshold"] = sorted([math.inf, *found], reverse=True)[accepted] - 1e-9
    method.weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    batch = batch_of(training, labels, task, method)
    both = torch.cat([batch.images, batch.unlabeled])
    by_batch = recipe == "paper"

    total, count = dm_labels(method, method.classifier, batch, found, expected)
    assert count == 5 + accepted
    assert batch.strong is not None
    agreeing = rows(method.classifier, torch.cat([batch.unlabeled, batch.strong]))
    teacher = rows(method.networks["past"], both, by_batch)
    slow = total / count
    slow += plain.consistency(agreeing[:6], agreeing[6:], CONFIDENT[recipe])
    slow += plain.per_task(teacher, rows(method.classifier, both), SIZES)
    confident = [max(plain.softmax(row)) >= CONFIDENT[recipe] for row in agreeing[:6]]
    assert any(confident) and not all(confident)
    assert loss_of(training, batch, task) == pytest.approx(slow, rel=1e-9)

    of_detector = training_of(method, "detector", task)
    scaled, past = by_batch, method.networks["past detector"].state_dict()
    learning = method.networks["detector"]
    total, count = dm_labels(method, learning, batch, found, expected)
    with torch.no_grad():
        teacher = plain.detector(both, past, by_batch, scaled)[1][:, :SEEN].tolist()
        student = plain.detector(both, learning.state_dict(), True, scaled)[1][:, :SEEN].tolist()
    slow = total / count + plain.per_task(teacher, student, SIZES)
    given = batch_of(of_detector, labels, task, method)
    assert loss_of(of_detector, given, task) == pytest.approx(slow, rel=1e-9)

    if coreset:
        tuning = training_of(method, "fine-tuning", task)
        method.tuning_weights = method.weights
        slow = supervised(rows(method.classifier, batch.images, by_batch), labels, WEIGHTS)
        given = batch_of(tuning, labels, task)
        assert loss_of(tuning, given, task) == pytest.approx(slow, rel=1e-9)
