"""What a learner learns, task after task."""

from typing import Any

import numpy as np
import pytest
import torch
from learner_world import (
    ANGELFISH,
    BOAT,
    CLOWNFISH,
    GOLDFISH,
    SHARK,
    TROUT,
    images_of,
    names_of,
    small_learner,
    task,
)

from distillmatch import ContinualLearner
from distillmatch.config import RunConfig
from distillmatch.engine.device import NetworkFactory, Placement
from distillmatch.errors import ConfigError, DistillMatchError, LearnerError, TrainingError
from distillmatch.learner.trained import fresh_method, grow, task_info
from distillmatch.methods import Batch
from distillmatch.methods.parts import TEMPERATURE

METHODS = ("dm", "worldmatch", "gd", "e2e", "dr", "base")
ENVIRONMENT = images_of(GOLDFISH, CLOWNFISH, TROUT, SHARK, count=4, first=40)


@pytest.mark.parametrize("coreset", [0, 5])
@pytest.mark.parametrize("method", METHODS)
def test_learns_every_kind_of_task(method: str, coreset: int) -> None:
    learner = small_learner(
        method, coreset=coreset, epochs=1 if method in ("dm", "worldmatch") else 2
    )
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=3))  # nothing unlabeled
    learner.partial_fit(*task(TROUT, count=2), unlabeled=ENVIRONMENT)  # one class, two images
    learner.partial_fit(*task(GOLDFISH, count=3, first=9), unlabeled=ENVIRONMENT)  # nothing new
    learner.partial_fit(*task(BOAT, CLOWNFISH, count=1, first=5), unlabeled=[])  # one image each
    assert learner.classes_.tolist() == [*names_of(CLOWNFISH, GOLDFISH), *names_of(TROUT, BOAT)]
    history = learner.history_
    added = [names_of(CLOWNFISH, GOLDFISH), names_of(TROUT), [], names_of(BOAT)]
    assert [record["added"] for record in history] == added
    returned = [[], [], names_of(GOLDFISH), names_of(CLOWNFISH)]
    assert [record["returned"] for record in history] == returned
    assert [record["seen"] for record in history] == [0, 16, 16, 0]
    assert [record["number"] for record in history] == [1, 2, 3, 4]
    rows = learner.predict_proba(ENVIRONMENT)
    assert rows.shape == (16, 4)
    np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-5)
    # Of five places the newest class has two, and a single image.
    assert len(learner.coreset_) == history[-1]["stored"] == (4 if coreset else 0)


def test_a_task_of_one_class_may_be_the_first() -> None:
    learner = small_learner("dm", epochs=1).partial_fit(*task(SHARK, count=1))
    assert learner.predict(ENVIRONMENT).tolist() == names_of(SHARK) * 16
    learner.partial_fit(*task(TROUT, count=2), unlabeled=ENVIRONMENT)
    assert learner.classes_.tolist() == names_of(SHARK, TROUT)


def test_learns_what_it_is_shown() -> None:
    images, labels = task(GOLDFISH, BOAT, count=30)
    learner = small_learner(epochs=8).partial_fit(images, labels)
    assert learner.score(*task(GOLDFISH, BOAT, count=30, first=40)) > 0.8
    assert learner.score(images, [*labels[:30], *names_of(SHARK, count=30)]) < 0.6


@pytest.mark.parametrize(
    ("sizes", "distilled"),
    [
        ((2, 0, 3, 0), (2, 3, 0)),
        ((1, 1, 1, 1), (3, 1)),
        ((4, 1, 4, 2), (5, 4, 2)),
        ((1, 4, 3, 1), (5, 3, 1)),
        ((1, 0, 2), (1, 2)),
        ((1,), (1,)),
    ],
)
def test_earlier_tasks_of_one_class_or_none_are_distilled_with_others(
    sizes: tuple[int, ...], distilled: tuple[int, ...]
) -> None:
    info = task_info(len(sizes) - 1, sizes, stored=False)
    assert info.sizes == distilled and not info.last
    assert (info.seen, info.past) == (sum(sizes), sum(sizes[:-1]))


