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
from collections.abc import Callable, Iterable, Iterator
from functools import cache
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

TINY = RunConfig(
    network="wrn-10-1", epochs=2, tasks=3, batch=8, unlabeled_batch=8, labels_per_class=5
)
SIDE = 8
HERE = Path(__file__).parent
READS = (
    *(Tensor.cpu, Tensor.__array__, Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__bool__),
    *(Tensor.__float__, Tensor.__int__, Tensor.nonzero, torch.nonzero, torch.masked_select),
)
"""What reads a number from the device, and so keeps a step from being captured as a CUDA graph."""
NO_READS = "its step cannot be captured on a GPU; use masks, torch.where and sums"
NOT_FINITE = "mind batches without unlabeled images, and divisions by zero"
FROZEN = "freeze it by frozen_copy, and run it in frozen_labeled and frozen_unlabeled"
KEEP = (
    "keep what lasts in self.networks, self.values and self.tensors, count afresh whenever "
    "`before` is called, and draw no random numbers"
)


class CheckError(DistillMatchError):
    """A method or a source does not keep to the contract; the message says what to change."""


def check_method(method: type[Method], **options: Any) -> None:
    """Check a method with its default options, some of them changed; raise `CheckError` if wrong.

    It is run through a small stream without and with a coreset, with and without unlabeled images,
    and stopped and resumed between tasks and inside one.
    """
    _refuse(_faults_of_class(method))
    for setting in ({}, {"coreset": 6}, {"unlabeled_per_task": 0}):
        own = {**setting, "method": given_name(method), "options": options, "device": "cpu"}
        where = " with ".join([method.__name__, *(f"{k} {v}" for k, v in setting.items())])
        try:
            _refuse(f"{where}: {fault}" for fault in _faults_of_run(TINY.replace(**own)))
        except CheckError:
            raise
        except DistillMatchError as error:
            raise CheckError(str(error)) from None
        except Exception as error:
            failed = f"{where} failed {_place(error)}with {type(error).__name__}: {error}"
            raise CheckError(failed) from error


def check_source(source: Dataset | Callable[[StreamConfig], Dataset], **options: Any) -> None:
    """Check a source, or the data set that it returned; raise `CheckError` if something is wrong.

    A source is called twice with a configuration that has these options, and must return the same.
    """
    dataset: Any = source
    if not isinstance(source, Dataset):
        if not callable(source):
            raise CheckError(f"{source!r} must be a function of a StreamConfig, or a Dataset")
        name = f"source {getattr(source, '__name__', 'given')}"
        try:
            made: list[Any] = [source(StreamConfig(**options)) for _ in range(2)]
        except DistillMatchError:
            raise
        except Exception as error:
            raise CheckError(f"{name} failed with {type(error).__name__}: {error}") from error
        for one in made:
            if not isinstance(one, Dataset):
                raise CheckError(f"{name} must return a Dataset, not {type(one).__name__}")
        if len({one.fingerprint for one in made}) > 1:
            raise CheckError(f"{name} returned other images when called again: seed what is random")
        dataset = made[0]
    _refuse(f"source {dataset.name}: {fault}" for fault in _faults_of_data(dataset))


def _refuse(faults: Iterable[str]) -> None:
    """Raise the first fault."""
    for fault in faults:
        raise CheckError(fault)


def _faults_of_data(dataset: Dataset) -> Iterator[str]:
    classes = len(dataset.class_names)
    labels = dataset.train.labels[dataset.train.labels != UNKNOWN]
    trained, tested = (np.bincount(x, minlength=classes) for x in (labels, dataset.test.labels))
    for number, name in enumerate(dataset.class_names):
        if trained[number] < 2:
            yield f"class '{name}' needs at least two training images, one of them to label"
        if tested[number] == 0:
            yield f"class '{name}' has no test image"
    if dataset.image_size < SIDE:
        yield f"images must be at least {SIDE} pixels wide and high"
    order = np.argsort(dataset.train.labels, kind="stable")
    held = dataset.train.images[order[:512]]
    if (held == held[:1]).all():
        yield "all images are the same"


def _faults_of_class(method: Any) -> Iterator[str]:
    if not (inspect.isclass(method) and issubclass(method, Method)):
        yield f"{method!r} must be a subclass of distillmatch.methods.Method"
    name, options = method.__name__, getattr(method, "Options", None)
    signature = f"{name} must define loss(self, batch, task)"
    if inspect.isabstract(method) or not callable(method.loss):
        yield signature
    try:
        inspect.signature(method.loss).bind(None, None, None)
    except TypeError:
        yield f"{signature}, and its loss takes other arguments"
    if method.strong_views and not method.unlabeled:
        yield f"{name}: strong_views are of unlabeled images, and unlabeled is False"
    if not (inspect.isclass(options) and issubclass(options, MethodOptions)):
        raise CheckError(f"{name}.Options must be a subclass of distillmatch.config.MethodOptions")
    try:
        options()
    except DistillMatchError as error:
        yield f"{name}.Options: every option needs a valid default: {error}"
    for key, field in options.model_fields.items():
        if key in RunConfig.model_fields:
            yield f"{name}.Options: '{key}' is an option of every run: choose another"
        if not isinstance(field.default, bool | int | float | str | None):
            yield f"{name}.Options: '{key}' must be a number, text, true or false"
        if not field.description:
            yield f"{name}.Options: '{key}' needs a description: Field(default, description=...)"


