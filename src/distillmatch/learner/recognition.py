"""How familiar images look: examples are chosen, and unknown images rejected, by it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillmatch.engine import Judgement, Placement
from distillmatch.engine.data import TaskData
from distillmatch.engine.outputs import piece_size
from distillmatch.learner.explanation import Example, Label
from distillmatch.learner.inputs import Pixels
from distillmatch.losses import threshold_at_tpr
from distillmatch.methods import Method, TaskInfo
from distillmatch.methods.detector import CALIBRATION_VIEWS, held_out_images
from distillmatch.randomness import permutation
from distillmatch.views import Normalization, plain_views

SAMPLED = 2048
"""Unlabeled images that examples are chosen among."""


class Judged(Protocol):
    """What was believed of unlabeled images: a class of each, and whether it was accepted."""

    @property
    def pseudo_labels(self) -> NDArray[np.int64]:
        """The class of each image."""

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Whether each image was taken for its class."""


class Pictures(Protocol):
    """Images by their number, or none where one is not there any more."""

    def __getitem__(self, number: int, /) -> Pixels | None: ...


class Familiarity(NamedTuple):
    """How familiar images look, if the method says that."""

    score: Tensor | None


@dataclass(frozen=True, eq=False)
class Sample:
    """Some unlabeled images by number, with how familiar each looked before the task."""

    chosen: NDArray[np.int64]
    scores: NDArray[np.float32] | None

    @classmethod
    def nothing(cls) -> "Sample":
        """Return a sample of no images."""
        return cls(np.empty(0, np.int64), None)

    @classmethod
    def of(
        cls,
        method: Method,
        last: TaskInfo,
        images: Pixels,
        normalization: Normalization,
        placement: Placement,
        seed: int,
    ) -> "Sample":
        """Score a random choice of images by what was learned up to the last task."""
        order = permutation(len(images), seed, "examples", last.number)
        chosen = np.sort(order[:SAMPLED])
        scores = familiarity(method, last, images[chosen], normalization, placement)
        return cls(chosen, scores)


def choose_examples(
    sample: Sample, judgement: Judged, labels: Sequence[Label], pictures: Pictures, most: int
) -> list[Example]:
    """Return accepted images of the sample, the most familiar ones of each class in turn."""
    places = np.flatnonzero(judgement.accepted[sample.chosen])
    taken_for = judgement.pseudo_labels[sample.chosen]
    if sample.scores is not None:
        places = places[np.argsort(-sample.scores[places], kind="stable")]
    turns: list[tuple[int, int]] = []
    seen: dict[int, int] = {}
    for place in places.tolist():
        slot = int(taken_for[place])
        turns.append((seen.setdefault(slot, 0), place))
        seen[slot] += 1
    turns.sort(key=lambda turn: turn[0])
    examples: list[Example] = []
    for _, place in turns:
        if len(examples) == most:
            break
        image = pictures[int(sample.chosen[place])]
        if image is not None:
            score = None if sample.scores is None else float(sample.scores[place])
            examples.append(Example(image.copy(), labels[int(taken_for[place])], score))
    return examples


def calibrated_threshold(
    method: Method, task: TaskInfo, data: TaskData, judgement: Judgement | None, rate: float
) -> float | None:
    """Return the score that a share `rate` of familiar images reach, if the method gives scores.

    Those are the labeled images that a detector was not trained on, and, as they are mostly of new
    classes, the unlabeled ones that were accepted as old ones: of the two scores the lower. A
    classifier that scores was trained on all of them, so that fewer new ones will reach it.
    """

    def score(images: Tensor, task: TaskInfo) -> Familiarity:
        return Familiarity(method.familiarity(images, task))

    of_labeled = data.run(score, held_out_images(data), CALIBRATION_VIEWS).score
    if of_labeled is None:
        return None
    scores = [of_labeled]
    if judgement is not None and judgement.accepted.any():
        of_all = data.run(score, "unlabeled").score
        scores.append(of_all[torch.from_numpy(judgement.accepted).to(of_all.device)])
    return min(float(threshold_at_tpr(some, rate)) for some in scores)


def familiarity(
    method: Method,
    task: TaskInfo,
    images: Pixels,
    normalization: Normalization,
    placement: Placement,
) -> NDArray[np.float32] | None:
    """Score images by the method's gate, if it has one that scores."""
    scores = []
    for views in views_of(images, normalization, placement):
        with torch.no_grad(), placement.autocast():
            score = method.familiarity(views, task)
        if score is None:
            return None
        scores.append(score.float().cpu().numpy())
    return np.concatenate([np.empty(0, np.float32), *scores])


def views_of(
    images: Pixels, normalization: Normalization, placement: Placement
) -> Iterator[Tensor]:
    """Yield images as a network is shown them at test time, in pieces that fill the device."""
    size = piece_size(placement.scoring_batch, images.shape[1])
    for start in range(0, len(images), size):
        pixels = placement.tensor(images[start : start + size])
        yield plain_views(pixels.permute(0, 3, 1, 2), normalization, dtype=placement.dtype)
