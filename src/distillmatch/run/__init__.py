"""Runs: a configuration in, a result out."""

from distillmatch.run.result import Bound, bound_of, read_result, write_result
from distillmatch.run.runner import run

__all__ = ["Bound", "bound_of", "read_result", "run", "write_result"]
