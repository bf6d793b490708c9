"""What a learner's record shows beyond its figures: baselines, best months, doubts, and warnings.

Records are those of `distillmatch.learner.state`; old ones lack some entries.
"""

from collections.abc import Sequence
from typing import NamedTuple

from distillmatch.report.learner_text import (
    ROUNDING,
    Record,
    lacks_threshold,
    listed,
    one_decimal,
    plural,
)
from distillmatch.sources.walk import shown

FEW_LABELS = 10
FEW_TESTED = 10
DOUBTFUL = 0.5
"""Share of right answers for a class below which images taken for it are doubtful."""
LOST, BEHIND, BELOW = 10.0, 2.0, 10.0
"""Points of accuracy lost, behind the nearest class mean, and of acceptance: worth saying."""
MORE_LABELS = "more labels of them"


class Best(NamedTuple):
    """How well a class was recognized at best, after which task, and now, in percent."""

    best: float
    task: str
    now: float

    @property
    def lost(self) -> float:
        """Points lost since then."""
        return self.best - self.now


class Camera(NamedTuple):
    """What became of a task's unlabeled images.

    `right` is how many of the accepted ones are probably right, as the test images tell; None where
    nothing was tested.
    """

    seen: int
    accepted: int | None
    right: float | None
    rejected: int | None


def best_by_class(history: Sequence[Record]) -> dict[str, Best]:
    """Return, for each class that the last task was tested on, its best accuracy ever."""
    last = history[-1]["test"]
    found: dict[str, Best] = {}
    for label, now in (last["by_class"] if last else {}).items():
        tests = [(one["test"]["by_class"], one["name"]) for one in history if one["test"]]
        scores = [(by_class[label], name) for by_class, name in tests if label in by_class]
        best, task = max(scores, key=lambda pair: pair[0])
        found[label] = Best(best, shown(task), now)
    return found


def chance(record: Record) -> float:
    """Return the accuracy of guessing, in percent."""
    return 100 / max(1, len(record["test"]["by_class"]))


def baseline_sentence(record: Record) -> str:
    """Compare the accuracy with guessing and with the nearest class mean."""
    test = record["test"]
    if not test or test["all"] is None:
        return ""
    said = f"Guessing would tell {chance(record):.1f} % right"
    nearest = test.get("nearest_mean")
    if nearest is None:
        return f"{said}; the learner tells {test['all']:.1f} %."
    return (
        f"{said}, the nearest class mean on the same features {nearest:.1f} %; the learner tells "
        f"{test['all']:.1f} %."
    )


def best_sentence(history: Sequence[Record]) -> str:
    """Compare each class with the best that it ever was."""
    best = best_by_class(history)
    if len(history) < 2 or not best:
        return ""
    mean = sum(one.lost for one in best.values()) / len(best)
    if mean < ROUNDING:
        return ""
    label, worst = max(best.items(), key=lambda pair: pair[1].lost)
    return (
        f"Beside the best that each class ever was, {mean:.1f} points are lost on average; most by "
        f"{shown(label)}: {worst.best:.1f} % after “{worst.task}”, {worst.now:.1f} % now."
    )


def precision_by_answer(record: Record) -> dict[str, float]:
    """Return the share of test images answered with a class that were of it."""
    answered: dict[str, int] = {}
    right: dict[str, int] = {}
    for label, answers in _answers(record).items():
        for answer, count in answers.items():
            answered[answer] = answered.get(answer, 0) + count
            right[answer] = right.get(answer, 0) + count * (label == answer)
    return {answer: right[answer] / count for answer, count in answered.items() if count}


def camera(record: Record) -> Camera:
    """Return what became of the unlabeled images of a task."""
    precision, accepted = precision_by_answer(record), record["accepted_by_class"]
    right = sum(count * precision.get(label, 0.0) for label, count in accepted.items())
    tested = record["accepted"] and precision
    return Camera(
        record["seen"], record["accepted"], right if tested else None, record.get("rejected")
    )


def camera_sentence(record: Record) -> str:
    """Say how many accepted images are probably right, and how many looked like no class."""
    of = camera(record)
    parts = []
    if of.accepted and of.right is not None:
        parts.append(
            f"Of the {plural(of.accepted, 'image')} taken for classes, about {of.right:,.0f} are "
            f"right and {of.accepted - of.right:,.0f} doubtful, as the test images tell."
        )
    if of.rejected is not None and record["kept"]:
        verb = "looks" if of.rejected == 1 else "look"
        parts.append(f"{of.rejected:,} of {record['kept']:,} {verb} like no class.")
    return " ".join(parts)


