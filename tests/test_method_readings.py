"""Readings of the paper that change what E2E, DR, GD and DM learn from, by loops."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from slow import (
    TASK,
    divergence,
    random_batch,
    slow_consistency,
    slow_supervised,
    softmax,
)
from torch import Tensor, nn
from trainings import (
    COUNTS,
    FIRST,
    WITH_CORESET,
    LabelCounts,
    batch_for,
    loss_of,
    mean_supervised,
    method_of,
    rows,
    slow_label_weights,
    slow_weights,
    training_of,
)

from distillmatch.methods.dm import DistillMatch

NEW_ALONE = [0.0, 0.0, 0.0, 0.0, 0.0, 30.0, 10.0]
"""Labels of each class without a coreset: past classes have none."""


@pytest.mark.parametrize("name", ["e2e", "gd"])
def test_without_a_coreset_an_image_of_the_new_classes_weighs_one_on_average(name: str) -> None:
    """However many classes were seen: those without images have no frequency to weigh by."""
    found = []
    for balanced in (True, False):
        method = method_of(method=name, class_balancing=balanced, count_smoothing=0.0)
        training = training_of(method)
        assert training.before is not None
        training.before(LabelCounts(NEW_ALONE))
        batch = batch_for(training, classes=range(5, 6))
        found.append((loss_of(training, batch), batch, training.network))
    (weighted, batch, network), (plain, _, _) = found
    supervised = mean_supervised(batch, rows(network, batch.images, batch.unlabeled)[:8])
    share = 1.0 if name == "e2e" else 8 / 14  # GD's is one sum with that over unlabelled images
    # Of 40 images 30 are of class 5, where its half would be 20: each of them weighs 2 / 3.
    assert plain - weighted == pytest.approx(share * supervised / 3, rel=1e-6)


@pytest.mark.parametrize("name", ["base", "e2e", "dr", "gd", "dm"])
def test_labelled_images_normalized_apart_differ_in_the_cross_entropy_alone(name: str) -> None:
    found = []
    for statistics in ("together", "apart"):
        method = method_of(
            method=name,
            labeled_statistics=statistics,
            base_distillation=True,
            class_balancing=False,
            pseudo_labels=False,
        )
        training = training_of(method)
        if training.before is not None:
            training.before(LabelCounts(COUNTS))
        batch = batch_for(training)
        found.append(loss_of(training, batch))
    together = rows(training.network, batch.images, batch.unlabeled)[:8]
    apart = rows(training.network, batch.images)
    share = 8 / 14 if name == "gd" else 1.0
    slow = share * (mean_supervised(batch, apart) - mean_supervised(batch, together))
    assert abs(slow) > 1e-4
    assert found[1] - found[0] == pytest.approx(slow, rel=1e-6)


@pytest.mark.parametrize("name", ["dr", "gd"])
def test_the_teacher_starts_afresh_or_as_the_last_classifier(name: str) -> None:
    fresh, warm = (method_of(method=name, teacher_start=start) for start in ("fresh", "past"))
    for method in (fresh, warm):
        training_of(method, "teacher")
    past = warm.networks["past"].state_dict()
    teacher = warm.networks["teacher"]
    assert all(torch.equal(value, past[key]) for key, value in teacher.state_dict().items())
    assert all(parameter.requires_grad for parameter in teacher.parameters())
    other = fresh.networks["teacher"].state_dict()
    assert not torch.equal(other["backbone.first.weight"], past["backbone.first.weight"])


@pytest.mark.parametrize("statistics", ["together", "unlabeled"])
def test_strong_views_can_be_normalized_with_others(statistics: str) -> None:
    """With all, or with the unlabelled weak views in a forward that nothing else is taken from."""
    method = method_of(
        method="dm",
        strong_statistics=statistics,
        consistency_threshold=0.2,
        pseudo_labels=False,
        distillation=False,
        class_balancing=False,
    )
    training = training_of(method)
    assert training.before is not None
    training.before(LabelCounts(COUNTS))
    batch = batch_for(training)
    assert batch.strong is not None
    before = running_means(training.network)
    loss = loss_of(training, batch)
    moved = running_means(training.network)
    if statistics == "together":
        forwards: list[tuple[Tensor, ...]] = [(batch.images, batch.unlabeled, batch.strong)]
    else:
        forwards = [(batch.unlabeled, batch.strong), (batch.images, batch.unlabeled)]
    logits = [rows(training.network, *images) for images in forwards]
    compared = logits[0][-12:]
    slow = mean_supervised(batch, logits[-1][:8])
    slow += slow_consistency(compared[:6], compared[6:], 0.2)
    assert loss == pytest.approx(slow, rel=1e-9)
    method.classifier.load_state_dict(training.network.state_dict() | before)
    for images in forwards:
        rows(training.network, *images)
    for name, mean in running_means(training.network).items():
        assert torch.equal(mean, moved[name]), "the strong views move the running statistics"


@pytest.mark.parametrize("name", ["e2e", "dr", "gd"])
@pytest.mark.parametrize("labeled", ["together", "apart"])
def test_in_the_first_task_labels_can_be_learned_from_a_forward_with_unlabelled_images(
    name: str, labeled: str
) -> None:
    found = []
    for statistics in ("apart", "together"):
        method = method_of(
            method=name,
            new_task_statistics=statistics,
            labeled_statistics=labeled,
            class_balancing=False,
        )
        training = training_of(method, task=FIRST)
        if training.before is not None:
            training.before(LabelCounts([3.0, 5.0]))
        batch = batch_for(training, classes=range(2))
        found.append((training.unlabeled, loss_of(training, batch)))
    alone = rows(training.network, batch.images, seen=2)
    together = rows(training.network, batch.images, batch.unlabeled, seen=2)[:8]
    assert [unlabeled for unlabeled, _ in found] == [False, True]
    assert found[0][1] == pytest.approx(mean_supervised(batch, alone), rel=1e-9)
    assert found[1][1] == pytest.approx(mean_supervised(batch, together), rel=1e-9)
    assert abs(found[0][1] - found[1][1]) > 1e-4


def test_the_teacher_of_dr_can_be_normalized_with_unlabelled_images() -> None:
    method = method_of(method="dr", new_task_statistics="together")
    training = training_of(method, "teacher")
    assert training.unlabeled
    batch = batch_for(training, classes=range(5, 7))
    loss = loss_of(training, batch)
    logits = torch.tensor(rows(training.network, batch.images, batch.unlabeled)[:8])[:, 5:]
    slow = nn.functional.cross_entropy(logits, batch.labels - 5)
    assert loss == pytest.approx(float(slow), rel=1e-6)
    alone = torch.tensor(rows(training.network, batch.images))[:, 5:]
    assert abs(loss - float(nn.functional.cross_entropy(alone, batch.labels - 5))) > 1e-4


@pytest.mark.parametrize(("counts", "share"), [("pass", 1.0), ("epoch", 2 * 3 / 5)])
def test_pseudo_labels_count_once_or_as_often_as_an_epoch_meets_them(
    counts: str, share: float
) -> None:
    """Seven labels in batches of four are two steps, which meet six of five unlabelled images."""
    method = method_of(
        method="dm", gate="everything", batch=4, unlabeled_batch=3, pseudo_label_counts=counts
    )
    assert isinstance(method, DistillMatch)
    passes = FiveImages([0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 3.0])
    method.balance(passes, TASK, partial(method.score, task=TASK))
    with torch.no_grad():
        guesses = method.networks["past"](passes.images)[:, : TASK.past].argmax(dim=1).tolist()
    expected = [labels + share * guesses.count(slot) for slot, labels in enumerate(passes.counts)]
    assert method.weights.tolist() == pytest.approx(slow_weights(expected), rel=1e-6)


class FiveImages(LabelCounts):
    """A pass over five unlabelled images, and labels that are counted already."""

    images = random_batch(0, unlabeled=5).unlabeled

    def score(self, score: Any, over: str, views: int = 1) -> dict[str, Tensor]:
        with torch.no_grad():
            scores: dict[str, Tensor] = score(self.images)
        return scores


def running_means(network: nn.Module) -> dict[str, Tensor]:
    return {
        name: value.clone()
        for name, value in network.state_dict().items()
        if name.endswith(("running_mean", "running_var"))
    }


@pytest.mark.parametrize("name", ["e2e", "gd"])
@pytest.mark.parametrize("where", ["fine-tuning", "all"])
def test_with_a_coreset_classes_are_weighed_in_fine_tuning_or_before_too(
    where: str, name: str
) -> None:
    losses: dict[str, list[float]] = {"classifier": [], "fine-tuning": []}
    for balanced in (True, False):
        method = method_of(
            method=name, coreset=9, balanced_trainings=where, class_balancing=balanced
        )
        for of, found in losses.items():
            training = training_of(method, of, WITH_CORESET)
            assert training.before is not None
            training.before(LabelCounts(COUNTS))
            found.append(loss_of(training, batch_for(training)))
    differ = {of for of, (balanced_loss, plain) in losses.items() if balanced_loss != plain}
    assert differ == {"fine-tuning"} | ({"classifier"} if where == "all" else set())


@pytest.mark.parametrize("of", ["classifier", "detector"])
def test_labels_normalized_apart_can_leave_the_pseudo_labels_with_the_unlabelled_images(
    of: str,
) -> None:
    """Of DM's one sum over both only the labelled rows change."""
    found = []
    for statistics in ("together", "apart"):
        method = method_of(
            method="dm", labeled_statistics=statistics, accepted_statistics="unlabeled",
            class_balancing=False,
        )  # fmt: skip
        assert isinstance(method, DistillMatch)
        method.values["threshold"] = -2.0  # no cosine is lower
        training = training_of(method, of)
        method.weights = torch.ones(7)
        batch = batch_for(training)
        found.append(loss_of(training, batch))
    together = rows(training.network, batch.images, batch.unlabeled)[:8]
    apart = rows(training.network, batch.images)
    share = 8 / 14  # six pseudo-labels beside eight labels
    slow = share * (mean_supervised(batch, apart) - mean_supervised(batch, together))
    assert abs(slow) > 1e-4
    assert found[1] - found[0] == pytest.approx(slow, rel=1e-6)


