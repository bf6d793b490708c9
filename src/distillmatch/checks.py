"""Checks of a method or a source of your own against the contract; a failure is one sentence.

    from distillmatch.checks import check_method, check_source

    check_method(MyMethod)
    check_source(my_source)

They run on small data made here, in seconds on a CPU, and raise `CheckError`. Our own methods and
sources pass them in the tests.
"""

import inspect
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
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
HERE = str(Path(__file__).parent)
READS = {
    Tensor.cpu: "cpu()",
    Tensor.__array__: "numpy",
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
    and stopped and resumed between tasks and inside one.
    """
    given: Any = method
    if not (inspect.isclass(given) and issubclass(given, Method)):
        raise CheckError(f"{method!r} must be a subclass of distillmatch.methods.Method")
    _check_declarations(method)
    _check_options(method)
    for setting in ({}, {"coreset": 6}, {"unlabeled_per_task": 0}):
        config = RunConfig(**TINY, **setting, method=given_name(method), options=options)
        where = " with ".join([method.__name__, *(f"{k} {v}" for k, v in setting.items())])
        try:
            _check_run(method, config, where)
        except CheckError:
            raise
        except DistillMatchError as error:
            raise CheckError(str(error)) from None
        except Exception as error:
            raise CheckError(
                f"{where} failed {_place(error)}with {type(error).__name__}: {error}"
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


def _check_declarations(method: type[Method]) -> None:
    name, loss = method.__name__, method.loss
    signature = f"{name} must define loss(self, batch, task)"
    if inspect.isabstract(method) or not callable(loss):
        raise CheckError(signature)
    try:
        inspect.signature(loss).bind(None, None, None)
    except TypeError:
        raise CheckError(f"{signature}, and its loss takes other arguments") from None
    if method.strong_views and not method.unlabeled:
        raise CheckError(
            f"{name}: strong_views are of unlabeled images, and unlabeled is False: set it to True"
        )


def _place(error: Exception) -> str:
    """Return where in the user's own code an error was raised, if it was there."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if HERE not in one.filename]
    mine = [one for one in frames if not {"site-packages", "lib"} & set(Path(one.filename).parts)]
    if not mine:
        return ""
    return f"in {mine[-1].name}() ({Path(mine[-1].filename).name}, line {mine[-1].lineno}) "


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
        if not isinstance(field.default, bool | int | float | str | None):
            raise CheckError(
                f"{name}.Options: '{key}' must be a number, text, true or false: others have no "
                "form on a command line"
            )
        if not field.description:
            raise CheckError(
                f"{name}.Options: '{key}' needs a description for --help: "
                "Field(default, description=...)"
            )


def _check_run(method: type[Method], config: RunConfig, where: str) -> None:
    dataset = _dataset()
    kept: dict[str, Snapshot] = {}

    def pause() -> None:
        if engine.underway.task == 1:
            kept.setdefault("inside its second task", engine.snapshot())

    engine = _engine(config, dataset, pause)
    if not trainings_of(engine.method, engine.task_info(0)):
        raise CheckError(f"{where}: trainings() must return what is trained, and it is empty")
    for _ in engine.run():
        if engine.underway.task == 1:
            kept["after its first task"] = engine.snapshot()
    whole = engine.method.classifier.state_dict()
    for when, snapshot in kept.items():
        resumed = _engine(config, dataset)
        resumed.resume(snapshot)
        deque(resumed.run(), maxlen=0)
        state = resumed.method.classifier.state_dict()
        if any(not torch.equal(whole[key], state[key]) for key in whole):
            raise CheckError(
                f"{where}: a run that is stopped {when} and resumed ends with other weights: keep "
                "what lasts in self.networks, self.values and self.tensors, count afresh whenever "
                "`before` is called, and draw no random numbers"
            )
    prepared = _engine(config, dataset)
    next(prepared.run())
    _check_steps(prepared, where)


def _check_steps(engine: Engine, where: str) -> None:
    """Look at the trainings of the second task and at steps of each."""
    task, method, data = engine.task_info(1), engine.method, engine.task_data(1)
    trainings = trainings_of(method, task)
    if len({training.name for training in trainings}) < len(trainings):
        raise CheckError(f"{where}: two trainings of a task have the same name")
    before = _digests(method)
    trainings_of(method, task)
    if _digests(method) != before:
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
    before, steps = _digests(engine.method), engine.trainer.steps_of(training, task)
    epochs = Epochs(engine.task_data(task.number), training)
    with training_mode(training):
        for batch in batches(next(epochs.parts(0))):
            weights = [one.detach().clone() for one in training.network.parameters()]
            with _NoReads(f"{where}, training '{training.name}'"):
                terms = terms_of(training, batch, task)
            if not all(map(torch.equal, weights, training.network.parameters())):
                raise CheckError(
                    f"{where}: the loss of training '{training.name}' changes the weights that it "
                    "trains: that is the optimizer's part"
                )
            for name, term in terms.items():
                if not bool(term.isfinite()):
                    raise CheckError(
                        f"{where}: '{name}' of training '{training.name}' is {float(term)} in a "
                        "step: mind batches without unlabeled images, and divisions by zero"
                    )
            steps.step(batch)
    for name, digest in _digests(engine.method).items():
        if digest != before[name] and engine.method.networks[name] is not training.network:
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
        read = READS.get(func)
        if func is Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(one, Tensor) and one.dtype == torch.bool for one in index):
                read = "an index of true and false"
        if func is torch.where and len(args) + len(kwargs or {}) == 1:
            read = "torch.where of one argument"
        if read is not None:
            raise CheckError(
                f"{self.where}: the loss reads from the device by {read}, so that its step cannot "
                "be captured on a GPU: use masks, torch.where and sums"
            )
        return func(*args, **(kwargs or {}))


def _engine(config: RunConfig, dataset: Dataset, pause: Callable[[], None] | None = None) -> Engine:
    return Engine(config, dataset, build_stream(dataset, config), pause=pause)


def _digests(method: Method) -> dict[str, int]:
    """Return a hash of the state of each network."""
    return {
        name: hash(tuple(value.cpu().numpy().tobytes() for value in network.state_dict().values()))
        for name, network in method.networks.items()
    }


def _dataset() -> Dataset:
    """Return six classes of noise, ten images each."""
    random = np.random.default_rng(0)

    def part(per_class: int) -> Part:
        labels = np.tile(np.arange(6), per_class)
        images = random.integers(0, 256, (len(labels), SIDE, SIDE, 3), np.uint8)
        images[..., 0] = 40 * labels[:, None, None]
        return Part(images, labels.astype(np.int64))

    return Dataset("noise", part(10), part(4), tuple(f"class {number}" for number in range(6)))
