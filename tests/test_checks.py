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
from distillmatch.methods import Batch, Method, TaskInfo, Training, find_method, method_names
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


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (NoDescription, "'weight' needs a description"),
        (TakenName, "'epochs' is an option of every run"),
        (NoDefault, "every option needs a valid default"),
        (ReadsANumber, r"reads a number by float\(\)"),
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
