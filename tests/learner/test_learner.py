import itertools
from collections.abc import Iterator
from pathlib import Path
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
    shapes,
    small_learner,
    task,
)
from numpy.typing import NDArray

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
    assert [record["added"] for record in history] == [
        names_of(CLOWNFISH, GOLDFISH),
        names_of(TROUT),
        [],
        names_of(BOAT),
    ]
    assert [record["returned"] for record in history] == [
        [],
        [],
        names_of(GOLDFISH),
        names_of(CLOWNFISH),
    ]
    assert [record["seen"] for record in history] == [0, 16, 16, 0]
    rows = learner.predict_proba(ENVIRONMENT)
    assert rows.shape == (16, 4)
    np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-5)
    # Of five places the newest class has two, and a single image.
    assert len(learner.coreset_) == history[-1]["stored"] == (4 if coreset else 0)
    assert {record["number"] for record in history} == {1, 2, 3, 4}


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


def test_earlier_tasks_without_a_class_of_their_own_are_not_distilled() -> None:
    info = task_info(3, (2, 0, 3, 0), stored=True)
    assert (info.sizes, info.past, info.new, info.number) == ((2, 3, 0), 5, 0, 3)
    assert info.coreset and not info.last


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((1, 1, 1, 1), (3, 1)),
        ((4, 1, 4, 2), (5, 4, 2)),
        ((1, 4, 3, 1), (5, 3, 1)),
        ((1, 0, 2), (1, 2)),
        ((1,), (1,)),
    ],
)
def test_earlier_tasks_of_one_class_are_distilled_with_others(
    sizes: tuple[int, ...], told: tuple[int, ...]
) -> None:
    info = task_info(len(sizes) - 1, sizes, stored=False)
    assert info.sizes == told
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


def test_an_environment_that_never_ends_is_taken_up_to_the_limit() -> None:
    taken = 0

    def camera() -> Iterator[NDArray[np.uint8]]:
        nonlocal taken
        for taken in itertools.count(1):
            yield ENVIRONMENT[taken % 16]

    learner = small_learner(unlabeled_limit=20)
    learner.partial_fit(*task(TROUT, count=2), unlabeled=camera())
    assert taken == 20
    assert (learner.history_[0]["seen"], learner.history_[0]["kept"]) == (20, 20)


def test_an_environment_that_never_brings_an_image_is_refused() -> None:
    for empty in (ENVIRONMENT[:0], torch.empty(0, 3, 8, 8)):
        with pytest.raises(LearnerError, match="1000 empty batches in a row"):
            small_learner().partial_fit(*task(TROUT, count=2), unlabeled=itertools.repeat(empty))
    for limit in (10**12, 10**30):
        with pytest.raises(LearnerError, match="no memory for so many images"):
            small_learner(unlabeled_limit=limit).partial_fit(
                *task(TROUT, count=2), unlabeled=iter(ENVIRONMENT)
            )


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


def test_normalization_is_that_of_the_first_task() -> None:
    learner = small_learner(epochs=1).partial_fit(*task(SHARK, count=2))
    first = learner.normalization_
    mean = images_of(SHARK, count=2).astype(float).mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(first.mean, mean)
    learner.partial_fit(images_of(BOAT, count=2) // 2, names_of(BOAT, count=2))
    assert learner.normalization_ == first


def test_a_failed_task_leaves_the_learner_as_it_was() -> None:
    learner = small_learner("dm", epochs=1).partial_fit(*task(SHARK, TROUT, count=2))
    before = learner.predict_proba(ENVIRONMENT)
    learner.set_params(learning_rate=1e30, epochs=3)
    with pytest.raises(TrainingError):
        learner.partial_fit(*task(BOAT, count=4), unlabeled=ENVIRONMENT)
    np.testing.assert_array_equal(learner.predict_proba(ENVIRONMENT), before)
    assert learner.classes_.tolist() == names_of(SHARK, TROUT)
    learner.set_params(learning_rate=None).partial_fit(*task(BOAT, count=4))
    assert len(learner.classes_) == 3


def test_the_same_tasks_give_the_same_learner() -> None:
    first, second = (
        small_learner("dm", epochs=1)
        .partial_fit(*task(SHARK, TROUT, count=2))
        .partial_fit(*task(BOAT, count=2), unlabeled=ENVIRONMENT)
        for _ in range(2)
    )
    np.testing.assert_array_equal(
        first.predict_proba(ENVIRONMENT), second.predict_proba(ENVIRONMENT)
    )


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"method": "offline"}, "needs all images of earlier tasks"),
        ({"method": "worldmatch", "options": {"accept": "truth"}}, "nobody knows them"),
        ({"method": "worldmatch", "options": {"accept": "truth-new"}}, "nobody knows them"),
        ({"options": {"pseudo_label": False}}, "did you mean 'pseudo_labels'"),
        ({"options": {"tasks": 3}}, "method 'dm' has no option 'tasks'"),
        ({"options": {"momentum": "much"}}, "momentum must be a number, not 'much'"),
        ({"options": ["momentum"]}, "names with values"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"network": "resnet"}, "network must be"),
        ({"image_size": 4}, "image_size must be at least 8"),
        ({"unlabeled_limit": -1}, "unlabeled_limit"),
        ({"accept": 0}, "accept"),
        ({"epochs": np.bool_(True)}, "epochs must be a whole number, not True"),
        ({"unlabeled_limit": np.bool_(True)}, "unlabeled_limit"),
        ({"seed": np.str_("1")}, "seed must be a whole number, not '1'"),
        ({"epochs": np.float64(1.5)}, "epochs must be a whole number"),
    ],
)
def test_impossible_parameters_are_refused_when_a_task_comes(
    parameters: dict[str, Any], sentence: str
) -> None:
    learner = small_learner("dm").set_params(**parameters)
    with pytest.raises(ConfigError, match=sentence):
        learner.partial_fit(*task(SHARK, count=2))