def accepted_sentence(record: Record) -> str:
    """Say which share of known test images is accepted, and which was wanted."""
    test = record["test"]
    if not test or test.get("accepted") is None:
        return ""
    wanted = record.get("accept")
    named = "" if wanted is None else f" ({100 * wanted:.0f} % were asked for)"
    return f"With --reject, {test['accepted']:.1f} % of the known test images are accepted{named}."


def confusions(record: Record, most: int) -> list[tuple[str, str, int, int]]:
    """Return (class, taken for, images, of how many), the largest first."""
    found = [
        (label, answer, count, sum(answers.values()))
        for label, answers in _answers(record).items()
        for answer, count in answers.items()
        if answer != label
    ]
    return sorted(found, key=lambda one: -one[2] / one[3])[:most]


def warnings_of(history: Sequence[Record]) -> list[str]:
    """Return what a person should know of the last task, and what to try, in plain words."""
    record = history[-1]
    found = [*_of_labels(record)]
    if lacks_threshold(record):
        found.append(
            "Only one label of each class: predict --reject works, and camera images are learned "
            "from, as soon as a class has two."
        )
    if record["test"]:
        found += [*_of_accuracy(history), *_of_pseudo_labels(record), *_of_rejection(record)]
    elif record["number"] > 1:
        found.append("Nothing was tested. Give a folder of images of all classes with --test.")
    return found


def _of_labels(record: Record) -> list[str]:
    few = [label for label, count in record["labeled_by_class"].items() if count < FEW_LABELS]
    if not few:
        return []
    return [
        f"Few labels: {plural(len(few), 'class', 'classes')} had fewer than {FEW_LABELS} in this "
        f"task ({listed(few)}). Add some: twenty a class are a good start."
    ]


def _of_accuracy(history: Sequence[Record]) -> list[str]:
    record, found = history[-1], []
    test, by_class = record["test"], record["test"]["by_class"]
    by_chance = [label for label, right in by_class.items() if right <= chance(record)]
    if by_chance and len(by_class) > 1:
        found.append(f"No better than guessing: {listed(by_chance)}. {_remedy(record)}")
    worst = {label: one.lost for label, one in best_by_class(history).items() if one.lost >= LOST}
    if worst:
        names = listed(sorted(worst, key=lambda label: -worst[label]))
        found.append(
            f"Forgotten: {names} lost {LOST:.0f} points or more since the best month. "
            f"{_remedy(record)}"
        )
    nearest = test.get("nearest_mean")
    if nearest is not None and test["all"] is not None and test["all"] < nearest - BEHIND:
        found.append(
            f"The nearest class mean would be better by {nearest - test['all']:.1f} points: the "
            "camera's images did harm. Try other ones, or learn without."
        )
    small = [label for label, answers in _answers(record).items() if _total(answers) < FEW_TESTED]
    if small:
        found.append(
            f"Tested on fewer than {FEW_TESTED} images: {listed(small)}. Such figures are rough."
        )
    return found


def _of_pseudo_labels(record: Record) -> list[str]:
    precision = precision_by_answer(record)
    doubtful = {
        label: count
        for label, count in record["accepted_by_class"].items()
        if precision and precision.get(label, 0.0) < DOUBTFUL
    }
    if not doubtful:
        return []
    count = plural(sum(doubtful.values()), "camera image was", "camera images were")
    return [
        f"Doubtful: {count} taken for {listed(list(doubtful))}, and such answers are wrong more "
        "often than right. Look at some of them (distillmatch review), or add labels of these "
        "classes."
    ]


def _of_rejection(record: Record) -> list[str]:
    accepted, wanted = record["test"].get("accepted"), record.get("accept")
    if accepted is None or wanted is None or accepted >= 100 * wanted - BELOW:
        return []
    return [
        f"Only {one_decimal(accepted)} % of known test images are accepted, not {100 * wanted:.0f} "
        "%: the test images look unlike the labeled ones. Add labels from where you test."
    ]


def _remedy(record: Record) -> str:
    """Return what to try where classes are not recognized."""
    if "statistics_bytes" in record:
        return f"Try {MORE_LABELS}, or camera images that show them."
    more = "" if record["stored"] else ", stored images in a new learner (--coreset 75)"
    return (
        f"Try {MORE_LABELS}{more}, or a pretrained network: pip install 'distillmatch[pretrained]'."
    )


def _answers(record: Record) -> dict[str, dict[str, int]]:
    test = record["test"]
    found: dict[str, dict[str, int]] = test.get("answers", {}) if test else {}
    return found


def _total(answers: dict[str, int]) -> int:
    return sum(answers.values())
