"""The engine: devices, precision, schedules, steps, evaluation; methods know nothing of these."""

from distillmatch.engine.device import Placement
from distillmatch.engine.engine import Engine
from distillmatch.engine.outcome import Judgement, NoProgress, Progress, TaskOutcome
from distillmatch.engine.snapshot import Snapshot

__all__ = ["Engine", "Judgement", "NoProgress", "Placement", "Progress", "Snapshot", "TaskOutcome"]
