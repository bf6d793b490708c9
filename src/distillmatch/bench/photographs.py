"""How well learners do on a person's own folder of classes, beside plain baselines.

Classes are shuffled by a seed. Some are never learned; the others come in months. Of each class a
few images have labels, some are tested with, and a camera shows the rest, of all classes and in all
months. The nearest class mean and logistic regression are given the features that the learner has.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from distillmatch.engine import NoProgress, Progress
from distillmatch.errors import ConfigError
from distillmatch.learner import ContinualLearner
from distillmatch.learner.accuracy import TestImages, measure
from distillmatch.learner.explanation import Label
from distillmatch.learner.inputs import Items, Reader, open_images
from distillmatch.learner.labels import UNKNOWN, Labeled, class_folders, read_labeled
from distillmatch.randomness import permutation

UNSEEN_SHARE = 0.2
"""Share of the classes that are never learned, to be rejected."""
TEST_SHARE, MOST_TESTED = 0.3, 50
"""Share of a class's images to test with, and at most how many."""
MOST_OTHERS = 300
"""Images of another world."""
STRENGTHS = (0.01, 0.1, 1.0, 10.0)
"""Of logistic regression: the inverse weight of its penalty, chosen on a fifth of the labels."""
NEAREST, REGRESSION = "nearest mean", "logistic"


@dataclass(frozen=True)
class Month:
    """The places of images in the folder: labeled ones, and what the camera showed."""

    labeled: list[int]
    camera: list[int]


@dataclass(frozen=True)
class Split:
    """Months of classes, images of them to test with, and images of classes never learned."""

    months: list[Month]
    tested: list[int]
    unseen: list[int]


@dataclass
class Measured:
    """What one learner reached over the splits; percentages, seconds and bytes of each split."""

    name: str
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, figures: Mapping[str, float | None]) -> None:
        """Note the figures of a split, as far as there are any."""
        for name, value in figures.items():
            if value is not None:
                self.figures.setdefault(name, []).append(value)


def measure_photographs(
    folder: Path,
    learners: Mapping[str, Mapping[str, Any]],
    at_once: Collection[str] = (),
    *,
    splits: int,
    months: int,
    labels: int,
    other: Path | None = None,
    progress: Progress | None = None,
) -> list[Measured]:
    """Return what each of the learners, by name and settings, reaches on a folder of classes.

    Those that are named in `at_once` are given all months as one. Images in `other` are of another
    world, which no camera shows.
    """
    images = class_folders(folder.expanduser())
    elsewhere = [] if other is None else _some_images_in(other.expanduser())
    plans = [split(images.labels, months, labels, seed) for seed in range(1, splits + 1)]
    shown = progress or NoProgress()
    shown.start(float(splits * months * len(learners)))
    found = {name: Measured(name) for name in (*learners, NEAREST, REGRESSION)}
    try:
        for seed, plan in enumerate(plans, 1):
            for name, settings in learners.items():
                learner = ContinualLearner(**{"seed": seed, **settings})
                given = [joined(plan.months)] if name in at_once else plan.months

                def tell(part: float, name: str = name, seed: int = seed) -> None:
                    shown.advance(part, f"{name}, split {seed}")

                rows = _learned(learner, images, plan, elsewhere, given, found[name], tell)
                if rows.tested.ndim == 2 and not learner.fine_tune:
                    _baselines(images, plan, rows, found)
    finally:
        shown.stop()
    return [one for one in found.values() if one.figures]


def joined(months: Sequence[Month]) -> Month:
    """Return all months as one."""
    return Month(
        [place for month in months for place in month.labeled],
        [place for month in months for place in month.camera],
    )


def split(labels: Sequence[Label], months: int, per_class: int, seed: int) -> Split:
    """Divide classes and their images; the same for the same seed."""
    classes = sorted(set(labels), key=str)
    if len(classes) < months + 1:
        raise ConfigError(
            f"expected at least {months + 1} classes for {months} months and one that is never "
            f"learned, found {len(classes)}"
        )
    order = permutation(len(classes), seed, "photographs", "classes")
    unseen_count = max(1, round(UNSEEN_SHARE * len(classes)))
    learned = order[: max(months, len(classes) - unseen_count)]
    place_of: dict[Label, list[int]] = {}
    for place, label in enumerate(labels):
        place_of.setdefault(label, []).append(place)
    tested: list[int] = []
    unseen: list[int] = []
    labeled: dict[int, list[int]] = {}
    cameras: list[list[int]] = [[] for _ in range(months)]
    for number in order.tolist():
        places = place_of[classes[number]]
        mixed = [places[k] for k in permutation(len(places), seed, "photographs", number).tolist()]
        test = min(MOST_TESTED, max(1, round(TEST_SHARE * len(mixed))))
        if len(mixed) - test < 1:
            raise ConfigError(f"class '{classes[number]}' must have at least 2 images, not 1")
        rest = mixed[test:]
        if number in learned:
            tested += mixed[:test]
            labeled[number] = rest[:per_class]
            rest = rest[per_class:]
        else:
            unseen += mixed[:test]
        for month, part in enumerate(np.array_split(rest, months)):
            cameras[month] += part.tolist()
    return Split(
        [
            Month([place for number in part.tolist() for place in labeled[number]], sorted(camera))
            for part, camera in zip(np.array_split(learned, months), cameras, strict=True)
        ],
        tested,
        unseen,
    )


