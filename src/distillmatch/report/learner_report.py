"""Words and tables on a learner, for the terminal and its page.

A record is `distillmatch.learner.schema.Record`, and a summary what `read_state` returns.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from distillmatch.files import size_shown
from distillmatch.sources.walk import shown
from distillmatch.terminal import make_table

Record = Mapping[str, Any]

FIGURES = {
    "labels": "labeled images",
    "seen": "unlabeled images seen",
    "taken": "images taken for known classes",
    "all": "% accuracy, all classes",
    "older": "% accuracy, older classes",
    "new": "% accuracy, new classes",
    "lost": "points forgotten",
    "time": "of learning",
}
"""Figures of a task: columns of the history with their meaning."""
MEASURED_ON = {"test": "of the test folder", "held-out": "held out of the labeled ones"}
MANY = 6
ROUNDING = 0.05
"""What is shown as 0.0."""
FEW = 10
"""Labels of a class, or test images, of which there should be more."""
DOUBTFUL = 0.5
"""Share of right answers for a class below which images taken for it are doubtful."""
LOST, BEHIND, BELOW = 10.0, 2.0, 10.0
"""Points of accuracy lost, behind the nearest class mean, and of acceptance: worth a warning."""


class Best(NamedTuple):
    """How well a class was recognized at best, after which task, and now, in percent."""

    best: float
    task: str
    now: float


def best_by_class(history: Sequence[Record]) -> dict[str, Best]:
    """Return, for each class that the last task was tested on, its best accuracy ever."""
    tests = [(one["test"]["by_class"], shown(one["name"])) for one in history if one["test"]]
    found: dict[str, Best] = {}
    for label, now in _test(history[-1]).get("by_class", {}).items():
        scores = [(by_class[label], name) for by_class, name in tests if label in by_class]
        found[label] = Best(*max(scores, key=lambda pair: pair[0]), now)
    return found


def answers_of(record: Record) -> Mapping[str, Mapping[str, int]]:
    """Return what the test images of each class were taken for."""
    found: Mapping[str, Mapping[str, int]] = _test(record).get("answers", {})
    return found


def confusions(record: Record) -> list[tuple[str, str, int, int]]:
    """Return (class, taken for, images, of how many), the largest share first."""
    found = [
        (label, answer, count, sum(answers.values()))
        for label, answers in answers_of(record).items()
        for answer, count in answers.items()
        if answer != label
    ]
    return sorted(found, key=lambda one: -one[2] / one[3])


def precision_by_answer(record: Record) -> dict[str, float]:
    """Return the share of test images answered with a class that were of it."""
    answered: Counter[str] = Counter()
    for answers in answers_of(record).values():
        answered.update(answers)
    found = answers_of(record)
    return {one: found.get(one, {}).get(one, 0) / count for one, count in answered.items() if count}


def lead_sentence(summary: Record) -> str:
    """Return how the learner stands."""
    record, known = summary["history"][-1], plural(len(summary["labels"]), "class", "classes")
    said, test = (
        f"After the task “{shown(record['name'])}” the learner knows {known}",
        _test(record),
    )
    if test.get("all") is None:
        return f"{said}. There was nothing to test it with."
    return f"{said}; {test['all']:.0f} % of {plural(test['images'], 'test image')} are recognized."


def accuracy_sentences(history: Sequence[Record]) -> list[str]:
    """Compare the accuracy with guessing, the nearest class mean, and what it was before."""
    record, test = history[-1], _test(history[-1])
    found = fine_tuning_sentences(record)
    if not test:
        return found
    if test["all"] is not None:
        mean = test.get("nearest_mean")
        mean = "" if mean is None else f", the nearest class mean on the same features {mean:.1f} %"
        found.append(
            f"Accuracy is {test['all']:.1f} %; guessing would reach {_chance(record):.1f} %{mean}."
        )
    if record["number"] > 1:
        found.append(_forgotten_sentence(test["forgotten"], test["old_before"]))
    if test.get("accepted") is not None:
        wanted = record.get("accept")
        asked = "" if wanted is None else f" ({100 * wanted:.0f} % were asked for)"
        accepted = f"{test['accepted']:.1f} % of the known test images are accepted"
        found.append(f"With --reject, {accepted}{asked}.")
    if test["images"]:
        where = MEASURED_ON.get(test["on"], test["on"])
        found.append(f"Measured on {plural(test['images'], 'image')} {where}.")
    else:
        found.append("The test folder has no image of a learned class.")
    if test["unknown"]:
        found.append(f"Left out, because never learned: {listed(test['unknown'])}.")
    return found


def fine_tuning_sentences(record: Record) -> list[str]:
    """Return whether a tuned copy of the network is used, with both accuracies."""
    tuning = record.get("fine_tuned")
    if not tuning:
        return []
    if tuning["tuned"] is None:
        lacking = f"only {plural(tuning['past'], 'camera image')} held out show classes of the past"
        lacking = lacking if tuning["labeled"] else "a class needs four labels for that"
        return [f"The network was not tuned, since nothing could tell if it helps: {lacking}."]
    used = "is used beside the frozen one" if tuning["kept"] else "is not used"
    past = ""
    if tuning["past"] and tuning["same"] is not None:
        past = (
            f"; of {plural(tuning['past'], 'camera image')} held out that look like past classes "
        )
        past += f"{tuning['same']:.1f} % stay so"
    return [
        f"A copy of the network was tuned and {used}: of {plural(tuning['labeled'], 'image')} with "
        f"labels held out the frozen network alone recognizes {tuning['frozen']:.1f} %, with the "
        f"copy {tuning['tuned']:.1f} %{past}."
    ]


def _forgotten_sentence(lost: float | None, before: float | None) -> str:
    then = "" if before is None else f", which was {before:.1f} % before"
    if lost is None:
        return "What was forgotten is not known: no old images came to test with."
    if lost >= ROUNDING:
        return f"Forgotten: {lost:.1f} points of the accuracy on older classes{then}."
    rose = "is what it was before" if lost > -ROUNDING else f"rose by {-lost:.1f} points{then}"
    return f"Nothing was forgotten: accuracy on older classes {rose}."


def environment_sentences(record: Record) -> list[str]:
    """Return what unlabeled images there were, what became of them, and what was left out."""
    found = ["No unlabeled images were found."]
    if record["seen"]:
        read = f", {record['kept']:,} of them read" if record["kept"] < record["seen"] else ""
        read += f" ({record['unreadable']:,} could not be)" if record["unreadable"] else ""
        seen = f"{plural(record['seen'], 'unlabeled image')} seen{read}, none stored"
        found = [f"{seen}; {_use_of_unlabeled(record)}."]
    if record["accepted"] and (precision := precision_by_answer(record)):
        taken = record["accepted_by_class"].items()
        right = sum(count * precision.get(label, 0.0) for label, count in taken)
        found.append(
            f"Of the {plural(record['accepted'], 'image')} taken for classes, about {right:,.0f} "
            f"are right and {record['accepted'] - right:,.0f} doubtful, as the test images tell."
        )
    if record.get("rejected") is not None and record["kept"]:
        verb = "looks" if record["rejected"] == 1 else "look"
        found.append(f"{record['rejected']:,} of {record['kept']:,} {verb} like no class.")
    left_out = record.get("left_out") or {}
    parts = [
        plural(count, one, many)
        for count, one, many in (
            (left_out.get("labeled"), "file in the labeled folder", "files in the labeled folder"),
            (left_out.get("test"), "file in the test folder", "files in the test folder"),
            (record["unreadable"], "unlabeled file", "unlabeled files"),
            (left_out.get("hidden"), "hidden entry", "hidden entries"),
        )
        if count
    ]
    if parts:
        named = "; ".join(shown(said) for said in left_out.get("for_example", []))
        named = f" For example: {named}." if named else ""
        unread = f"Left out, because they are no images that can be read: {', '.join(parts)}."
        found.append(unread + named)
    return found


def _use_of_unlabeled(record: Record) -> str:
    """Return whether unlabeled images were taken for known classes, and else their use."""
    accepted, refined = record["accepted"], _has_statistics(record)
    if accepted:
        count = sum(number > 0 for number in record["accepted_by_class"].values())
        did = "refined" if refined else "reminded the learner of"
        was = plural(accepted, "was", "were")
        return f"{was} taken as familiar and {did} {plural(count, 'class', 'classes')}"
    if refined and _lacks_threshold(record):
        return "which of them are familiar is not known yet"
    if refined:
        return "none looked familiar enough to learn from"
    if accepted is None and record.get("unlabeled_in"):
        networks = " and ".join(f"the {name}" for name in record["unlabeled_in"])
        return f"{networks} learned from them, but none was taken for a class"
    if record["number"] == 1:
        return "in a first task there is no class to recognize yet"
    unused = "the method did not use them"
    return unused if accepted is None else "none was taken for a class known before"


def warnings_of(history: Sequence[Record]) -> list[str]:
    """Return what a person should know of the last task, and what to try, in plain words."""
    record, test, found = history[-1], _test(history[-1]), []
    few = [label for label, count in record["labeled_by_class"].items() if count < FEW]
    if few:
        found.append(
            f"Few labels: {plural(len(few), 'class', 'classes')} had fewer than {FEW} in this "
            f"task ({listed(few)}). Add some: twenty a class are a good start."
        )
    if _lacks_threshold(record):
        found.append(
            "Only one label of each class: predict --reject works, and camera images are learned "
            "from, as soon as a class has two."
        )
    if not test:
        if record["number"] > 1:
            found.append("Nothing was tested. Give a folder of images of all classes with --test.")
        return found
    remedy = "Try more labels of them"
    if "statistics_bytes" in record:
        remedy += ", or camera images that show them."
    else:
        remedy += "" if record["stored"] else ", stored images in a new learner (--coreset 75)"
        remedy += ", or a pretrained network: pip install 'distillmatch[pretrained]'."
    by_class, chance = test["by_class"], _chance(record)
    by_chance = [label for label, right in by_class.items() if right <= chance]
    if by_chance and len(by_class) > 1:
        found.append(f"No better than guessing: {listed(by_chance)}. {remedy}")
    lost = {label: one.best - one.now for label, one in best_by_class(history).items()}
    if worst := sorted(
        (label for label in lost if lost[label] >= LOST), key=lambda one: -lost[one]
    ):
        since = f"lost {LOST:.0f} points or more since the best month"
        found.append(f"Forgotten: {listed(worst)} {since}. {remedy}")
    nearest, right = test.get("nearest_mean"), test["all"]
    if nearest is not None and right is not None and right < nearest - BEHIND:
        found.append(
            f"The nearest class mean would be better by {nearest - right:.1f} points: the "
            "camera's images did harm. Try other ones, or learn without."
        )
    precision, taken = precision_by_answer(record), record["accepted_by_class"]
    doubtful = [label for label in taken if precision.get(label, 0.0) < DOUBTFUL]
    if precision and doubtful:
        number = sum(taken[label] for label in doubtful)
        found.append(
            f"Doubtful: {plural(number, 'camera image was', 'camera images were')} taken for "
            f"{listed(doubtful)}, and such answers are wrong more often than right. Look at some "
            "of them (distillmatch review), or add labels of these classes."
        )
    accepted, wanted = test.get("accepted"), record.get("accept")
    if accepted is not None and wanted is not None and accepted < 100 * wanted - BELOW:
        found.append(
            f"Only {accepted:.1f} % of known test images are accepted, not {100 * wanted:.0f} %: "
            "the test images look unlike the labeled ones. Add labels from where you test."
        )
    return found


def figures_of(record: Record) -> tuple[str, ...]:
    """Return the figures of a task, in the order of `FIGURES`."""
    test = map(_test(record).get, ("all", "old", "new", "forgotten"))
    return (
        f"{record['labeled']:,}",
        f"{record['seen']:,}",
        "–" if record["accepted"] is None else f"{record['accepted']:,}",
        *("–" if value is None else f"{value:.1f}" for value in test),
        f"{sum(record['seconds'].values()):.0f} s",
    )


def classes_added(record: Record) -> str:
    """Return which classes a task added, and of which it brought more."""
    more = f"; more of {listed(record['returned'])}" if record["returned"] else ""
    return (listed(record["added"]) or "none") + more


def history_table(history: Sequence[Record]) -> Table:
    """Return the tasks as a table for the terminal."""
    title = "Tasks so far; all, older, new: accuracy in percent; lost: points forgotten"
    heads = ("task", *(f">{name}" for name in ("adds", *FIGURES)))
    rows = [(shown(one["name"]), f"+{len(one['added'])}", *figures_of(one)) for one in history]
    table = make_table(heads, rows, title=title)
    table.columns[0].min_width = 6
    for column in table.columns[1:]:
        column.no_wrap = True
    return table


def state_table(summary: Record) -> Table:
    """Return what a learner is, as a table for the terminal."""
    rows = [(name, shown(said)) for name, said in state_rows(summary)]
    table = make_table(("", ""), rows, title="Learner", show_header=False)
    table.columns[0].no_wrap = True
    return table


def state_rows(summary: Record) -> list[tuple[str, str]]:
    """Return what a learner is made of, what it keeps, and how it stands."""
    settings, history, record = summary["settings"], summary["history"], summary["history"][-1]
    labels = ", ".join(shown(str(one)) for one in summary["labels"])
    rows = [
        ("classes", f"{len(summary['labels'])}: {labels}"),
        ("tasks", f"{len(history)}: {', '.join(shown(one['name']) for one in history)}"),
        ("method", str(settings["method"])),
        ("network", str(settings["network"])),
        ("images", f"{summary['image_size']} px square"),
        ("on disk", size_shown(summary["bytes"])),
    ]
    weights, stored = size_shown(record["weights_bytes"]), size_shown(record["stored_bytes"])
    if _has_statistics(record):
        copy = (record.get("fine_tuned") or {}).get("bytes")
        tuned = f", and of a tuned copy {size_shown(copy)}" if copy else ""
        statistics = f"{size_shown(record['statistics_bytes'])}, of the classes' features"
        rows += [("weights", f"{weights}, frozen{tuned}"), ("statistics", statistics)]
        rows += [("fine-tuning", said) for said in fine_tuning_sentences(record)]
        rows.append(("photographs", "none, but a few small examples for the report"))
    else:
        images = f"{record['stored']:,} ({stored})" if record["stored"] else "none"
        rows.append(("epochs a task", f"{settings['epochs']:,}"))
        rows += [("networks", weights), ("stored images", images)]
    rows += [(name, f"{value:.4g}") for name, value in record["values"].items()]
    if summary["unfinished"]:
        rows.append(("unfinished", "a task was interrupted; the same command continues it"))
    if summary["busy"]:
        rows.append(("busy", "another process works with it now"))
    return rows


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(labels: Iterable[Any]) -> str:
    """Return labels with commas, the last ones as a count where there are many."""
    names = [shown(str(label)) for label in labels]
    if len(names) > MANY:
        names = [*names[: MANY - 1], f"{len(names) - MANY + 1} more"]
    return ", ".join(names)


def _test(record: Record) -> Mapping[str, Any]:
    return record["test"] or {}


def _chance(record: Record) -> float:
    """Return the accuracy of guessing, in percent."""
    return 100 / max(1, len(record["test"]["by_class"]))


def _has_statistics(record: Record) -> bool:
    """Return whether statistics of features were learned, and no network trained."""
    return record.get("statistics_bytes") is not None


def _lacks_threshold(record: Record) -> bool:
    """Return whether no class had a second label, by which familiar images are known."""
    return _has_statistics(record) and record.get("known_threshold", 0.0) is None
