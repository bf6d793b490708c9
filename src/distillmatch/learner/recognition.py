"""How familiar images look: examples are chosen, and unknown images rejected, by it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillmatch.engine import Judgement, Placement
from distillmatch.engine.data import TaskData
from distillmatch.engine.outputs import piece_size
from distillmatch.learner.explanation import Example, Label
from distillmatch.learner.inputs import Pixels
from distillmatch.learner.task import AnyJudgement
from distillmatch.losses import threshold_at_tpr
from distillmatch.methods import Method, TaskInfo
from distillmatch.methods.detector import CALIBRATION_VIEWS, held_out_images
from distillmatch.randomness import permutation
from distillmatch.views import Normalization, plain_views

SAMPLED = 2048
"""Unlabeled images that examples are chosen among."""


class Familiarity(NamedTuple):
    """How familiar images look, if the method says that."""

    score: Tensor | None


def sample_of(
    method: Method,
    last: TaskInfo,
    images: Pixels,
    normalization: Normalization,
    placement: Placement,
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
    """Return random images by number, and their scores by what the last task left."""
    order = permutation(len(images), seed, "examples", last.number)
    chosen = np.sort(order[:SAMPLED])
    return chosen, familiarity(method, last, images[chosen], normalization, placement)


def choose_examples(
    chosen: NDArray[np.int64],
    scores: NDArray[np.float32] | None,
    judgement: AnyJudgement,
    labels: Sequence[Label],
    picture: Callable[[int], Pixels | None],
    most: int,
) -> list[Example]:
    """Return accepted images among those chosen, the most familiar ones of each class in turn.

    `scores` are those of the chosen images; `picture` returns an image by its number, if it can.
    """
    places = np.flatnonzero(judgement.accepted[chosen])
    slots = judgement.pseudo_labels[chosen]
    if scores is not None:
        places = places[np.argsort(-scores[places], kind="stable")]
    counts: Counter[int] = Counter()
    turns: list[tuple[int, int]] = []
    for place in places.tolist():
        turns.append((counts[slots[place]], place))
        counts[slots[place]] += 1
    examples: list[Example] = []
    for _, place in sorted(turns, key=lambda turn: turn[0]):
        if len(examples) < most and (image := picture(int(chosen[place]))) is not None:
            score = None if scores is None else float(scores[place])
            examples.append(Example(image.copy(), labels[slots[place]], score))
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
    """Yield the views of images at test time, in pieces that fill the device."""
    size = piece_size(placement.scoring_batch, images.shape[1])
    for start in range(0, len(images), size):
        pixels = placement.tensor(images[start : start + size])
        yield plain_views(pixels.permute(0, 3, 1, 2), normalization, dtype=placement.dtype)