@pytest.mark.parametrize("of", ["classifier", "detector"])
@pytest.mark.parametrize("accepted", [1, 3, 5])
@pytest.mark.parametrize("statistics", ["labeled", "labeled-only"])
def test_accepted_images_can_be_normalized_with_the_labelled_ones(
    statistics: str, accepted: int, of: str
) -> None:
    """Half of six are expected: of five the last two stay with the unlabelled images.

    Where one is accepted two others fill the places left over: unlabelled images, or labelled ones.
    """
    method = method_of(
        method="dm", labeled_statistics="apart", accepted_statistics=statistics,
        class_balancing=False, consistency=False, distillation=False, true_positive_rate=0.45,
    )  # fmt: skip
    assert isinstance(method, DistillMatch)
    training = training_of(method, of)
    method.weights = torch.ones(7)
    batch = batch_for(training)
    scores = batch.of_unlabeled["gate"].tolist()
    method.values["threshold"] = sorted(scores)[-accepted]
    taken = [n for n, score in enumerate(scores) if score >= method.values["threshold"]]
    assert len(taken) == accepted
    loss = loss_of(training, batch)
    chosen = (taken + [n for n in range(6) if n not in taken])[:3]
    together = rows(training.network, batch.images, batch.unlabeled)
    beside = batch.unlabeled[chosen]
    if statistics == "labeled-only" and accepted == 1:
        beside = torch.cat([beside[:1], batch.images[1:3]])
    apart = rows(training.network, batch.images, beside)
    past = batch.of_unlabeled["past"][:, :5].argmax(dim=1).tolist()
    slow = slow_supervised(batch, [1.0] * 7, apart[:8])
    for n in taken:
        row = apart[8 + chosen.index(n)] if n in chosen else together[8 + n]
        slow -= math.log(softmax(row)[past[n]])
    assert loss == pytest.approx(slow / (8 + accepted), rel=1e-6)


