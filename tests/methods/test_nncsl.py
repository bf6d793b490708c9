"""NNCSL and CSL: a step against a plain computation, and what they train by."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import plain
import pytest
import torch
from plain import Row, Rows
from test_paper_step import PAST, SEEN, TASK, WITH_CORESET, build, images, method_in_third_task
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.methods import Batch, Lars, Method, TaskInfo, make_method

LABELS = [0, 1, 3, 5, 5, 6, 6]


def method(name: str = "nncsl") -> Method:
    return method_in_third_task("paper", method=name, coreset=9)


def batch() -> Batch:
    return Batch(
        images=images(7, 1),
        labels=torch.tensor(LABELS),
        unlabeled=images(4, 2),
        strong=images(4, 3),
        strong_images=images(7, 4),
    )


def terms_of(learning: Method, given: Batch, task: TaskInfo = WITH_CORESET) -> dict[str, float]:
    (training,) = learning.trainings(task)
    training.network.train()
    terms: Any = training.loss(given, task)
    training.network.eval()
    return {name: float(term.detach()) for name, term in terms.items()}


def rows(network: nn.Module, given: Sequence[Tensor | None], by_batch: bool) -> Rows:
    together = torch.cat([one for one in given if one is not None])
    with torch.no_grad():
        found: Rows = plain.features(together, network.state_dict(), by_batch).tolist()
    return found


def cosine(one: Row, other: Row) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(sum(a * a for a in one)) / math.sqrt(sum(b * b for b in other))


def neighbors(query: Row, supports: Rows, labels: list[int], classes: Sequence[int]) -> Row:
    pairs = [(s, y) for s, y in zip(supports, labels, strict=True) if y in classes]
    found = [0.0] * len(classes)
    total = sum(math.exp(cosine(query, s) / 0.1) for s, _ in pairs)
    for support, label in pairs:
        weight = math.exp(cosine(query, support) / 0.1) / total
        for place, k in enumerate(classes):
            found[place] += weight * ((0.9 if k == label else 0.0) + 0.1 / len(classes))
    return found


def sharp(row: Row) -> Row:
    powers = [p**4 for p in row]
    return [p / sum(powers) for p in powers]


def soft_entropy(target: Row, row: Row) -> float:
    return -sum(t * math.log(p) for t, p in zip(target, row, strict=True))


def both_views(network: nn.Module, given: Batch, by_batch: bool) -> tuple[Rows, Rows]:
    """Plain features of the supports, and of the queries: weak views and then strong ones."""
    weak = rows(network, [given.images, given.unlabeled], by_batch)
    strong = rows(network, [given.strong_images, given.strong], by_batch)
    return weak[:7] + strong[:7], weak[7:] + strong[7:]


@pytest.mark.parametrize("returning", [(), (0, 3)])
def test_a_step_is_that_of_loops_over_supports_and_queries(returning: tuple[int, ...]) -> None:
    own = [*returning, *range(PAST, SEEN)]
    learning, given, labels = method(), batch(), LABELS + LABELS
    supports, queries = both_views(learning.classifier, given, by_batch=True)
    weights = learning.classifier.state_dict()
    features = torch.tensor(supports, dtype=torch.float64)
    logits = (features @ weights["head.weight"].T + weights["head.bias"])[:, :SEEN].tolist()
    pairs = zip(logits, labels, strict=True)
    of_labels = 0.005 * sum(plain.cross_entropy(row, label) for row, label in pairs) / 14

    found = [neighbors(query, supports, labels, own) for query in queries]
    others = [sharp(row) for row in found[4:] + found[:4]]
    agreement = sum(soft_entropy(t, p) for t, p in zip(others, found, strict=True)) / 8
    mean = [sum(sharp(row)[k] for row in found) / 8 for k in range(len(own))]
    entropy = math.log(len(own)) + sum(p * math.log(p) for p in mean)

    old_supports, old_queries = both_views(learning.networks["past"], given, by_batch=False)
    past = range(PAST)
    kept = 0.0
    for old, new in zip(old_queries, queries, strict=True):
        target = neighbors(old, old_supports, labels, past)
        kept += 0.2 * soft_entropy(target, neighbors(new, supports, labels, past)) / 8
    expected = {
        "labels": of_labels,
        "agreement": agreement,
        "entropy": entropy,
        "distillation": kept,
    }
    task = replace(WITH_CORESET, returning=returning)
    assert terms_of(learning, given, task) == pytest.approx(expected, rel=1e-9)


def test_csl_has_no_distillation_and_neither_has_a_task_without_stored_images() -> None:
    wanted = {"labels", "agreement", "entropy"}
    assert terms_of(method("csl"), batch()).keys() == wanted
    assert terms_of(method(), batch(), TASK).keys() == wanted
    alone = replace(batch(), unlabeled=images(0, 2), strong=images(0, 3))
    assert terms_of(method(), alone).keys() == {"labels"}


def test_it_trains_by_the_published_schedule_on_a_support_set() -> None:
    learning = make_method(RunConfig(method="nncsl", coreset=500, epochs=250), build)
    (training,) = learning.trainings(WITH_CORESET)
    assert (training.per_class, training.epoch_of, training.epochs) == (3, "unlabeled", 250)
    assert training.strong and training.strong_labeled
    assert training.optimizer == Lars(weight_decay=1e-5, head_rate=0.1)
    rates = [training.schedule.rate(epoch) for epoch in (0, 5, 10, 130, 250)]
    assert rates == pytest.approx([0.08, 0.64, 1.2, 0.616, 0.032])
    half = make_method(RunConfig(method="nncsl", learning_rate=0.6), build)
    assert half.trainings(TASK)[0].schedule.rate(0) == pytest.approx(0.04)


def test_options_of_the_run_that_lars_stands_in_for_are_refused_beside_it() -> None:
    with pytest.raises(ConfigError, match=r"optimizer is 'adamw', .* add --lars false"):
        make_method(RunConfig(method="nncsl", optimizer="adamw"), build)
    given = RunConfig(method="nncsl", optimizer="adamw", options={"lars": False})
    (training,) = make_method(given, build).trainings(TASK)
    assert training.optimizer is None and training.schedule.learning_rate == 0.1
