"""What is said of a learner after a task."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_world import (
    BOAT,
    CLOWNFISH,
    GOLDFISH,
    SHARK,
    SMALL,
    TROUT,
    images_of,
    small_learner,
    task,
    write_classes,
)

from distillmatch import ContinualLearner
from distillmatch.engine.outcome import Judgement
from distillmatch.learner import learn, read_state
from distillmatch.learner.recognition import choose_examples
from distillmatch.report.learner_report import (
    FIGURES,
    accuracy_sentences,
    best_by_class,
    confusions,
    environment_sentences,
    figures_of,
    history_table,
    warnings_of,
)
from distillmatch.report.pages import write_learner_page

EXAMPLES = [
    # what each of eight images was taken for, their scores, and those shown of them, in order
    ("aabbaacc", (5, 9, 7, 8, 2, 6, 1, 3), [1, 3, 7, 2, 5, 6]),
    ("aabbaacc", None, [0, 2, 6, 1, 3, 7]),
    ("a-a-b---", (1, 9, 2, 9, 3, 9, 9, 9), [4, 2, 0]),
]
ENVIRONMENT = images_of(GOLDFISH, CLOWNFISH, TROUT, SHARK, count=4, first=40)
TAKEN = [*FIGURES].index("taken")
SETTINGS = {**SMALL, "method": "base"}
BOTH = "the teacher and the classifier learned from them, but none was taken for a class."
NOBODY_JUDGED = [
    ("base", {}, "the method did not use them."),
    ("e2e", {}, "the classifier learned from them, but none was taken for a class."),
    ("gd", {}, BOTH),
    ("dm", {"pseudo_labels": False}, "the classifier learned from them, but none was taken"),
]


def environment_said(record: dict[str, Any]) -> str:
    return " ".join(environment_sentences(record))


@pytest.mark.parametrize(("taken", "scores", "shown"), EXAMPLES)
def test_examples_are_the_most_familiar_images_of_each_class_in_turn(
    taken: str, scores: tuple[float, ...] | None, shown: list[int]
) -> None:
    """Six at most; what was not accepted, "-", is not among them."""
    images = np.arange(8, dtype=np.uint8).repeat(12).reshape(8, 2, 2, 3)
    slots = np.array(["abc-".index(one) % 3 for one in taken])
    accepted = np.array([one != "-" for one in taken])
    judgement = Judgement(slots, accepted)
    of_scores = None if scores is None else np.array(scores, np.float32)
    found = choose_examples(np.arange(8), of_scores, judgement, [*"abc"], images.__getitem__, 6)
    assert [int(one.image[0, 0, 0]) for one in found] == shown
    assert [one.label for one in found] == [taken[place] for place in shown]
    assert [one.score for one in found] == [scores and scores[place] for place in shown]


@pytest.mark.parametrize(("method", "options", "sentence"), NOBODY_JUDGED)
def test_what_a_method_that_judges_nothing_did_with_unlabeled_images_is_said(
    method: str, options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    learner = small_learner(method, epochs=1, options=options)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=3), unlabeled=ENVIRONMENT)
    learner.partial_fit(*task(BOAT, count=2), unlabeled=ENVIRONMENT)
    first, second = learner.history_
    assert first["accepted"] is None and "familiar" not in environment_said(first)
    said = environment_said(second)
    assert said.startswith("16 unlabel") and "images seen, none stored; " in said
    assert sentence in said and "familiar" not in said
    assert (second["accepted"], second["accepted_by_class"]) == (None, {})
    assert figures_of(second)[TAKEN] == "–"
    learner.save(tmp_path)
    loaded = ContinualLearner.load(tmp_path)
    assert loaded.explain().accepted is None
    page = write_learner_page(tmp_path, read_state(tmp_path), loaded.explain()).read_text()
    assert sentence in page and "</b><span>images taken for known" not in page


def test_what_was_judged_is_counted() -> None:
    learner = small_learner("worldmatch", epochs=1)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=3), unlabeled=ENVIRONMENT)
    assert "in a first task there is no class" in environment_said(learner.history_[0])
    learner.partial_fit(*task(BOAT, count=2), unlabeled=ENVIRONMENT)
    record = learner.history_[-1]
    assert record["accepted"] == 16 and figures_of(record)[TAKEN] == "16"
    expected = "; 16 were taken as familiar and reminded the learner of "
    assert expected in environment_said(record)
    refused = {**record, "accepted": 0, "accepted_by_class": {}}
    assert "; none was taken for a class known before." in environment_said(refused)
    assert figures_of(refused)[TAKEN] == "0"
    learner.partial_fit(*task(TROUT, count=2))
    assert "images were found." in environment_said(learner.history_[-1])


def test_images_that_could_not_be_read_taught_nothing_and_old_records_are_read(
    tmp_path: Path,
) -> None:
    """Old records lack the trainings that unlabeled images were used in."""
    (tmp_path / "broken.png").write_bytes(b"no image")
    learner = small_learner("gd", epochs=1)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=3))
    learner.partial_fit(*task(BOAT, count=2), unlabeled=tmp_path)
    said = environment_said(learner.history_[-1])
    assert "image seen, 0 of them read (1 could not be), none stored; " in said
    assert "the method did not use them." in said
    old = {**learner.history_[-1], "accepted": 0}
    del old["unlabeled_in"]
    assert "; none was taken for a class known before." in environment_said(old)
    assert figures_of(old)[TAKEN] == "0"
    assert history_table([old, *learner.history_]).row_count == 3


def record_of(number: int, by_class: dict[str, float], **others: Any) -> dict[str, Any]:
    """Return a record of a task after which each class was recognized so well."""
    test = {
        "on": "test",
        "images": 10 * len(by_class),
        "all": sum(by_class.values()) / len(by_class),
        "by_class": by_class,
        "unknown": {},
        "answers": {},
        **dict.fromkeys(("old", "new", "old_before", "forgotten")),
        **others.pop("test", {}),
    }
    record = {"name": f"month {number}", "number": number, "test": test, "stored": 0, "seen": 0}
    record |= {"accepted": None, "accepted_by_class": {}, "labeled_by_class": {"a": 20}}
    return record | others


def test_each_class_is_compared_with_the_best_it_ever_was() -> None:
    """The third month recovers a little of what the second lost: still far from the first."""
    history = [
        record_of(1, {"a": 90.0, "b": 80.0}),
        record_of(2, {"a": 20.0, "b": 85.0, "c": 70.0}),
        record_of(3, {"a": 30.0, "b": 82.0, "c": 70.0}),
    ]
    best = best_by_class(history)
    assert best["a"] == (90.0, "month 1", 30.0) and best["b"] == (85.0, "month 2", 82.0)
    assert any("Forgotten: a lost 10 points" in one for one in warnings_of(history))


def test_accuracy_is_compared_with_guessing_and_with_the_nearest_class_mean() -> None:
    record = record_of(
        1, {"a": 90.0, "b": 50.0, "c": 20.0, "d": 100.0}, test={"nearest_mean": 70.0}
    )
    said, *_ = accuracy_sentences([record])
    assert said.startswith(
        "Accuracy is 65.0 %; guessing would reach 25.0 %, the nearest class mean"
    )
    assert said.endswith("70.0 %.")
    (by_chance, behind) = warnings_of([record])
    assert by_chance.startswith("No better than guessing: c.") and "--coreset" in by_chance
    assert "better by 5.0 points" in behind
    assert "nearest" not in " ".join(accuracy_sentences([record_of(1, {"a": 90.0})]))


def test_camera_images_taken_for_a_class_that_is_answered_wrongly_are_doubtful() -> None:
    """Of the answers a, 9 of 12 are right; of the answers b, 7 of 18, though most b are found."""
    answers = {"a": {"a": 9, "b": 11}, "b": {"b": 7, "a": 3}}
    record = record_of(2, {"a": 45.0, "b": 70.0}, test={"answers": answers}, rejected=5)
    record |= {"seen": 100, "kept": 80, "accepted": 48, "accepted_by_class": {"a": 12, "b": 36}}
    record |= {"unreadable": 20}
    said = environment_said(record)
    assert "about 23 are right and 25 doubtful" in said, "9 + 14"
    assert "5 of 80 look like no class" in said
    doubtful = [one for one in warnings_of([record]) if one.startswith("Doubtful")]
    assert len(doubtful) == 1 and "36 camera images were taken for b, " in doubtful[0]
    assert confusions(record)[:1] == [("a", "b", 11, 20)]


def test_few_labels_and_known_images_that_are_rejected_are_warned_of() -> None:
    record = record_of(1, {"a": 90.0, "b": 80.0}, test={"accepted": 60.0}, accept=0.95)
    record["labeled_by_class"] = {"a": 20, "b": 3}
    few, rejected = warnings_of([record])
    assert "Few labels: 1 class had fewer than 10 in this task (b)" in few
    assert "Only 60.0 % of known test images are accepted, not 95 %" in rejected
    near = record_of(1, {"a": 90.0, "b": 80.0}, test={"accepted": 90.0}, accept=0.95)
    assert warnings_of([near]) == []


def test_a_page_shows_a_learner_as_it_is_measured(tmp_path: Path) -> None:
    """From folders to the page: the confusions there are those of the predictions."""
    write_classes(tmp_path / "march", CLOWNFISH, GOLDFISH, count=4)
    write_classes(tmp_path / "test", CLOWNFISH, GOLDFISH, count=6, first=40)
    state = tmp_path / "state"
    record = learn(state, labeled=tmp_path / "march", test=tmp_path / "test", settings=SETTINGS)
    learner = ContinualLearner.load(state)
    for name, answers in record["test"]["answers"].items():
        guessed = learner.predict(tmp_path / "test" / name).tolist()
        assert answers == dict(Counter(guessed))
    page = write_learner_page(state, read_state(state), learner.explain()).read_text()
    assert "What to look at" in page and "Few labels: 2 classes had fewer than 10" in page
    assert page.count('<th scope="row">1 ') == 1 and "guessing would reach 50.0 %" in page