@pytest.mark.parametrize("labeled", ["together", "apart"])
@pytest.mark.parametrize("name", ["e2e", "gd"])
def test_fine_tuning_can_have_unlabelled_images_and_then_keeps_q(name: str, labeled: str) -> None:
    """Labelled images are normalized with them or apart, as in the training before."""
    method = method_of(
        method=name, coreset=10, fine_tuning_unlabeled=True, labeled_statistics=labeled
    )
    training = training_of(method, "fine-tuning", WITH_CORESET)
    assert training.unlabeled and training.before is not None
    training.before(LabelCounts(COUNTS))
    batch = batch_for(training)
    loss = loss_of(training, batch)
    together = rows(training.network, batch.images, batch.unlabeled)
    logits = together[:8] if labeled == "together" else rows(training.network, batch.images)
    slow = slow_supervised(batch, slow_label_weights(COUNTS), logits)
    if name == "gd":
        targets = batch.of_unlabeled["ensemble"].tolist()
        slow += sum(
            divergence(q, softmax(row)) for q, row in zip(targets, together[8:], strict=True)
        )
    assert loss == pytest.approx(slow / (14 if name == "gd" else 8), rel=1e-9)


@pytest.mark.parametrize("name", ["base", "offline"])
@pytest.mark.parametrize("longest", [None, 0.5])
def test_gradients_of_base_and_the_bound_are_cut_where_that_is_asked(
    name: str, longest: float | None
) -> None:
    """By no other option than their own: DM's leaves them as they are."""
    training = training_of(method_of(method=name, base_clip=longest, clip=0.1))
    assert training.clip == longest
