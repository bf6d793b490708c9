"""What a method returns, checked against the contract where the engine takes it."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from torch import Tensor

from distillmatch.errors import ConfigError, kind_of
from distillmatch.methods.forward import Batch
from distillmatch.methods.method import Frozen, Method, TaskInfo, Training


def trainings_of(method: Method, task: TaskInfo) -> list[Training]:
    """Return what a method trains in a task."""
    given: Any = method.trainings(task)
    expected = "trainings must return a list of distillmatch.methods.Training"
    if not isinstance(given, list | tuple):
        raise _wrong(method, f"{expected}, not {kind_of(given)}")
    for one in given:
        if not isinstance(one, Training):
            raise _wrong(method, f"{expected}, not with {kind_of(one)} in it")
    return list(given)


def terms_of(training: Training, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
    """Return the loss of a batch as named terms, of which the network can change some."""
    given: Any = training.loss(batch, task)
    terms = given if isinstance(given, dict) else {"loss": given}
    expected = f"the loss of training '{training.name}' must be a number, or numbers by name"
    if not terms:
        raise ConfigError(f"{expected}, not an empty dictionary")
    if terms is given and "loss" in given:
        raise ConfigError(f"{expected}, and none called 'loss', which is what they add up to")
    for name, term in terms.items():
        which = f", and '{name}' is" if terms is given else ", not"
        if not isinstance(term, Tensor):
            raise ConfigError(f"{expected}{which} {kind_of(term)}: return a tensor")
        if term.ndim > 0:
            shape = tuple(term.shape)
            raise ConfigError(f"{expected}{which} a tensor of shape {shape}: take a sum or a mean")
        if not isinstance(name, str):
            raise ConfigError(f"{expected}, not by {kind_of(name)}")
    if not any(term.requires_grad for term in terms.values()):
        raise ConfigError(
            f"the loss of training '{training.name}' must depend on the network's weights, and it "
            "does not"
        )
    return terms


def logits_of(method: Method, images: Tensor, seen: int) -> Tensor:
    """Return a method's outputs for test images: a row for each, a column for each class."""
    given = method.logits(images)
    expected = f"logits must return {len(images)} rows of at least {seen} outputs"
    if not isinstance(given, Tensor):
        raise _wrong(method, f"{expected}, not {kind_of(given)}")
    if given.ndim != 2 or len(given) != len(images) or given.shape[1] < seen:
        raise _wrong(method, f"{expected}, not a shape of {tuple(given.shape)}")
    return given


def outputs_of(frozen: Frozen, images: Tensor, task: TaskInfo) -> Any:
    """Return the outputs of frozen networks: a NamedTuple of tensors, a row for each image."""
    given: Any = frozen(images, task)
    name = getattr(frozen, "__name__", "a function of frozen networks")
    expected = f"{name} must return a NamedTuple of tensors with a row for each image"
    if not (isinstance(given, tuple) and hasattr(given, "_fields")):
        raise ConfigError(f"{expected}, not {kind_of(given)}")
    for field, rows in zip(given._fields, given, strict=True):
        if rows is not None and not isinstance(rows, Tensor):
            raise ConfigError(f"{expected}, and '{field}' is {kind_of(rows)}")
        if rows is not None and (rows.ndim == 0 or len(rows) != len(images)):
            raise ConfigError(
                f"{expected}: of {len(images)} images '{field}' has a shape of {tuple(rows.shape)}"
            )
    return given


def map_outputs(change: Callable[[Tensor], Tensor], outputs: Any) -> Any:
    """Return the outputs with each tensor changed; what is not there stays so."""
    if outputs is None:
        return None
    return type(outputs)(*(None if rows is None else change(rows) for rows in outputs))


def map_batch(change: Callable[[str, Tensor], Tensor], batch: Batch) -> Batch:
    """Return a batch with each tensor changed, which is given with the name of its field."""
    made: dict[str, Any] = {}
    for field in fields(Batch):
        value, change_one = getattr(batch, field.name), partial(change, field.name)
        is_tensor = isinstance(value, Tensor)
        made[field.name] = change_one(value) if is_tensor else map_outputs(change_one, value)
    return Batch(**made)


def tensors_of(batch: Batch) -> list[Tensor]:
    """Return all tensors of a batch, those of outputs too, in the order of its fields."""
    values = [getattr(batch, field.name) for field in fields(Batch)]
    listed = [value if isinstance(value, tuple) else (value,) for value in values]
    return [one for some in listed for one in some if one is not None]


def _wrong(method: Method, sentence: str) -> ConfigError:
    return ConfigError(f"method '{method.config.method}': {sentence}")
