"""Runs: a configuration in, a result out, and nothing lost in between."""

from distillmatch.runs.interruption import Interrupted
from distillmatch.runs.result import Bound, bound_of, read_result, write_result
from distillmatch.runs.runner import run
from distillmatch.runs.side_by_side import Job, run_side_by_side

__all__ = [
    "Bound",
    "Interrupted",
    "Job",
    "bound_of",
    "read_result",
    "run",
    "run_side_by_side",
    "write_result",
]
