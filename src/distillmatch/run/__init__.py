"""Runs: a configuration in, a result out, and nothing lost in between."""

from distillmatch.run.interruption import Interrupted
from distillmatch.run.result import Bound, bound_of, read_result, write_result
from distillmatch.run.runner import run

__all__ = ["Bound", "Interrupted", "bound_of", "read_result", "run", "write_result"]
