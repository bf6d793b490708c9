"""One forward over groups of images against a forward of each, and frozen networks in between."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_images import images, seeded
from test_paper_step import TASK, batch_of, method_in_third_task, training_of
from torch import Tensor, nn

from distillmatch.engine.batch_order import batch_sizes
from distillmatch.methods.forward import forward_groups
from distillmatch.networks import build_network, by_batch_statistics, separate_statistics


def network() -> nn.Module:
    return build_network("wrn-10-1", 5, generator=seeded(1)).double()


def drawn(count: int, seed: int) -> Tensor:
    return (1 + seed) * images(count, seed=seed).double() + seed


def statistics_of(one: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in one.named_buffers() if "running" in name}


@pytest.mark.parametrize("updating", [0, 1, 2, None])
def test_groups_are_forwards_of_their_own_of_which_the_first_update_the_statistics(
    updating: int | None,
) -> None:
    one, other = network(), network()
    groups: list[list[Tensor | None]] = [[drawn(4, 0), drawn(3, 1)], [], [drawn(5, 2)], [None]]
    found = forward_groups(one, groups, 3, updating)
    assert [logits.shape for logits in found] == [(7, 3), (0, 3), (5, 3), (0, 3)]
    for number, group in enumerate(groups):
        images = [one for one in group if one is not None]
        if not images:
            continue
        given = torch.cat(images)
        if updating is not None and number >= updating:
            with separate_statistics(other, [len(given)], 0):
                expected = other(given)
        else:
            expected = other(given)
        torch.testing.assert_close(found[number], expected[:, :3])
    for name, value in statistics_of(one).items():
        torch.testing.assert_close(value, statistics_of(other)[name])


def test_a_frozen_network_can_normalize_by_the_images_it_is_asked_about() -> None:
    learned, frozen = network(), network()
    for _ in range(3):
        learned(drawn(6, 3))
    frozen.load_state_dict(learned.state_dict())
    frozen.eval().requires_grad_(False)
    before = copy.deepcopy(frozen.state_dict())
    both = torch.cat([drawn(4, 0), drawn(5, 1)])
    with torch.no_grad(), by_batch_statistics([frozen], [4, 5]):
        found = frozen(both)
    apart = copy.deepcopy(learned).train()
    expected = torch.cat([apart(both[:4]), apart(both[4:])])
    torch.testing.assert_close(found, expected.detach())
    assert not frozen.training
    assert all(torch.equal(value, before[name]) for name, value in frozen.state_dict().items())


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 1000), st.integers(1, 200))
def test_images_are_cut_into_batches_of_about_a_size(count: int, batch: int) -> None:
    sizes = batch_sizes(count, batch)
    assert sum(sizes) == count and max(sizes) - min(sizes) <= 1
    assert (min(sizes) >= min(count, batch) and max(sizes) < 2 * batch) or count < 2 * batch


@pytest.mark.parametrize("name", ["base", "e2e", "gd", "offline-unlabeled"])
def test_strong_views_do_not_update_the_statistics_that_test_images_meet(name: str) -> None:
    """They are for weak views, as images are met at test time."""
    statistics = []
    for strong in (False, True):
        method: Any = method_in_third_task("as-written", method=name)
        training = training_of(method, "classifier")
        batch = batch_of(training, [5, 6, 6, 5, 5])
        views = drawn(len(batch.unlabeled), 4) if training.strong else None
        if strong:
            batch = replace(batch, strong=views, strong_images=drawn(5, 3))
        else:
            batch = replace(batch, strong=None, strong_images=None)
        method.classifier.train()
        logits = method.forward(batch, TASK)
        assert len(logits.strong_labeled) == 5 * strong
        statistics.append(statistics_of(method.classifier))
    for key, value in statistics[0].items():
        torch.testing.assert_close(value, statistics[1][key])
