"""One forward of a step, or of several lots, beside the obvious separate ones."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from slow import TASK, random_batch
from torch import Tensor, nn
from trainings import (
    COUNTS,
    FIRST,
    WITH_CORESET,
    LabelCounts,
    batch_for,
    loss_of,
    method_of,
    training_of,
)

from distillmatch.config.run import StrongStatistics
from distillmatch.methods import Batch, Method, TaskInfo
from distillmatch.methods.dm import DistillMatch
from distillmatch.methods.forwards import Views, forward_views
from distillmatch.networks import build_network, frozen_statistics

SEEN = 6
"""Fewer classes than the network has outputs."""


def some_network(head: Any = "linear") -> nn.Module:
    """A network in training, with running statistics that are not those it starts with."""
    network: nn.Module = build_network("wrn-10-1", 7, head, torch.Generator().manual_seed(3))
    with torch.no_grad():
        network.double()(random_batch(7).images)
    return network


def some_batch(*, strong: bool, strong_images: bool, unlabeled: int) -> Batch:
    """Views of five labelled images and some others; each kind has statistics of its own."""
    drawn = random_batch(0, labeled=5, unlabeled=unlabeled)
    assert drawn.strong is not None
    other = random_batch(1, labeled=5).images
    return replace(
        drawn,
        unlabeled=2 * drawn.unlabeled + 1,
        strong=3 * drawn.strong - 1 if strong else None,
        strong_images=4 * other - 2 if strong_images else None,
    )


def separately(
    network: nn.Module, batch: Batch, statistics: StrongStatistics, alone: list[Tensor]
) -> dict[str, Tensor]:
    """Logits by a forward for each of those that are normalized together, one after the other."""

    def ask(*images: Tensor) -> Tensor:
        logits: Tensor = network(torch.cat(images))[:, :SEEN]
        return logits

    strong = {"strong": batch.strong, "strong_images": batch.strong_images}
    shown = {name: one for name, one in strong.items() if one is not None and len(one)}
    labels, others = len(batch.images), len(batch.unlabeled)
    found, of_strong = {}, torch.empty(0)
    if shown and statistics == "unlabeled":
        both = ask(batch.unlabeled, *shown.values())
        found["unlabeled"], of_strong = both[:others], both[others:]
    if shown and statistics == "together":
        both = ask(batch.images, batch.unlabeled, *shown.values())
        found["weak"], of_strong = both[: labels + others], both[labels + others :]
    else:
        found["weak"] = ask(batch.images, batch.unlabeled)
    if alone:
        found["alone"] = ask(*alone)
    if shown and statistics == "apart":
        with frozen_statistics(network):
            of_strong = ask(*shown.values())
    for name, one in shown.items():
        found[name], of_strong = of_strong[: len(one)], of_strong[len(one) :]
    return {"unlabeled": found["weak"][labels:], "labeled": found["weak"][:labels], **found}


def gradients(network: nn.Module, logits: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those of a loss to which all logits matter, each in another way."""
    total = sum(k * one.square().sum() for k, one in enumerate(logits.values(), 1))
    assert isinstance(total, Tensor)
    parameters = dict(network.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(total, list(parameters.values())), strict=True))


