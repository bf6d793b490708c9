"""What is carried from one task to the next, whichever way it was learned."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.engine import Placement
from distillmatch.learner.explanation import Explanation, Label
from distillmatch.learner.inputs import Reader
from distillmatch.learner.labels import Labeled
from distillmatch.views import Normalization


@dataclass(frozen=True, eq=False)
class Learned(ABC):
    """All that is carried from one task to the next.

    `labels` are the classes in the order of the logits, `sizes` how many each task added. Rows are
    what `reader` makes of images: pixels, or features of them.
    """

    config: RunConfig
    placement: Placement
    labels: tuple[Label, ...]
    sizes: tuple[int, ...]
    image_size: int
    normalization: Normalization
    history: tuple[dict[str, Any], ...]
    explanation: Explanation

    @property
    @abstractmethod
    def reader(self) -> Reader:
        """What reads images as rows."""

    @abstractmethod
    def logits(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return a logit for each row and class."""

    def learned_before(self, labeled: Labeled) -> NDArray[np.bool_]:
        """Mark the images that were learned under their labels before and must not count twice."""
        return np.zeros(len(labeled.items), np.bool_)

    def nearest_mean(self, rows: NDArray[Any]) -> NDArray[np.int64] | None:
        """Return the class whose mean of labeled rows is nearest, if rows are features."""
        del rows
        return None

    @property
    @abstractmethod
    def gives_scores(self) -> bool:
        """Whether it is known how familiar images look."""

    @abstractmethod
    def familiarity(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return how familiar each row looks, where that is known; higher is more familiar."""

    @abstractmethod
    def threshold(self, accept: float) -> float:
        """Return the familiarity that a share `accept` of known images reach."""

    @abstractmethod
    def classifier(self) -> nn.Module:
        """Return the network from normalized images to logits; the first ones are the classes'."""

    @abstractmethod
    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what only this kind has, as JSON can hold it, and tensors by name."""