def _place(error: Exception) -> str:
    """Return where in the user's own code an error was raised, if it was there."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not path.is_relative_to(HERE) and not {"site-packages", "lib"} & set(path.parts):
            return f"in {frame.name}() ({path.name}, line {frame.lineno}) "
    return ""


def _faults_of_run(config: RunConfig) -> Iterator[str]:
    kept: dict[str, Snapshot] = {}

    def pause() -> None:
        if engine.underway.task == 1:
            kept.setdefault("inside its second task", engine.snapshot())

    engine = _engine(config, pause)
    if not trainings_of(engine.method, engine.task_info(0)):
        yield "trainings() must return what is trained, and it is empty"
    for _ in engine.run():
        if engine.underway.task == 1:
            kept["after its first task"] = engine.snapshot()
    whole = engine.method.classifier.state_dict()
    for when, snapshot in kept.items():
        resumed = _engine(config)
        resumed.resume(snapshot)
        deque(resumed.run(), maxlen=0)
        state = resumed.method.classifier.state_dict()
        if any(not torch.equal(whole[key], state[key]) for key in whole):
            ends = f"a run that is stopped {when} and resumed ends with other weights"
            yield f"{ends}: {KEEP}"
    prepared = _engine(config)
    next(prepared.run())
    task, method, data = prepared.task_info(1), prepared.method, prepared.task_data(1)
    trainings = trainings_of(method, task)
    if len({training.name for training in trainings}) < len(trainings):
        yield "two trainings of a task have the same name"
    before = _digests(method)
    trainings_of(method, task)
    if _digests(method) != before:
        yield "trainings() changes a network when it is called again: give weights by start_afresh"
    for training in trainings:
        if training.before is not None:
            training.before(data, task)
        yield from _faults_of_steps(prepared, training, task)
        if training.after is not None:
            training.after(data, task)


def _faults_of_steps(engine: Engine, training: Training, task: TaskInfo) -> Iterator[str]:
    """Take the steps of a training of the second task, and look at each."""
    before, steps = _digests(engine.method), engine.trainer.steps_of(training, task)
    epochs, name = Epochs(engine.task_data(task.number), training), f"training '{training.name}'"
    with training_mode(training):
        for batch in batches(next(epochs.parts(0))):
            weights = [one.detach().clone() for one in training.network.parameters()]
            with _NoReads() as reads:
                terms = terms_of(training, batch, task)
            for read in reads.found:
                yield f"the loss of {name} reads from the device by {read}: {NO_READS}"
            if not all(map(torch.equal, weights, training.network.parameters())):
                yield f"the loss of {name} changes the weights that it trains"
            for term, value in terms.items():
                if not bool(value.isfinite()):
                    yield f"'{term}' of {name} is {float(value)} in a step: {NOT_FINITE}"
            steps.step(batch)
    for network, digest in _digests(engine.method).items():
        if digest != before[network] and engine.method.networks[network] is not training.network:
            yield f"{name} changes the network '{network}': {FROZEN}"


class _NoReads(TorchFunctionMode):
    """Finds what reads a number from the device within a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = f"{func.__name__.strip('_')}()" if func in READS else None
        if func is Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(one, Tensor) and one.dtype == torch.bool for one in index):
                read = "an index of true and false"
        if func is torch.where and len(args) + len(kwargs or {}) == 1:
            read = "torch.where of one argument"
        self.found += [read] if read is not None else []
        return func(*args, **(kwargs or {}))


def _engine(config: RunConfig, pause: Callable[[], None] | None = None) -> Engine:
    dataset = _dataset()
    return Engine(config, dataset, build_stream(dataset, config), pause=pause)


def _digests(method: Method) -> dict[str, int]:
    """Return a hash of the state of each network."""
    return {
        name: hash(tuple(value.cpu().numpy().tobytes() for value in network.state_dict().values()))
        for name, network in method.networks.items()
    }


@cache
def _dataset() -> Dataset:
    """Return six classes of noise, ten images each."""
    random = np.random.default_rng(0)

    def part(per_class: int) -> Part:
        labels = np.tile(np.arange(6), per_class)
        images = random.integers(0, 256, (len(labels), SIDE, SIDE, 3), np.uint8)
        images[..., 0] = 40 * labels[:, None, None]
        return Part(images, labels.astype(np.int64))

    return Dataset("noise", part(10), part(4), tuple(f"class {number}" for number in range(6)))