@pytest.mark.parametrize("unlabeled", [0, 6])
@pytest.mark.parametrize("alone", ["none", "labeled", "labeled and others"])
@pytest.mark.parametrize("strong", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("statistics", get_args(StrongStatistics))
def test_a_single_forward_does_what_one_for_each_kind_of_views_would(
    statistics: StrongStatistics, strong: tuple[bool, bool], alone: str, unlabeled: int
) -> None:
    batch = some_batch(strong=strong[0], strong_images=strong[1], unlabeled=unlabeled)
    by_themselves = {
        "none": [],
        "labeled": [batch.images],
        "labeled and others": [batch.images, batch.unlabeled[2:4]],
    }[alone]
    one = some_network("scaled-cosine")
    several = deepcopy(one)
    calls = calls_of(one)
    views = forward_views(one, batch, SEEN, statistics, by_themselves)
    assert len(calls) == 1
    expected = separately(several, batch, statistics, by_themselves)
    found = {name: logits for name, logits in views._asdict().items() if logits is not None}
    assert found.keys() == expected.keys()
    for name, logits in expected.items():
        torch.testing.assert_close(found[name], logits)
    buffers = dict(several.named_buffers())
    for name, buffer in one.named_buffers():
        torch.testing.assert_close(buffer, buffers[name])
    slow = gradients(several, expected)
    for name, gradient in gradients(one, {name: found[name] for name in expected}).items():
        torch.testing.assert_close(gradient, slow[name], rtol=1e-9, atol=1e-9)


def test_views_that_stand_alone_are_the_same_images_otherwise_normalized() -> None:
    batch = some_batch(strong=False, strong_images=False, unlabeled=6)
    views: Views = forward_views(some_network(), batch, SEEN, alone=[batch.images])
    assert views.alone is not None
    assert not torch.allclose(views.alone, views.labeled, atol=1e-2)


def calls_of(network: nn.Module) -> list[int]:
    """The sizes of all batches that a network is shown from now on."""
    calls: list[int] = []
    network.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    return calls


METHODS = ("base", "e2e", "dr", "gd", "dm", "offline", "offline-unlabeled")


@pytest.mark.parametrize("strong_labels", ["none", "labels-and-pseudo-labels"])
@pytest.mark.parametrize("preset", ["protocol", "release"])
@pytest.mark.parametrize(
    "task", [FIRST, TASK, WITH_CORESET, replace(TASK, sizes=(2, 5, 0))],
    ids=["first", "later", "coreset", "nothing new"],
)  # fmt: skip
@pytest.mark.parametrize("name", METHODS)
def test_a_step_is_one_forward_of_the_network_that_learns(
    name: str, task: TaskInfo, preset: str, strong_labels: str
) -> None:
    method = method_of(method=name, preset=preset, coreset=10, strong_labels=strong_labels)
    for training in method.trainings(task):
        if isinstance(method, DistillMatch):
            method.weights = torch.ones(task.seen)
        elif training.before is not None:
            training.before(LabelCounts(COUNTS[: task.seen]))
        batch = batch_for(training, classes=range(task.seen))
        calls = calls_of(training.network)
        loss_of(training, batch)
        assert len(calls) == 1, training.name


@pytest.mark.parametrize("statistics", get_args(StrongStatistics))
@pytest.mark.parametrize("accepted", ["labeled", "unlabeled"])
@pytest.mark.parametrize("of", ["classifier", "detector"])
def test_a_step_of_dm_moves_running_statistics_as_separate_forwards_do(
    of: str, accepted: str, statistics: StrongStatistics
) -> None:
    """With all unlabelled images, then the weak ones, then labelled ones with those accepted."""
    method = method_of(
        method="dm",
        labeled_statistics="apart",
        accepted_statistics=accepted,
        strong_statistics=statistics,
        true_positive_rate=0.5,
    )
    assert isinstance(method, DistillMatch)
    training = training_of(method, of)
    method.weights = torch.ones(7)
    batch = batch_for(training)
    scores = batch.of_unlabeled["gate"].tolist()
    method.values["threshold"] = sorted(scores)[-3]
    believed = [n for n, score in enumerate(scores) if score >= method.values["threshold"]]
    assert len(believed) == 3
    alone = [batch.images, batch.unlabeled[believed if accepted == "labeled" else []]]
    several = deepcopy(training.network).train()
    loss_of(training, batch)
    separately(several, batch, statistics, alone)
    buffers = dict(several.named_buffers())
    for name, buffer in training.network.named_buffers():
        torch.testing.assert_close(buffer, buffers[name])


def asked_by_lot(
    method: Method, ask: Callable[[Tensor], dict[str, Tensor]], images: Tensor, lots: int
) -> dict[str, Tensor]:
    """What frozen networks in training mode say, of one lot after the other."""
    frozen = [method.networks["past"], method.networks["past detector"]]
    answers = []
    for lot in images.tensor_split(lots):
        for network in frozen:
            network.train()
        with frozen_statistics(frozen[0]), frozen_statistics(frozen[1]), torch.no_grad():
            answers.append(ask(lot))
        for network in frozen:
            network.eval()
    return {name: torch.cat([answer[name] for answer in answers]) for name in answers[0]}


@pytest.mark.parametrize("gate", ["detector", "energy"])
@pytest.mark.parametrize(("count", "forwards"), [(29, 3), (24, 2), (12, 1), (5, 1), (2, 1)])
def test_lots_that_share_a_forward_are_scored_as_one_after_the_other(
    count: int, forwards: int, gate: str
) -> None:
    """Of three images or few more, of which the detector is asked with perturbed ones too."""
    method = method_of(method="dm", unlabeled_batch=3, past_statistics="batch", gate=gate)
    assert isinstance(method, DistillMatch)
    judge = method.gate
    assert judge is not None
    past = method.networks["past"]
    detector = method.networks["past detector"] = method.build("past detector", "scaled-cosine")
    method.values["epsilon"] = 0.05
    brighter = torch.arange(count, dtype=torch.float64).view(-1, 1, 1, 1) / 4
    images = random_batch(0, unlabeled=count).unlabeled * (1 + brighter) + brighter
    before = [deepcopy(network.state_dict()) for network in (past, detector)]
    calls, of_detector = calls_of(past), calls_of(detector.get_submodule("backbone"))
    with torch.no_grad():
        scores = method.score(images, TASK)
    assert len(calls) == forwards and sum(calls) == count
    # It is asked twice: for the gradient, then for the score of perturbed images.
    assert of_detector == ([size for size in calls for _ in range(2)] if gate == "detector" else [])
    for network, state in zip((past, detector), before, strict=True):
        assert not any(module.training for module in network.modules())
        assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())

    def ask(lot: Tensor) -> dict[str, Tensor]:
        logits, familiarity = judge.ask(lot, TASK.past, "past")
        return {"past": logits, **familiarity}

    lots = max(1, count // 3)
    expected = asked_by_lot(method, ask, images, lots)
    assert scores.keys() == expected.keys()
    for name, said in expected.items():
        torch.testing.assert_close(scores[name], said)
    if lots > 1:
        as_one = asked_by_lot(method, ask, images, 1)
        assert not torch.allclose(as_one["gate"], scores["gate"], rtol=1e-3)
    if gate == "detector":
        method.values["epsilon"] = 0.0
        unmoved = asked_by_lot(method, ask, images, lots)
        assert not torch.allclose(unmoved["gate"], scores["gate"], rtol=1e-4)