def test_growing_keeps_what_was_learned() -> None:
    config = RunConfig(network="wrn-10-1", method="dm", device="cpu")
    placement = Placement.of(config)
    images = torch.rand(4, 3, 16, 16)
    method = fresh_method(config, NetworkFactory.of(config, 3, 16, placement))
    method.frozen_copy("past", of="classifier")
    before = {name: network(images) for name, network in method.networks.items()}
    grow(method, NetworkFactory.of(config, 5, 16, placement))
    assert set(before) == {"classifier", "detector", "past"}
    for name, network in method.networks.items():
        torch.testing.assert_close(network(images)[:, :3], before[name])
        assert network(images).shape == (4, 5)
        trained = all(weight.requires_grad for weight in network.parameters())
        assert trained == (name != "past")
    assert method.start_afresh("teacher", task_info(1, (3, 2), stored=False))(images).shape[1] == 5


@torch.no_grad()
def test_without_new_classes_global_distillation_follows_the_past_model() -> None:
    config = RunConfig(network="wrn-10-1", method="gd", device="cpu")
    method: Any = fresh_method(config, NetworkFactory.of(config, 3, 16, Placement.of(config)))
    method.frozen_copy("past", of="classifier").get_parameter("head.weight").mul_(3)
    images, unlabeled = torch.rand(2, 3, 16, 16), torch.rand(3, 3, 16, 16)
    labels, info = torch.tensor([0, 2]), task_info(1, (3, 0), stored=False)
    [training] = method.trainings(info)
    assert training.name == "classifier"
    batch = Batch(
        images,
        labels,
        unlabeled,
        labeled_outputs=training.frozen_labeled(images, info),
        unlabeled_outputs=training.frozen_unlabeled(unlabeled, info),
    )
    both = torch.cat([images, unlabeled])
    student, past = method.classifier(both), method.networks["past"](both)
    of_labels = torch.zeros(())
    for row, label in zip(student[:2].log_softmax(1), labels, strict=True):
        of_labels = of_labels - row[label]
    for row, teacher in zip(student[2:].log_softmax(1), past[2:].softmax(1), strict=True):
        of_labels = of_labels + (teacher * (teacher.log() - row)).sum()
    of_past = torch.zeros(())
    for row, teacher in zip(student / TEMPERATURE, past / TEMPERATURE, strict=True):
        shares = teacher.softmax(0) * (teacher.log_softmax(0) - row.log_softmax(0))
        of_past = of_past + TEMPERATURE**2 * shares.sum() / 5
    terms = method.loss(batch, info)
    torch.testing.assert_close(terms, {"labels and Q": of_labels / 5, "distillation": of_past})


def test_reports_what_was_accepted_from_the_environment_with_examples() -> None:
    learner = small_learner("dm", options={"true_positive_rate": 1.0}, examples=3)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=4))
    assert learner.explain().accepted is None, "nothing was known to be recognized"
    assert learner.explain().examples == []
    learner.partial_fit(*task(TROUT, count=4), unlabeled=ENVIRONMENT, name="spring")
    found = learner.explain()
    record = learner.history_[-1]
    assert (found.name, found.seen) == ("spring", 16)
    assert found.accepted == sum(found.by_class.values()) == record["accepted"] > 0
    assert set(found.by_class) <= set(names_of(CLOWNFISH, GOLDFISH))
    assert len(found.examples) == min(3, found.accepted)
    known = {image.tobytes() for image in ENVIRONMENT}
    for example in found.examples:
        assert example.image.tobytes() in known
        assert example.label in found.by_class
        assert example.score is not None and -1 <= example.score <= 1.01


