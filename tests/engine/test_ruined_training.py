"""Trainings that end in no numbers, in their losses or in their last step."""

from pathlib import Path

import pytest
import torch
from small_runs import six_classes, tiny
from torch import Tensor

from distillmatch.engine.outcome import LossMeans
from distillmatch.errors import TrainingError
from distillmatch.methods import Batch, TaskInfo
from distillmatch.methods.base import Base
from distillmatch.runs import read_result, run


class BreaksInTaskTwo(Base):
    """Base whose loss is no number in the second task, second epoch, third step."""

    def loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        self.values["steps"] = self.values.get("steps", 0) + (task.number == 1)
        return super().loss(batch, task) * (float("nan") if self.values["steps"] == 6 else 1.0)


def test_means_of_losses_and_terms_are_known_an_epoch_late() -> None:
    means: dict[str, list[float]] = {}
    losses = LossMeans(means, "task 3, classifier")
    losses.add(torch.tensor([[3.0, 1.0], [5.0, 4.0]]), ("loss", "labels"))
    assert means == {}
    losses.add(torch.tensor([[1.0, 1.0], [float("nan"), 1.0]]), ("loss", "labels"))
    assert means == {"loss": [4.0], "labels": [2.5]}
    with pytest.raises(TrainingError, match="became nan in task 3, classifier, epoch 2, step 2"):
        losses.settle()


def test_a_loss_that_is_no_number_stops_the_run_and_leaves_what_was_finished(
    tmp_path: Path,
) -> None:
    config = tiny(method="test_ruined_training:BreaksInTaskTwo", batch=2, labels_per_class=3)
    with pytest.raises(TrainingError, match=r"nan in task 2, classifier, epoch 2, step 3"):
        run(config, tmp_path, dataset=six_classes())
    left = read_result(tmp_path)
    assert not left["complete"] and [task["task"] for task in left["tasks"]] == [1]
    assert len(left["R"]) == len(left["A"]) == 1


@pytest.mark.parametrize(
    ("method", "rate"), [("base", 1e30), ("base", 1e10), ("dm", 1e6), ("gd", 1e30)]
)
def test_a_network_that_its_last_step_ruined_stops_the_run(method: str, rate: float) -> None:
    """One task of one step: its loss is that of the untouched network, and a good number."""
    config = tiny(method=method, batch=64, epochs=1, learning_rate=rate, task_sizes=None, tasks=1)
    with pytest.raises(TrainingError, match=r"in task 1 the classifier ended without finite"):
        run(config, dataset=six_classes())
