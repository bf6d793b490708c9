"""Running one configuration from its source to its result."""

import time
from pathlib import Path
from typing import Any

from distillmatch.config import RunConfig
from distillmatch.engine import Engine, Progress
from distillmatch.errors import StreamError
from distillmatch.run.machine import commit, machine, versions
from distillmatch.run.result import (
    FORMAT,
    VERSION,
    Bound,
    Tally,
    describe_stream,
    write_result,
)
from distillmatch.sources import Dataset, load_source
from distillmatch.streams import build_stream


def run(
    config: RunConfig,
    out: Path | None = None,
    *,
    dataset: Dataset | None = None,
    bound: Bound | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run a configuration and return its result.

    With `out` the result is written to `out/result.json` after every task, so that what was
    finished is there whatever happens; `complete` says whether all tasks are in it. With a `bound`
    of the same stream, Ω is among the metrics.
    """
    start = time.perf_counter()
    dataset = dataset or load_source(config)
    stream = build_stream(dataset, config)
    described = describe_stream(config, stream.fingerprint, len(stream))
    if bound is not None and bound.stream != described:
        differing = [key for key in described if bound.stream.get(key) != described[key]]
        raise StreamError(
            f"the bound was made on another stream: {', '.join(differing)} differ from this run's"
        )
    engine = Engine(config, dataset, stream, progress)
    tally = Tally(stream.task_sizes)
    head: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "config": config.model_dump(mode="json"),
        "stream": described,
        "method": config.method,
        "seed": config.seed,
        "uses_truth": engine.method.needs_truth,
        "classes": [stream.class_names[c] for c in stream.class_order],
        "task_sizes": list(stream.task_sizes),
        "versions": versions(),
        "machine": machine(engine.placement),
        "commit": commit(),
    }
    result: dict[str, Any] = {}
    for outcome in engine.run():
        tally.add(outcome)
        seconds: dict[str, float] = {}
        for task in tally.tasks:
            for phase, spent in task["seconds"].items():
                seconds[phase] = seconds.get(phase, 0.0) + spent
        result = {
            **head,
            "complete": len(tally.tasks) == len(stream),
            "metrics": tally.metrics(bound),
            **tally.matrices(),
            "tasks": tally.tasks,
            "seconds": {**seconds, "total": time.perf_counter() - start},
            "memory": {
                "stored_images": max(task["stored_images"] for task in tally.tasks),
                "stored_bytes": max(task["stored_bytes"] for task in tally.tasks),
                "peak_device_bytes": engine.placement.peak_memory(),
            },
        }
        if out is not None:
            write_result(result, out)
    return result