def _some_images_in(folder: Path) -> Items:
    """Return at most `MOST_OTHERS` of the images in a folder, spread over it."""
    items = open_images(folder)
    places = np.linspace(0, len(items) - 1, min(MOST_OTHERS, len(items))).astype(int)
    return [items[place] for place in places.tolist()]


def _learned(
    learner: ContinualLearner,
    images: Labeled,
    plan: Split,
    elsewhere: Items,
    months: Sequence[Month],
    found: Measured,
    tell: Callable[[float], None],
) -> "_Rows":
    """Learn some months and note the figures; return the rows of the test images."""
    seconds = 0.0
    for month in months:
        began = time.perf_counter()
        camera = [images.items[place] for place in month.camera]
        learner.partial_fit(images.part(month.labeled), unlabeled=camera)
        seconds += time.perf_counter() - began
        tell(len(plan.months) / len(months))
    record = learner.history_[-1]
    reader = learner.reader_for(images.items)
    rows, tested = read_labeled(images.part(plan.tested), reader, "test images")
    added = {images.labels[place] for place in plan.months[-1].labeled}
    test = measure(learner, TestImages("test", rows, tested.labels), list(added), {})
    unseen = [images.items[place] for place in plan.unseen]

    def rejected(asked: Items) -> float | None:
        if not learner.can_reject or not len(asked):
            return None
        return 100 * float(np.mean(learner.predict(asked, reject=True) == UNKNOWN))

    kept = record["stored_bytes"] + record.get("statistics_bytes", record["weights_bytes"])
    kept += (record.get("fine_tuned") or {}).get("bytes", 0)
    found.add(
        {
            **{name: test[name] for name in ("all", "old", "new", "accepted")},
            "rejected": rejected(unseen),
            "other": rejected(elsewhere),
            "seconds": seconds,
            "bytes": kept,
        }
    )
    return _Rows(reader, rows, tested.labels, added)


@dataclass(frozen=True)
class _Rows:
    """The test images as the learner reads them, their labels, and the last month's classes."""

    reader: Reader
    tested: NDArray[Any]
    labels: Sequence[Label]
    added: Collection[Label]


def _baselines(images: Labeled, plan: Split, rows: _Rows, found: Mapping[str, Measured]) -> None:
    """Note what the nearest class mean and logistic regression reach with all labels at once."""
    places = [place for month in plan.months for place in month.labeled]
    labeled, given = read_labeled(images.part(places), rows.reader)
    classes = sorted(set(given.labels), key=str)
    slots = np.array([classes.index(label) for label in given.labels])
    center, spread = labeled.mean(0), labeled.std(0) + 1e-6
    for name, classify in ((NEAREST, nearest_mean), (REGRESSION, regression)):
        began = time.perf_counter()
        answers = classify(
            (labeled - center) / spread if name == REGRESSION else labeled,
            slots,
            (rows.tested - center) / spread if name == REGRESSION else rows.tested,
        )
        seconds = time.perf_counter() - began
        right = np.array([classes[a] == b for a, b in zip(answers, rows.labels, strict=True)])
        new = np.array([label in rows.added for label in rows.labels])
        size = labeled.nbytes if name == REGRESSION else len(classes) * labeled[0].nbytes
        found[name].add(
            {
                "all": 100 * float(right.mean()),
                "old": 100 * float(right[~new].mean()) if (~new).any() else None,
                "new": 100 * float(right[new].mean()),
                "seconds": seconds,
                "bytes": float(size),
            }
        )


def nearest_mean(
    rows: NDArray[Any], slots: NDArray[np.int64], asked: NDArray[Any]
) -> NDArray[np.int64]:
    """Return for each asked row the class whose mean is nearest."""
    means = np.stack([rows[slots == slot].mean(0) for slot in range(slots.max() + 1)])
    distances = (means**2).sum(1) - 2 * asked @ means.T
    nearest: NDArray[np.int64] = distances.argmin(1)
    return nearest


def regression(
    rows: NDArray[Any], slots: NDArray[np.int64], asked: NDArray[Any]
) -> NDArray[np.int64]:
    """Return for each asked row the answer of logistic regression, its penalty chosen on labels."""
    order = permutation(len(rows), 1, "photographs", "validation")
    held, kept = order[: len(order) // 5], order[len(order) // 5 :]

    def right(strength: float) -> float:
        return float((_fitted(rows[kept], slots[kept], rows[held], strength) == slots[held]).mean())

    best = max(STRENGTHS, key=right) if len(held) else 1.0
    return _fitted(rows, slots, asked, best)


def _fitted(
    rows: NDArray[Any], slots: NDArray[np.int64], asked: NDArray[Any], strength: float
) -> NDArray[np.int64]:
    x, y = torch.from_numpy(rows).float(), torch.from_numpy(slots)
    weights = torch.zeros(int(y.max()) + 1, x.shape[1] + 1, requires_grad=True)
    solver = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")
    penalty = 1 / (2 * strength * len(x))

    def loss() -> torch.Tensor:
        solver.zero_grad()
        logits = x @ weights[:, :-1].T + weights[:, -1]
        value = cross_entropy(logits, y) + penalty * weights[:, :-1].square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        logits = torch.from_numpy(asked).float() @ weights[:, :-1].T + weights[:, -1]
    answers: NDArray[np.int64] = logits.argmax(1).numpy()
    return answers
