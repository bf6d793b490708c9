"""Runs: a configuration in, a result out, and nothing lost in between.

What needs torch is imported when it is first asked for: results can be read without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from distillmatch.runs.interruption import Interrupted
from distillmatch.runs.result import Bound, bound_of, read_result, write_result

if TYPE_CHECKING:
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
_WITH_TORCH = {"Job": "side_by_side", "run": "runner", "run_side_by_side": "side_by_side"}


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        return getattr(import_module(f"distillmatch.runs.{_WITH_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
