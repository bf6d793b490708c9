"""How well a learner does on images with labels: classes old and new, and what was forgotten."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from distillmatch.learner.estimator import ContinualLearner
from distillmatch.learner.explanation import Label
from distillmatch.learner.inputs import Reader
from distillmatch.learner.labels import UNKNOWN, Labeled, read_labeled
from distillmatch.sources.images import ImageFile

On = Literal["test", "held-out"]


@dataclass(frozen=True, eq=False)
class TestImages:
    """Images to measure with, as the learner's reader read them, and what was left out there."""

    __test__ = False  # not one of pytest's

    on: On
    rows: NDArray[Any]
    labels: Sequence[Label]
    problems: Sequence[str] = ()
    hidden: int = 0

    @classmethod
    def read(cls, on: On, given: Labeled, reader: Reader) -> "TestImages":
        """Read images to measure with."""
        what = "test images" if on == "test" else "images held out"
        rows, left = read_labeled(given, reader, what)
        return cls(on, rows, left.labels, left.problems, left.hidden)


def hold_out(
    files: Sequence[ImageFile], labels: Sequence[Label], share: float
) -> NDArray[np.bool_]:
    """Mark a share of each class's files, rounded; of every class one at least is left.

    Those are chosen whose names have the smallest hashes: no seed decides, and the choice stays
    when files are added.
    """
    held, of_label = np.zeros(len(files), np.bool_), np.asarray(labels)
    for label in dict.fromkeys(labels):
        places = np.flatnonzero(of_label == label).tolist()
        count = min(round(share * len(places)), len(places) - 1)
        places.sort(key=lambda place: sha256(Path(files[place].where).name.encode()).digest())
        held[places[:count]] = True
    return held


def accuracy_by_class(learner: ContinualLearner, tests: TestImages) -> dict[Label, float]:
    """Return the percentage of images recognized, of each class that the learner knows."""
    answers = learner.answer_rows(tests.rows)[0]
    return _by_class(tests.labels, answers.tolist(), learner.classes_.tolist())


def measure(
    learner: ContinualLearner, tests: TestImages, added: Sequence[Label], before: dict[Label, float]
) -> dict[str, Any]:
    """Return accuracies in percent over all classes, those before the task and those it added.

    `before` is what `accuracy_by_class` gave before the task: what is `forgotten` is measured on
    the same images. Labels that the learner never saw are counted and left out.
    """
    labels, rows, known = tests.labels, tests.rows, learner.classes_.tolist()
    answers = learner.answer_rows(rows)[0].tolist()
    now, counts = _by_class(labels, answers, known), Counter(labels)
    old = [label for label in now if label not in added]

    def mean(of: dict[Label, float], labels: Collection[Label]) -> float | None:
        weights = [counts[label] for label in labels]
        return float(np.average([of[n] for n in labels], weights=weights)) if labels else None

    def share(right: NDArray[np.bool_]) -> float | None:
        learned = np.array([label in now for label in labels], bool)
        return 100 * float(right[learned].mean()) if learned.any() else None

    then, still = mean(before, old) if before else None, mean(now, old)
    nearest = learner.nearest_mean_rows(rows)
    accepted = None
    if learner.can_reject:
        accepted = share(learner.answer_rows(rows, reject=True)[0] != UNKNOWN)
    return {
        "on": tests.on,
        "images": sum(counts[label] for label in now),
        "all": mean(now, now),
        "old": still,
        "new": mean(now, [label for label in now if label in added]),
        "old_before": then,
        "forgotten": None if then is None or still is None else then - still,
        "accepted": accepted,
        "nearest_mean": None if nearest is None else share(nearest == np.asarray(labels)),
        "by_class": {str(label): value for label, value in now.items()},
        "answers": _taken_for(labels, answers, now),
        "unknown": {str(label): n for label, n in sorted(counts.items()) if label not in now},
    }


def _by_class(
    labels: Sequence[Label], answers: Sequence[Label], known: Sequence[Label]
) -> dict[Label, float]:
    """Return the percentage of right answers for the images of each known class that came."""
    right = Counter(label for label, answer in zip(labels, answers, strict=True) if label == answer)
    counts = Counter(labels)
    return {label: 100 * right[label] / counts[label] for label in known if counts[label]}


def _taken_for(
    labels: Sequence[Label], answers: Sequence[Label], known: Collection[Label]
) -> dict[str, dict[str, int]]:
    """Return how often each class was answered for the images of each, most frequent first."""
    found: dict[str, dict[str, int]] = {str(label): {} for label in known}
    for (label, answer), count in Counter(zip(labels, answers, strict=True)).most_common():
        if label in known:
            found[str(label)][str(answer)] = count
    return found
