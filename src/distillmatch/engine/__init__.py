"""The engine: devices, precision, schedules, steps, evaluation; methods know nothing of these."""

from distillmatch.engine.device import Placement
from distillmatch.engine.engine import Engine, Judgement, TaskOutcome
from distillmatch.engine.progress import NoProgress, Progress

__all__ = ["Engine", "Judgement", "NoProgress", "Placement", "Progress", "TaskOutcome"]
