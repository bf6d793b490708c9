"""The checks of methods and sources: ours pass, and each failure says what to change."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from distillmatch.checks import CheckError, check_method, check_source
from distillmatch.config import MethodOptions, StreamConfig
from distillmatch.losses import consistency_loss
from distillmatch.methods import (
    Batch,
    Method,
    Passes,
    TaskInfo,
    Training,
    find_method,
    method_names,
)
from distillmatch.sources import Dataset, Part


@pytest.mark.parametrize("name", method_names())
def test_our_own_methods_pass(name: str) -> None:
    check_method(find_method(name))


def test_the_drawn_source_passes() -> None:
    from distillmatch.sources.shapes import load

    check_source(load, image_size=16)


class Plain(Method):
    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        return cross_entropy(self.forward(batch, task).labeled, batch.labels)


class NoDescription(Plain):
    class Options(MethodOptions):
        weight: float = 1.0


class TakenName(Plain):
    class Options(MethodOptions):
        epochs: int = Field(3, description="another number of epochs")


class NoDefault(Plain):
    class Options(MethodOptions):
        weight: float = Field(description="of something")


class ReadsANumber(Plain):
    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        loss = super().loss(batch, task)
        return loss * 2 if float(loss.detach()) > 0 else loss


class NotANumber(Plain):
    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        logits = self.forward(batch, task)
        return {"labels": super().loss(batch, task), "others": logits.unlabeled.mean()}


class ARow(Plain):
    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        return cross_entropy(self.forward(batch, task).labeled, batch.labels, reduction="none")


class NoNetwork(Plain):
    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        return batch.images.mean()


class OtherTerms(Plain):
    steps: ClassVar[int] = 0

    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        type(self).steps += 1
        loss = super().loss(batch, task)
        return {"labels": loss, "more": loss} if self.steps % 2 else {"labels": loss, "less": loss}


class Forgets(Plain):
    """Keeps what it learned where no snapshot finds it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.scale = 1.0

    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        return super().loss(batch, task) * self.scale

    def end_task(self, task: TaskInfo) -> None:
        self.scale = 0.1


class ChangesTheFrozen(Plain):
    keeps_past = True

    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        if "past" in self.networks:
            with torch.no_grad():
                next(self.networks["past"].parameters()).mul_(0.9)
        return super().loss(batch, task)


class Wrong(NamedTuple):
    past: Tensor


class GivesOneRow(Plain):
    keeps_past = True

    def past_outputs(self, images: Tensor, task: TaskInfo) -> Any:
        return Wrong(super().past_outputs(images, task).past[:1])


class DrawsWhenAsked(Plain):
    def trainings(self, task: TaskInfo) -> list[Training]:
        nn.init.normal_(next(self.classifier.parameters()))
        return [self.training(task)]


class NoLoss(Method):
    pass


class OtherArguments(Plain):
    def loss(self, batch: Batch) -> Any:  # type: ignore[override]
        return 0


class StrongViewsOfNothing(Plain):
    strong_views, unlabeled = True, False


class UndeclaredStrongViews(Plain):
    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        logits = self.forward(batch, task)
        return super().loss(batch, task) + consistency_loss(logits.unlabeled, logits.strong, 0.5)


class UndeclaredPast(Plain):
    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        return super().loss(batch, task) + (0 * batch.past.sum() if task.past else 0)


class Misspells(Plain):
    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        return self.options.wieght * super().loss(batch, task)


class ListOption(Plain):
    class Options(MethodOptions):
        weights: list[float] = Field([1.0], description="of something")


class PicksRows(Plain):
    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        logits = self.forward(batch, task).labeled
        return cross_entropy(logits[batch.labels >= 0], batch.labels)


class MovesWeights(Plain):
    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        with torch.no_grad():
            next(self.classifier.parameters()).mul_(0.9)
        return super().loss(batch, task)


class CountsOn(Plain):
    """Adds to what a resumed run has counted already."""

    def trainings(self, task: TaskInfo) -> list[Training]:
        return [self.training(task, before=self.count)]

    def count(self, passes: Passes, task: TaskInfo) -> None:
        self.values["tasks"] = self.values.get("tasks", 0) + 1

    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        return super().loss(batch, task) * self.values["tasks"]


class TrainsNothing(Plain):
    def trainings(self, task: TaskInfo) -> list[Training]:
        return []


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (NoLoss, r"must define loss\(self, batch, task\)"),
        (OtherArguments, r"loss\(self, batch, task\), and its loss takes other arguments"),
        (StrongViewsOfNothing, "strong_views are of unlabeled images, and unlabeled is False"),
        (UndeclaredStrongViews, "a method has these with strong_views = True"),
        (UndeclaredPast, "set keeps_past = True"),
        (Misspells, r"failed in loss\(\) \(test_checks.py, line \d+\) with AttributeError"),
        (ListOption, "'weights' must be a number, text, true or false"),
        (PicksRows, "by an index of true and false"),
        (MovesWeights, "changes the weights that it trains"),
        (CountsOn, "stopped inside its second task and resumed ends with other weights"),
        (TrainsNothing, "must return what is trained, and it is empty"),
        (NoDescription, "'weight' needs a description"),
        (TakenName, "'epochs' is an option of every run"),
        (NoDefault, "every option needs a valid default"),
        (ReadsANumber, r"reads from the device by float\(\)"),
        (NotANumber, "'others' of training 'classifier' is nan|the loss became nan"),
        (ARow, "take a sum or a mean"),
        (NoNetwork, "must depend on the network's weights"),
        (OtherTerms, "must have the same terms in every step"),
        (Forgets, "resumed ends with other weights"),
        (ChangesTheFrozen, "changes the network 'past'"),
        (GivesOneRow, "a row for each image"),
        (DrawsWhenAsked, "resumed ends with other weights|changes a network when it is called"),
        (int, "must be a subclass of distillmatch.methods.Method"),
    ],
)
def test_each_breach_of_the_contract_is_named(method: Any, sentence: str) -> None:
    with pytest.raises(CheckError, match=sentence):
        check_method(method)


def noise(classes: int = 3, per_class: int = 4, tests: int = 2, seed: int | None = 0) -> Dataset:
    random = np.random.default_rng(seed)

    def part(count: int) -> Part:
        labels = np.tile(np.arange(classes), count)
        return Part(random.integers(0, 256, (len(labels), 8, 8, 3), np.uint8), labels)

    return Dataset("noise", part(per_class), part(tests), tuple(f"c{n}" for n in range(classes)))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (lambda config: noise(seed=None), "called again"),
        (lambda config: noise(per_class=1), "at least two training images"),
        (lambda config: noise(tests=0), "has no test image"),
        (lambda config: 3, "must return a Dataset"),
        (lambda config: 1 / 0, "failed with ZeroDivisionError"),
        (7, "must be a function"),
    ],
)
def test_each_fault_of_a_source_is_named(source: Any, sentence: str) -> None:
    with pytest.raises(CheckError, match=sentence):
        check_source(source)


def test_a_right_source_passes_with_options() -> None:
    def source(config: StreamConfig) -> Dataset:
        return noise(per_class=config.labels_per_class or 2)

    check_source(source, labels_per_class=4)
    check_source(noise())
