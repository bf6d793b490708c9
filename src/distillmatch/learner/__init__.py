"""A learner for one's own images: fed a task at a time, saved, closed, and fed again next month."""

from distillmatch.learner.estimator import ContinualLearner
from distillmatch.learner.explanation import Example, Explanation
from distillmatch.learner.state import learn, read_state
from distillmatch.learner.video import Camera, Video

__all__ = ["Camera", "ContinualLearner", "Example", "Explanation", "Video", "learn", "read_state"]
