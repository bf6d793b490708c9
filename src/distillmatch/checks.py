"""Checks that a method or a source of your own keeps to the contract, a sentence each if not.

    from distillmatch.checks import check_method, check_source

    check_method(MyMethod)
    check_source(my_source)

They run on small data made here, in seconds on a CPU, and raise `CheckError`. Our own methods and
sources pass them in the tests.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from distillmatch.config import MethodOptions, RunConfig, StreamConfig
from distillmatch.engine import Engine
from distillmatch.engine.epochs import Epochs
from distillmatch.engine.snapshot import Snapshot
from distillmatch.engine.steps import batches, training_mode
from distillmatch.errors import DistillMatchError
from distillmatch.methods import Method, TaskInfo, Training
from distillmatch.methods.contract import terms_of, trainings_of
from distillmatch.methods.registry import given_name
from distillmatch.sources import UNKNOWN, Dataset, Part
from distillmatch.streams import build_stream

TINY: dict[str, Any] = {
    "network": "wrn-10-1",
    "epochs": 2,
    "tasks": 3,
    "batch": 8,
    "unlabeled_batch": 8,
    "labels_per_class": 5,
    "device": "cpu",
}
SIDE = 8
READS = {
    Tensor.item: "item()",
    Tensor.tolist: "tolist()",
    Tensor.numpy: "numpy()",
    Tensor.__bool__: "if or bool()",
    Tensor.__float__: "float()",
    Tensor.__int__: "int()",
    Tensor.nonzero: "nonzero()",
    torch.nonzero: "nonzero()",
    torch.masked_select: "masked_select()",
}
"""What reads a number from the device, and so keeps a step from being captured as a CUDA graph."""


class CheckError(DistillMatchError):
    """A method or a source does not keep to the contract; the message says what to change."""


def check_method(method: type[Method], **options: Any) -> None:
    """Check a method with its default options, some of them changed; raise `CheckError` if wrong.

    It is run through a small stream without and with a coreset, with and without unlabeled images,
    and stopped and resumed in between.
    """
    given: Any = method
    if not (inspect.isclass(given) and issubclass(given, Method)):
        raise CheckError(f"{method!r} must be a subclass of distillmatch.methods.Method")
    _check_options(method)
    for setting in ({}, {"coreset": 6}, {"unlabeled_per_task": 0}):
        config = RunConfig(**TINY, **setting, method=given_name(method), options=options)
        where = f"{method.__name__} with {', '.join(f'{k} {v}' for k, v in setting.items())}"
        try:
            _check_run(method, config, where if setting else method.__name__)
        except CheckError:
            raise
        except DistillMatchError as error:
            raise CheckError(str(error)) from None
        except Exception as error:
            raise CheckError(
                f"{where if setting else method.__name__} failed with {type(error).__name__}: "
                f"{error}"
            ) from error


def check_source(source: Dataset | Callable[[StreamConfig], Dataset], **options: Any) -> None:
    """Check a source, or the data set that it returned; raise `CheckError` if something is wrong.

    A source is called twice with a configuration that has these options, and must return the same.
    """
    name = getattr(source, "name", None) or getattr(source, "__name__", "the source")
    if isinstance(source, Dataset):
        _check_dataset(source)
        return
    if not callable(source):
        raise CheckError(f"{source!r} must be a function of a StreamConfig, or a Dataset")
    try:
        first, again = (source(StreamConfig(**options)) for _ in range(2))
    except DistillMatchError:
        raise
    except Exception as error:
        raise CheckError(f"source {name} failed with {type(error).__name__}: {error}") from error
    for given in (first, again):
        if not isinstance(given, Dataset):
            raise CheckError(f"source {name} must return a Dataset, not {type(given).__name__}")
    if first.fingerprint != again.fingerprint:
        raise CheckError(
            f"source {name} returned other images or labels when it was called again: draw random "
            "numbers from a generator with a fixed seed"
        )
    _check_dataset(first)


def _check_dataset(dataset: Dataset) -> None:
    name = dataset.name
    trained = np.bincount(dataset.train.labels[dataset.train.labels != UNKNOWN])
    tested = np.bincount(dataset.test.labels, minlength=len(dataset.class_names))
    for number, class_name in enumerate(dataset.class_names):
        if number >= len(trained) or trained[number] < 2:
            raise CheckError(
                f"source {name}: class '{class_name}' needs at least two training images, one to "
                "label and one for the environment"
            )
        if tested[number] == 0:
            raise CheckError(f"source {name}: class '{class_name}' has no test image")
    if dataset.image_size < SIDE:
        raise CheckError(f"source {name}: images must be at least {SIDE} pixels wide and high")
    order = np.argsort(dataset.train.labels, kind="stable")
    held = dataset.train.images[order[: min(len(order), 512)]]
    if (held == held[:1]).all():
        raise CheckError(f"source {name}: all images are the same")


def _check_options(method: type[Method]) -> None:
    name, options = method.__name__, getattr(method, "Options", None)
    if not (inspect.isclass(options) and issubclass(options, MethodOptions)):
        raise CheckError(f"{name}.Options must be a subclass of distillmatch.config.MethodOptions")
    try:
        options()
    except DistillMatchError as error:
        raise CheckError(f"{name}.Options: every option needs a valid default: {error}") from None
    for key, field in options.model_fields.items():
        if key in RunConfig.model_fields:
            raise CheckError(f"{name}.Options: '{key}' is an option of every run: choose another")
        if not field.description:
            raise CheckError(
                f"{name}.Options: '{key}' needs a description for --help: "
                "Field(default, description=...)"
            )


def _check_run(method: type[Method], config: RunConfig, where: str) -> None:
    dataset = _dataset()
    weights = []
    for stops in (False, True):
        engine = _engine(config, dataset)
        for _ in engine.run():
            if stops and engine.underway.task == 1:
                kept = engine.snapshot()
                engine = _resumed(config, dataset, kept)
                for _ in engine.run():
                    pass
                break
        weights.append({k: v.clone() for k, v in engine.method.classifier.state_dict().items()})
    if any(not torch.equal(weights[0][key], weights[1][key]) for key in weights[0]):
        raise CheckError(
            f"{where}: a run that is stopped after its first task and resumed ends with other "
            "weights: keep what lasts in self.networks, self.values and self.tensors"
        )
    _check_steps(_prepared(config, dataset), where)


def _prepared(config: RunConfig, dataset: Dataset) -> Engine:
    engine = _engine(config, dataset)
    next(engine.run())
    return engine


def _check_steps(engine: Engine, where: str) -> None:
    """Look at the trainings of the second task and at steps of each."""
    task, method, data = engine.task_info(1), engine.method, engine.task_data(1)
    trainings = trainings_of(method, task)
    if len({training.name for training in trainings}) < len(trainings):
        raise CheckError(f"{where}: two trainings of a task have the same name")
    before = _state(method)
    trainings_of(method, task)
    if _state(method) != before:
        raise CheckError(
            f"{where}: trainings() changes a network when it is called again: it may only describe "
            "them, and give weights by start_afresh"
        )
    for training in trainings:
        if training.before is not None:
            training.before(data, task)
        _check_training(engine, training, task, where)
        if training.after is not None:
            training.after(data, task)


def _check_training(engine: Engine, training: Training, task: TaskInfo, where: str) -> None:
    frozen = {
        name: _digest(network)
        for name, network in engine.method.networks.items()
        if network is not training.network
    }
    steps = engine.trainer.steps_of(training, task)
    epochs = Epochs(engine.task_data(task.number), training)
    with training_mode(training):
        for batch in batches(next(epochs.parts(0))):
            with _NoReads(f"{where}, training '{training.name}'"):
                terms = terms_of(training, batch, task)
            for name, term in terms.items():
                if not bool(term.isfinite()):
                    raise CheckError(
                        f"{where}: '{name}' of training '{training.name}' is {float(term)} in a "
                        "step: mind batches without unlabeled images, and divisions by zero"
                    )
            steps.step(batch)
    for name, digest in frozen.items():
        if _digest(engine.method.networks[name]) != digest:
            raise CheckError(
                f"{where}: training '{training.name}' changes the network '{name}': freeze it by "
                "frozen_copy, and run it in frozen_labeled and frozen_unlabeled"
            )


class _NoReads(TorchFunctionMode):
    """Refuses what reads a number from the device within a loss."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise CheckError(
                f"{self.where}: the loss reads a number by {READS[func]}, so that its step cannot "
                "be captured on a GPU: use masks and torch.where"
            )
        return func(*args, **(kwargs or {}))


def _engine(config: RunConfig, dataset: Dataset) -> Engine:
    return Engine(config, dataset, build_stream(dataset, config))


def _resumed(config: RunConfig, dataset: Dataset, snapshot: Snapshot) -> Engine:
    engine = _engine(config, dataset)
    engine.resume(snapshot)
    return engine


def _state(method: Method) -> dict[str, int]:
    return {name: _digest(network) for name, network in method.networks.items()}


def _digest(network: torch.nn.Module) -> int:
    state = network.state_dict().values()
    return hash(tuple(value.detach().cpu().numpy().tobytes() for value in state))


def _dataset() -> Dataset:
    """Return six classes of noise, ten images each."""
    random = np.random.default_rng(0)

    def part(per_class: int) -> Part:
        labels = np.tile(np.arange(6), per_class)
        images = random.integers(0, 256, (len(labels), SIDE, SIDE, 3), np.uint8)
        images[..., 0] = 40 * labels[:, None, None]
        return Part(images, labels.astype(np.int64))

    names = tuple(f"class {number}" for number in range(6))
    return Dataset("noise", part(10), part(4), names)
