"""Mean losses and terms of epochs, which are looked at one epoch late."""

import pytest
import torch

from distillmatch.engine.outcome import LossMeans
from distillmatch.errors import TrainingError

ALONE = ("loss",)


def test_an_epochs_mean_is_known_when_the_next_is_added_or_all_are_wanted() -> None:
    means: dict[str, list[float]] = {}
    losses = LossMeans(means, "task 1, classifier")
    losses.add(torch.tensor([[1.0], [2.0]]), ALONE)
    assert means == {}
    losses.add(torch.tensor([[4.0], [6.0]]), ALONE)
    assert means == {"loss": [1.5]}
    losses.settle()
    losses.settle()
    assert means == {"loss": [1.5, 5.0]}


def test_terms_have_means_of_their_own() -> None:
    means: dict[str, list[float]] = {}
    losses = LossMeans(means, "task 1, classifier")
    for _ in range(2):
        losses.add(torch.tensor([[3.0, 1.0, 2.0], [5.0, 4.0, 1.0]]), ("loss", "labels", "past"))
    losses.settle()
    assert means == {"loss": [4.0] * 2, "labels": [2.5] * 2, "past": [1.5] * 2}


def test_a_loss_that_is_no_number_is_refused_with_the_epoch_and_step_it_came_in() -> None:
    losses = LossMeans({"loss": [0.5]}, "task 3, classifier")
    losses.add(torch.tensor([[1.0], [float("nan")], [1.0]]), ALONE)
    with pytest.raises(
        TrainingError, match="the loss became nan in task 3, classifier, epoch 2, step 2"
    ):
        losses.settle()


@pytest.mark.gpu
def test_losses_of_an_epoch_are_copied_before_its_memory_is_used_again() -> None:
    means: dict[str, list[float]] = {}
    losses = LossMeans(means, "task 1, classifier")
    given = torch.full((16, 1), 3.0, device="cuda")
    losses.add(given, ALONE)
    given.fill_(7.0)
    losses.settle()
    assert means == {"loss": [3.0]}