def test_a_class_that_comes_back_renews_its_share_of_the_coreset() -> None:
    learner = small_learner(coreset=8).partial_fit(*task(CLOWNFISH, GOLDFISH, count=6))
    old = {image.tobytes() for image in learner.coreset_.by_class[1]}
    learner.partial_fit(*task(GOLDFISH, count=20, first=20))
    now = [image.tobytes() for image in learner.coreset_.by_class[1]]
    new = {image.tobytes() for image in images_of(GOLDFISH, count=20, first=20)}
    assert [len(images) for images in learner.coreset_.by_class] == [4, 4]
    assert set(now) <= old | new and set(now) & new
    learner.partial_fit(*task(TROUT, ANGELFISH, count=1))
    assert [len(images) for images in learner.coreset_.by_class] == [2, 2, 1, 1]


@pytest.mark.parametrize(("method", "epochs"), [("dm", 3), ("base", 1)])
def test_a_failed_task_leaves_the_learner_as_it_was(method: str, epochs: int) -> None:
    """In one epoch of one step the loss is still a number, and the network is ruined."""
    learner = small_learner(method, epochs=1).partial_fit(*task(SHARK, TROUT, count=2))
    before = learner.predict_proba(ENVIRONMENT)
    learner.set_params(learning_rate=1e30, epochs=epochs)
    with pytest.raises(TrainingError, match="a lower learning_rate may help"):
        learner.partial_fit(*task(BOAT, count=4), unlabeled=ENVIRONMENT)
    np.testing.assert_array_equal(learner.predict_proba(ENVIRONMENT), before)
    assert learner.classes_.tolist() == names_of(SHARK, TROUT)
    learner.set_params(learning_rate=None).partial_fit(*task(BOAT, count=4))
    assert len(learner.classes_) == 3


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"method": "offline"}, "needs all images of earlier tasks"),
        ({"method": "worldmatch", "options": {"accept": "truth"}}, "they are unknown"),
        ({"options": {"pseudo_label": False}}, "did you mean 'pseudo_labels'"),
        ({"options": {"tasks": 3}}, "method 'dm' has no option 'tasks'"),
        ({"options": {"momentum": "much"}}, "momentum must be a number, not 'much'"),
        ({"options": ["momentum"]}, "names with values"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"network": "resnet"}, "network must be"),
        ({"unlabeled_limit": -1}, "unlabeled_limit must be at least 0, not -1"),
        ({"unlabeled_limit": np.bool_(True)}, "unlabeled_limit must be a whole number, not True"),
        ({"accept": 0}, "accept must be more than 0"),
        ({"seed": np.str_("1")}, "seed must be a whole number, not '1'"),
    ],
)
def test_impossible_parameters_are_refused_when_a_task_comes(
    parameters: dict[str, Any], sentence: str
) -> None:
    learner = small_learner("dm").set_params(**parameters)
    with pytest.raises(ConfigError, match=sentence):
        learner.partial_fit(*task(SHARK, count=2))


def test_a_method_of_ones_own_learns_too() -> None:
    small = {**small_learner(epochs=1).get_params()}
    learner = ContinualLearner(**small | {"method": "learner_methods:Weighted"})
    learner.set_params(options={"weight": 2})
    learner.partial_fit(*task(SHARK, count=2)).partial_fit(*task(TROUT, count=2))
    assert learner.classes_.tolist() == names_of(SHARK, TROUT)
    learner = ContinualLearner(**small | {"method": "learner_methods:Stubborn"})
    learner.partial_fit(*task(SHARK, count=2))
    with pytest.raises(DistillMatchError, match=r"network 'own' .* cannot be given more classes"):
        learner.partial_fit(*task(TROUT, count=2))


def test_classes_may_be_announced() -> None:
    learner = small_learner(epochs=1)
    images, labels = task(GOLDFISH, BOAT, count=2)
    learner.partial_fit(images, labels, None, names_of(GOLDFISH, BOAT, SHARK))
    assert learner.classes_.tolist() == sorted(names_of(GOLDFISH, BOAT))
    with pytest.raises(LearnerError, match=r"among the classes .* but '.*boat' came"):
        learner.partial_fit(X=images, y=labels, classes=names_of(GOLDFISH))
    with pytest.raises(LearnerError, match="'goldfish' meets 1"):
        learner.partial_fit(images, [1, 2, 1, 2])
