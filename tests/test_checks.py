"""The checks of methods and sources: ours pass, and each failure says what to change."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import nn
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


def with_option(name: str, kind: Any, default: Any) -> Any:
    """Return a method that has an option."""
    members = {"__annotations__": {name: kind}, "__module__": __name__, name: default}
    options = type("Options", (MethodOptions,), members)
    return type("WithOption", (Plain,), {"Options": options})


def with_factor(factor: Callable[[Any, Batch, TaskInfo], Any], **members: Any) -> type[Method]:
    """Return a method whose loss is multiplied by something."""

    def loss(self: Any, batch: Batch, task: TaskInfo) -> Any:
        return factor(self, batch, task) * Plain.loss(self, batch, task)

    return type("WithFactor", (Plain,), {"loss": loss, **members})


def reads_a_number(self: Any, batch: Batch, task: TaskInfo) -> int:
    return 2 if float(batch.images.mean()) > 0 else 1


def picks_rows(self: Any, batch: Batch, task: TaskInfo) -> Any:
    return batch.images[batch.labels >= 0].mean()


def changes_the_frozen(self: Any, batch: Batch, task: TaskInfo) -> int:
    if "past" in self.networks:
        with torch.no_grad():
            next(self.networks["past"].parameters()).mul_(0.9)
    return 1


def moves_weights(self: Any, batch: Batch, task: TaskInfo) -> int:
    with torch.no_grad():
        next(self.classifier.parameters()).mul_(0.9)
    return 1


def compares_strong_views(self: Any, batch: Batch, task: TaskInfo) -> Any:
    logits = self.forward(batch, task)
    return consistency_loss(logits.unlabeled, logits.strong, 0.5)


class NotANumber(Plain):
    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        logits = self.forward(batch, task)
        return {"labels": super().loss(batch, task), "others": logits.unlabeled.mean()}


class OtherTerms(Plain):
    steps: ClassVar[int] = 0

    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        type(self).steps += 1
        loss = super().loss(batch, task)
        return {"labels": loss, "more": loss} if self.steps % 2 else {"labels": loss, "less": loss}


class Forgets(Plain):
    """Keeps what it learned where no snapshot finds it."""

    scale = 1.0

    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        return super().loss(batch, task) * self.scale

    def end_task(self, task: TaskInfo) -> None:
        self.scale = 0.1


class DrawsWhenAsked(Plain):
    def trainings(self, task: TaskInfo) -> list[Training]:
        nn.init.normal_(next(self.classifier.parameters()))
        return [self.training(task)]


class CountsOn(Plain):
    """Adds to what a resumed run has counted already."""

    def trainings(self, task: TaskInfo) -> list[Training]:
        return [self.training(task, before=self.count)]

    def count(self, passes: Passes, task: TaskInfo) -> None:
        self.values["tasks"] = self.values.get("tasks", 0) + 1

    def loss(self, batch: Batch, task: TaskInfo) -> Any:
        return super().loss(batch, task) * self.values["tasks"]


class OtherArguments(Plain):
    def loss(self, batch: Batch) -> Any:  # type: ignore[override]
        return 0


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (int, "must be a subclass of distillmatch.methods.Method"),
        (type("NoLoss", (Method,), {}), r"must define loss\(self, batch, task\)"),
        (OtherArguments, r"loss\(self, batch, task\), and its loss takes other arguments"),
        (
            type("OfNothing", (Plain,), {"strong_views": True, "unlabeled": False}),
            "strong_views are of unlabeled images, and unlabeled is False",
        ),
        (with_option("weight", float, 1.0), "'weight' needs a description"),
        (with_option("epochs", int, Field(3, description="x")), "'epochs' is an option of every"),
        (with_option("weight", float, Field(description="x")), "every option needs a valid def"),
        (
            with_option("weights", list[float], Field([1.0], description="x")),
            "'weights' must be a number, text, true or false",
        ),
        (with_factor(reads_a_number), r"reads from the device by float\(\)"),
        (with_factor(picks_rows), "by an index of true and false"),
        (with_factor(moves_weights), "changes the weights that it trains"),
        (with_factor(changes_the_frozen, keeps_past=True), "changes the network 'past'"),
        (with_factor(compares_strong_views), "a method has these with strong_views = True"),
        (with_factor(lambda self, batch, task: batch.past.sum()), "set keeps_past = True"),
        (
            with_factor(lambda self, batch, task: self.options.wieght),
            r"failed in <lambda>\(\) \(test_checks.py, line \d+\) with AttributeError",
        ),
        (NotANumber, "'others' of training 'classifier' is nan|the loss became nan"),
        (OtherTerms, "must have the same terms in every step"),
        (Forgets, "resumed ends with other weights"),
        (CountsOn, "stopped inside its second task and resumed ends with other weights"),
        (DrawsWhenAsked, "resumed ends with other weights|changes a network when it is called"),
        (
            type("TrainsNothing", (Plain,), {"trainings": lambda self, task: []}),
            "must return what is trained, and it is empty",
        ),
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