def test_scalars_of_numpy_are_parameters_like_any_others(tmp_path: Path) -> None:
    given = {
        "epochs": np.int64(1),
        "seed": np.uint8(1),
        "unlabeled_limit": np.int32(9),
        "accept": np.float32(0.5),
        "examples": np.int64(2),
        "options": {"momentum": np.float32(0.5)},
    }
    learner = small_learner("dm", **given).partial_fit(*task(SHARK, TROUT, count=2))
    assert learner.get_params()["epochs"] is given["epochs"]
    assert len(learner.predict(ENVIRONMENT, reject=True)) == len(ENVIRONMENT)
    learner.save(tmp_path)
    loaded = ContinualLearner.load(tmp_path).partial_fit(*task(BOAT, count=2))
    assert loaded.get_params() == learner.get_params() | {"device": "auto"}


@pytest.mark.parametrize(
    "change",
    [{"method": "dm"}, {"network": "wrn-16-1"}, {"image_size": 32}, {"coreset": 9}, {"seed": 2}],
)
def test_what_was_learned_with_other_parameters_is_not_mixed(change: dict[str, Any]) -> None:
    learner = small_learner(epochs=1).partial_fit(*task(SHARK, count=2)).set_params(**change)
    with pytest.raises(LearnerError, match=f"{next(iter(change))} is .* in what was learned"):
        learner.partial_fit(*task(BOAT, count=2))


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        (images_of(SHARK, count=2), ["a"], "2 images, but 1 labels"),
        (images_of(SHARK, count=2), None, "labels must be given"),
        (images_of(SHARK, count=2)[:0], [], "at least one"),
        (images_of(SHARK, count=2), ["a", 1], "all be strings or all be whole numbers"),
        (images_of(SHARK, count=2), [1, 2], "'shark' meets 1"),
        (images_of(SHARK, count=2), [1.5, 2.0], "continuous"),
        (images_of(SHARK, count=2), [True, False], "string or a whole number"),
        (images_of(SHARK, count=2), [["a"], ["b"]], "one label an image"),
        (images_of(SHARK, count=2), np.array([2**63, 1], np.uint64), f"2.63 - 1, not {2**63}"),
        (images_of(SHARK, count=2), [-(2**63) - 1, 1], "must lie between"),
        (images_of(SHARK, count=2), ["a", "unknown"], "may be called 'unknown'"),
        (images_of(SHARK, count=2), ["a", "\ud800"], r"written down, not '\\ud800'"),
        (images_of(SHARK, count=2), ["a", "a\0"], r"written down, not 'a\\x00'"),
        (images_of(SHARK, count=2), torch.ones(2, device="meta"), "labels must be dense"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(images: Any, labels: Any, sentence: str) -> None:
    learner = small_learner(epochs=1).partial_fit(*task(SHARK, count=2))
    with pytest.raises(LearnerError, match=sentence):
        learner.partial_fit(images, labels)


def test_a_method_of_ones_own_learns_too() -> None:
    options = {"weight": 2}
    learner = ContinualLearner("learner_methods:Weighted", **_small(options=options))
    learner.partial_fit(*task(SHARK, count=2)).partial_fit(*task(TROUT, count=2))
    assert learner.classes_.tolist() == names_of(SHARK, TROUT)
    learner = ContinualLearner("learner_methods:Stubborn", **_small())
    learner.partial_fit(*task(SHARK, count=2))
    with pytest.raises(DistillMatchError, match=r"network 'own' .* cannot be given more classes"):
        learner.partial_fit(*task(TROUT, count=2))


def _small(**others: Any) -> dict[str, Any]:
    parameters = small_learner(epochs=1, **others).get_params()
    return {name: value for name, value in parameters.items() if name != "method"}


def test_the_embedded_images_have_the_names_that_these_tests_use() -> None:
    assert [shapes().class_names[one] for one in (SHARK, BOAT)] == ["shark", "rowing boat"]


def test_a_task_that_ends_in_no_numbers_is_refused_and_changes_nothing() -> None:
    """One step is enough to ruin a network, after a loss that was still a number."""
    learner = small_learner(epochs=1).partial_fit(*task(GOLDFISH, BOAT, count=2))
    before = learner.predict_proba(images_of(BOAT, count=4))
    learner.set_params(learning_rate=1e30)
    with pytest.raises(TrainingError, match="a lower learning_rate may help"):
        learner.partial_fit(*task(SHARK, count=2))
    np.testing.assert_array_equal(learner.predict_proba(images_of(BOAT, count=4)), before)


def test_progress_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    learner = small_learner(epochs=3)
    learner.fit(*task(GOLDFISH, BOAT, count=3))
    assert capsys.readouterr().err == ""
    learner.partial_fit(*task(TROUT, count=3), name="may", verbose=True)
    assert "may: 100 % done" in capsys.readouterr().err


def test_classes_may_be_announced() -> None:
    learner = small_learner(epochs=1)
    images, labels = task(GOLDFISH, BOAT, count=2)
    learner.partial_fit(images, labels, None, names_of(GOLDFISH, BOAT, SHARK))
    assert learner.classes_.tolist() == sorted(names_of(GOLDFISH, BOAT))
    with pytest.raises(LearnerError, match=r"among the classes .* but '.*boat' came"):
        learner.partial_fit(X=images, y=labels, classes=names_of(GOLDFISH))
