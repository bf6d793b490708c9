"""What a method gives, held against the contract where the engine takes it: own ones may err."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from distillmatch.errors import ConfigError, kind_of
from distillmatch.methods.method import Batch, Method, Scores, TaskInfo, Training


def trainings_of(method: Method, task: TaskInfo) -> list[Training]:
    """Return what a method trains in a task."""
    given: Any = method.trainings(task)
    if not isinstance(given, list | tuple):
        raise ConfigError(_about(method, f"trainings must return a list, not {kind_of(given)}"))
    for one in given:
        if not isinstance(one, Training):
            expected = "trainings must return a list of distillmatch.methods.Training"
            raise ConfigError(_about(method, f"{expected}, not with {kind_of(one)} in it"))
    return list(given)


def loss_of(training: Training, batch: Batch) -> Tensor:
    """Return the loss of a batch: one number, which the training's network can change."""
    given = training.loss(batch)
    expected = f"the loss of training '{training.name}' must be a tensor of a single number"
    if not isinstance(given, Tensor):
        raise ConfigError(f"{expected}, not {kind_of(given)}")
    if given.ndim > 0:
        raise ConfigError(f"{expected}, not of shape {tuple(given.shape)}: take a sum or a mean")
    if not given.requires_grad:
        raise ConfigError(f"{expected} that depends on the network's weights, and it does not")
    return given


def logits_of(method: Method, images: Tensor, seen: int) -> Tensor:
    """Return a method's outputs for test images: a row for each, a column for each class."""
    given = method.logits(images)
    expected = f"logits must return {len(images)} rows of at least {seen} outputs"
    if not isinstance(given, Tensor):
        raise ConfigError(_about(method, f"{expected}, not {kind_of(given)}"))
    if given.ndim != 2 or len(given) != len(images) or given.shape[1] < seen:
        raise ConfigError(_about(method, f"{expected}, not a shape of {tuple(given.shape)}"))
    return given


def checked_scores(given: Scores, images: Tensor) -> Scores:
    """Return what a score function gave: named tensors with a row for each image."""
    expected = "a score function must return tensors by their names"
    if not isinstance(given, Mapping):
        raise ConfigError(f"{expected}, not {kind_of(given)}")
    for name, rows in given.items():
        if not isinstance(rows, Tensor):
            raise ConfigError(f"{expected}, and '{name}' is {kind_of(rows)}")
        if rows.ndim == 0 or len(rows) != len(images):
            raise ConfigError(
                f"a score function must return a row for each of {len(images)} images, and "
                f"'{name}' has a shape of {tuple(rows.shape)}"
            )
    return given


def _about(method: Method, sentence: str) -> str:
    return f"method '{method.config.method}': {sentence}"
