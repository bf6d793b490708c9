"""The lines of a shell that make runs again: an experiment's, a cell's, and that of one result."""

import shlex
from pathlib import Path
from typing import Any

from distillmatch.config import RunConfig
from distillmatch.report.comparison import Result
from distillmatch.report.paper_tables import Record, Reproduced
from distillmatch.run.result import recorded_config
from distillmatch.suite.catalogue import Experiment
from distillmatch.suite.identity import BOUND, identity, run_name
from distillmatch.suite.ledger import config_of

AGAIN = Path("runs") / "again"
"""Where runs go that are made again: a ledger that has them already would not have them made."""
SETTING = ("source", "order", "tasks", "unlabeled", "method", "seed")
"""What a line says of a run even where it is the default, so that it can be read."""


def experiment_line(one: Reproduced) -> str:
    """Return the line that runs all cells of an experiment, with the seeds that were run."""
    return _suite_line(one.experiment, None, [r for x in one.records for r in x.results])


def cell_line(one: Reproduced, record: Record) -> str:
    """Return the line that runs one cell and its bound, with the seeds that were run."""
    name = record.cell.name
    return _suite_line(one.experiment, name, list(record.results))


def run_line(result: Result) -> str:
    """Return the line that makes one run again, whatever experiment it belongs to."""
    config = config_of(result, Path("result"))
    values = identity(config)
    defaults = recorded_config(RunConfig(source=values["source"], preset=values["preset"]))
    defaults["preset"] = RunConfig().preset
    said = [key for key in SETTING if key != "unlabeled" or values["method"] != BOUND]
    words = ["distillmatch", "run"]
    for key in (*said, *(key for key in values if key not in SETTING)):
        value = values[key]
        if value != defaults[key] or (key in said and value is not None):
            words += [f"--{key.replace('_', '-')}", *_option_words(value)]
    return shlex.join([*words, "--out", (AGAIN / run_name(config)).as_posix()])


def _suite_line(experiment: Experiment, cell: str | None, results: list[Result]) -> str:
    words = ["distillmatch", "suite", "run", experiment.name]
    if experiment.preset != RunConfig().preset:
        words += ["--preset", experiment.preset]
    if cell is not None:
        words += ["--cell", cell]
    seeds = sorted({int(result["seed"]) for result in results})
    if seeds:
        words += ["--seeds", ",".join(map(str, seeds))]
    ledger = (AGAIN / "results").as_posix()
    return shlex.join([*words, "--work", AGAIN.as_posix(), "--ledger", ledger])


def _option_words(value: Any) -> list[str]:
    """Return a value as the words that follow its option."""
    if isinstance(value, dict):
        return [f"{name}={_word(one)}" for name, one in value.items()]
    return [_word(one) for one in value] if isinstance(value, list) else [_word(value)]


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
