"""Run one configuration, from its source to its result."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

from distillmatch.config import RunConfig
from distillmatch.engine import Placement, Progress
from distillmatch.errors import ConfigError, StreamError
from distillmatch.methods import Method, find_method, given_name, with_options
from distillmatch.networks import check_network, weights_digest
from distillmatch.runs.folder import Resume, RunFolder
from distillmatch.runs.interruption import StopRequest
from distillmatch.runs.result import LATER_STREAM_KEYS, Bound, Tally, describe_stream, write_result
from distillmatch.runs.session import Session
from distillmatch.runs.side_by_side import MOST_AT_ONCE
from distillmatch.runs.stages import learn_stages
from distillmatch.sources import Dataset, load_source, verify
from distillmatch.streams import Stream, build_stream

CHECKPOINT_SECONDS = 60.0


def run(
    config: RunConfig | None = None,
    out: Path | None = None,
    *,
    method: str | type[Method] | None = None,
    options: dict[str, Any] | None = None,
    dataset: Dataset | None = None,
    stream: Stream | None = None,
    bound: Bound | None = None,
    progress: Progress | None = None,
    resume: Resume = "auto",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    tell: Callable[[str], None] | None = None,
    stop: StopRequest | None = None,
    at_once: int | None = None,
) -> dict[str, Any]:
    """Run a configuration, by default `RunConfig()`, and return its result.

    `method` is the name or class of a method to run instead of the configuration's, with its own
    `options`. A `stream`, saved or a validation fold, replaces the one that the configuration
    describes. With a `bound` of the same stream and recipe, Ω is among the metrics.

    With `out` the result is written to `out/result.json` after every task; `complete` says whether
    all tasks are in it. A checkpoint is written after every task, every `checkpoint_seconds` within
    one (0: not), and on Ctrl-C and SIGTERM, which then raise `Interrupted`. Call `run` again with
    the same `out` to resume an interrupted run; a finished one is not run again. With `resume` "no"
    a run starts over, with "must" it is resumed or refused. `tell` is given a sentence about such
    events, which go to the logger `distillmatch` without it. Runs in threads share a `stop`.

    The tasks of a method with `independent_tasks`, such as the offline bound, are learned side by
    side, `at_once` of them; by default all of them on a GPU, and one on a CPU.
    """
    config = config or RunConfig()
    if method is not None:
        name = method if isinstance(method, str) else given_name(method)
        config = config.replace(method=name, options=options or {})
    elif options is not None:
        config = config.replace(options=options)
    _check_options(out, resume, checkpoint_seconds, at_once)
    # Refuse wrong options before data are fetched and folders are made.
    found_method = find_method(config.method)
    config = with_options(config, found_method)
    check_network(config.network)
    weights = None if config.pretrained is None else weights_digest(config.pretrained)
    placement = Placement.of(config)
    if at_once not in (None, 1) and not found_method.independent_tasks:
        raise ConfigError(
            f"at_once must be 1 with method '{config.method}', not {at_once}: each of its tasks "
            "builds on the one before it"
        )
    start = time.perf_counter()
    say = tell or logging.getLogger("distillmatch").warning
    with RunFolder(Path(out), say) if out is not None else nullcontext() as folder:
        if dataset is None:
            dataset = load_source(config)
            for problem in dataset.problems:
                say(f"left out: {problem}")
        verify(dataset)
        identity = dataset.fingerprint
        if stream is None:
            stream = build_stream(dataset, config)
        else:
            stream.check_fingerprint(dataset)
            identity = f"{identity}/{stream.digest}"
        _check_test_images(dataset, stream)
        described = describe_stream(config, identity, len(stream))
        _check_bound(bound, described, config.recipe)
        checkpoint = None
        if folder is not None:
            result, checkpoint = folder.find(resume, config, identity, weights)
            if result is not None:
                return _finished(result, bound, stream, folder)
        count = at_once or (len(stream) if placement.device.type == "cuda" else 1)
        # A run without a folder cannot be resumed: signals end it at once.
        request = stop or StopRequest(None if folder is None else folder.tell)
        heard = nullcontext() if stop is not None or folder is None else request
        with heard:
            given = config, stream, described, start, checkpoint_seconds, request
            session = Session(*given, folder, bound, progress)
            beside = count > 1 or (folder is not None and folder.has_stages)
            if found_method.independent_tasks and beside:
                learn_stages(session, checkpoint, min(count, MOST_AT_ONCE))
            else:
                session.learn(checkpoint)
            return session.end()


def _check_options(
    out: Path | None, resume: Resume, checkpoint_seconds: float, at_once: int | None
) -> None:
    if out is None and resume == "must":
        raise ConfigError("resume 'must' needs a folder to continue from")
    if resume not in get_args(Resume):
        raise ConfigError(f"resume must be one of {', '.join(get_args(Resume))}, not {resume!r}")
    if not checkpoint_seconds >= 0:
        raise ConfigError(f"checkpoint_seconds must be at least 0, not {checkpoint_seconds!r}")
    if at_once is not None and at_once < 1:
        raise ConfigError(f"at_once must be at least 1, not {at_once}")


def _check_test_images(dataset: Dataset, stream: Stream) -> None:
    """Refuse a task whose accuracy could not be measured, before anything is trained."""
    for number, task in enumerate(stream.tasks, 1):
        if not len(task.test):
            names = ", ".join(dataset.class_names[c] for c in task.classes)
            raise StreamError(
                f"task {number} ({names}) of source '{dataset.name}' has no test image to measure "
                "accuracy on"
            )


def _check_bound(bound: Bound | None, described: dict[str, Any], recipe: str) -> None:
    """Refuse the bound of another stream or recipe."""
    if bound is None:
        return
    nothing = dict.fromkeys(LATER_STREAM_KEYS, 0)
    own, its = {**nothing, **described}, {**nothing, **bound.stream}
    differing = [key for key in own if its.get(key) != own[key]]
    if differing:
        raise StreamError(
            f"the bound was made on another stream: {', '.join(differing)} differ from this run's"
        )
    if bound.recipe != recipe:
        raise StreamError(
            f"the bound was made by recipe '{bound.recipe}', and this run is by '{recipe}'"
        )


def _finished(
    result: dict[str, Any], bound: Bound | None, stream: Stream, folder: RunFolder
) -> dict[str, Any]:
    """Return a finished result, with the metrics that a bound adds to it."""
    folder.tell(f"{folder.path} holds this run, finished: its result was read, nothing was run")
    if bound is not None:
        result["metrics"] = Tally(stream.task_sizes, result).metrics(bound)
        write_result(result, folder.path)
    return result
