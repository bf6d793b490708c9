"""What the last task's networks normalize by while they are asked, by loops."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from slow import TASK, mean_divergence, random_batch, slow_supervised
from torch import Tensor
from trainings import batch_for, loss_of, method_of, rows, training_of

from distillmatch.methods import Method, Training
from distillmatch.methods.dm import DistillMatch


def scores_of(training: Training, images: Tensor) -> dict[str, Tensor]:
    assert training.score_unlabeled is not None
    with torch.no_grad():
        return training.score_unlabeled(images)


@pytest.mark.parametrize(
    ("name", "of", "teacher"),
    [("dm", "classifier", "past"), ("dm", "detector", "past detector"),
     ("base", "classifier", "past")],
)  # fmt: skip
def test_past_networks_can_be_distilled_as_they_normalize_all_images_of_the_step_together(
    name: str, of: str, teacher: str
) -> None:
    """As the network that learns does: while the two are the same the distillation is 0."""
    options: dict[str, Any] = {
        "method": name, "base_distillation": True, "past_statistics": "step",
        "pseudo_labels": name == "dm", "consistency": False, "class_balancing": False,
    }  # fmt: skip
    method = method_of(**options)
    if isinstance(method, DistillMatch):
        method.weights = torch.ones(7)
        method.values["threshold"] = 2.0  # no cosine is higher
    training, frozen = training_of(method, of), method.networks[teacher]
    assert training.score_images is None
    batch = batch_for(training)
    before = {key: value.clone() for key, value in frozen.state_dict().items()}
    loss = loss_of(training, batch)
    assert not any(module.training for module in frozen.modules())
    assert all(torch.equal(value, before[key]) for key, value in frozen.state_dict().items())
    logits = rows(training.network, batch.images, batch.unlabeled)
    told = rows(deepcopy(frozen).train(), batch.images, batch.unlabeled)
    supervised = slow_supervised(batch, [1.0] * 7, logits[:8]) / 8
    distilled = [mean_divergence(told, logits, *classes) for classes in ((0, 2), (2, 5))]
    assert min(distilled) > 1e-4
    assert loss == pytest.approx(supervised + sum(distilled) / 2, rel=1e-6)
    frozen.load_state_dict(training.network.state_dict())
    assert loss_of(training, batch) == pytest.approx(supervised, rel=1e-6)


@pytest.mark.parametrize("name", ["dm", "base"])
@pytest.mark.parametrize("statistics", ["batch", "all-batches"])
def test_past_networks_can_normalize_by_the_images_of_each_step(statistics: str, name: str) -> None:
    options = {"method": name, "base_distillation": True, "batch": 2, "unlabeled_batch": 3}
    method = method_of(**options, past_statistics=statistics)
    training = training_of(method)
    images = random_batch(0, unlabeled=6).unlabeled
    past = method.networks["past"].eval()
    before = {key: value.clone() for key, value in past.state_dict().items()}
    scores = scores_of(training, images)
    assert not any(module.training for module in past.modules())
    assert all(torch.equal(value, before[key]) for key, value in past.state_dict().items())
    assert not torch.allclose(scores["past"], past(images))
    assert training.score_images is not None
    with torch.no_grad():
        labeled, as_ever = training.score_images(images)["past"], past(images)
        past.train()
        by_step = torch.cat([past(images[:3]), past(images[3:])])
        by_labeled = torch.cat([past(lot) for lot in images.split(2)])  # type: ignore[no-untyped-call]
    torch.testing.assert_close(scores["past"], by_step)
    torch.testing.assert_close(labeled, as_ever if statistics == "batch" else by_labeled)
    assert not torch.allclose(as_ever, by_labeled)


def test_the_past_detector_tells_labels_by_the_labelled_images_of_each_step_too() -> None:
    method = method_of(method="dm", batch=2, past_statistics="all-batches")
    images = random_batch(0, unlabeled=6).unlabeled
    training, past = training_of(method, "detector"), method.networks["past detector"]
    assert training.score_images is not None
    with torch.no_grad():
        told = training.score_images(images)["detector logits"]
        past.train()
        by_step = torch.cat([past(lot) for lot in images.split(2)])  # type: ignore[no-untyped-call]
    torch.testing.assert_close(told, by_step)


def test_the_past_detector_scores_by_the_unlabelled_images_of_each_step_too() -> None:
    method = method_of(method="dm", unlabeled_batch=3, past_statistics="batch")
    method.values["epsilon"] = 0.01
    images = random_batch(0, unlabeled=6).unlabeled
    scores = scores_of(training_of(method), images)
    first, second = (scores_of(training_of(method), half) for half in (images[:3], images[3:]))
    torch.testing.assert_close(scores["gate"], torch.cat([first["gate"], second["gate"]]))
    assert not torch.allclose(scores["gate"], by_running(method, images), atol=1e-6)


def by_running(method: Method, images: Tensor) -> Tensor:
    assert isinstance(method, DistillMatch)
    assert method.gate is not None
    method.networks["past detector"].eval()
    with torch.no_grad():
        return method.gate.ask(images, TASK.past, "past")[1]["gate"]
