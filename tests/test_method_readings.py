"""Readings of the paper that change what E2E, DR, GD and DM learn from, by loops."""

import pytest
import torch
from slow import slow_consistency
from torch import Tensor, nn
from trainings import (
    COUNTS,
    LabelCounts,
    batch_for,
    loss_of,
    mean_supervised,
    method_of,
    rows,
    training_of,
)

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


@pytest.mark.parametrize("name", ["e2e", "dr", "gd"])
def test_labelled_images_normalized_apart_differ_in_the_cross_entropy_alone(name: str) -> None:
    found = []
    for statistics in ("together", "apart"):
        method = method_of(method=name, labeled_statistics=statistics, class_balancing=False)
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


def test_strong_views_can_be_normalized_with_all_others() -> None:
    method = method_of(
        method="dm",
        strong_statistics="together",
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
    logits = rows(training.network, batch.images, batch.unlabeled, batch.strong)
    weak, strong = logits[8:14], logits[14:]
    slow = mean_supervised(batch, logits[:8]) + slow_consistency(weak, strong, 0.2)
    assert loss == pytest.approx(slow, rel=1e-9)
    method.classifier.load_state_dict(training.network.state_dict() | before)
    rows(training.network, batch.images, batch.unlabeled, batch.strong)
    for name, mean in running_means(training.network).items():
        assert torch.equal(mean, moved[name]), "the strong views move the running statistics"


def running_means(network: nn.Module) -> dict[str, Tensor]:
    return {
        name: value.clone()
        for name, value in network.state_dict().items()
        if name.endswith(("running_mean", "running_var"))
    }
