"""What is said of a learner after a task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_world import (
    BOAT,
    CLOWNFISH,
    GOLDFISH,
    SHARK,
    TROUT,
    images_of,
    small_learner,
    task,
)

from distillmatch import ContinualLearner
from distillmatch.engine.outcome import Judgement
from distillmatch.learner import read_state
from distillmatch.learner.recognition import Sample, choose_examples
from distillmatch.report.learner_page import write_learner_page
from distillmatch.report.learner_text import (
    FIGURES,
    environment_sentence,
    figures_of,
    history_table,
)

EXAMPLES = [
    # what each of eight images was taken for, their scores, and those shown of them, in order
    ("aabbaacc", (5, 9, 7, 8, 2, 6, 1, 3), [1, 3, 7, 2, 5, 6]),
    ("aabbaacc", None, [0, 2, 6, 1, 3, 7]),
    ("a-a-b---", (1, 9, 2, 9, 3, 9, 9, 9), [4, 2, 0]),
]
ENVIRONMENT = images_of(GOLDFISH, CLOWNFISH, TROUT, SHARK, count=4, first=40)
TAKEN = FIGURES.index("taken")
BOTH = "the teacher and the classifier learned from them, but none was taken for a class."
NOBODY_JUDGED = [
    ("base", {}, "the method did not use them."),
    ("e2e", {}, "the classifier learned from them, but none was taken for a class."),
    ("dr", {}, BOTH),
    ("gd", {}, BOTH),
    ("dm", {"pseudo_labels": False}, "the classifier learned from them, but none was taken"),
]


@pytest.mark.parametrize(("taken", "scores", "shown"), EXAMPLES)
def test_examples_are_the_most_familiar_images_of_each_class_in_turn(
    taken: str, scores: tuple[float, ...] | None, shown: list[int]
) -> None:
    """Six at most; what was not accepted, "-", is not among them."""
    images = np.arange(8, dtype=np.uint8).repeat(12).reshape(8, 2, 2, 3)
    slots = np.array(["abc-".index(one) % 3 for one in taken])
    accepted = np.array([one != "-" for one in taken])
    judgement = Judgement(slots, accepted, np.zeros(8, np.int64))
    of_scores = None if scores is None else np.array(scores, np.float32)
    sample = Sample(np.arange(8), of_scores)
    found = choose_examples(sample, judgement, ["a", "b", "c"], images, most=6)
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
    assert first["accepted"] is None and "familiar" not in environment_sentence(first)
    said = environment_sentence(second)
    assert said.startswith("16 unlabel") and "images seen, none kept to learn from; " in said
    assert sentence in said and "familiar" not in said
    assert (second["accepted"], second["accepted_by_class"]) == (None, {})
    assert figures_of(second)[TAKEN] == "–"
    learner.save(tmp_path)
    loaded = ContinualLearner.load(tmp_path)
    assert loaded.explain().accepted is None
    page = write_learner_page(tmp_path, read_state(tmp_path), loaded.explain())
    assert (
        sentence in page.read_text() and "<b>–</b><span>images taken for known" in page.read_text()
    )


def test_what_was_judged_is_counted() -> None:
    learner = small_learner("worldmatch", epochs=1)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=3), unlabeled=ENVIRONMENT)
    assert "in a first task there is no class" in environment_sentence(learner.history_[0])
    learner.partial_fit(*task(BOAT, count=2), unlabeled=ENVIRONMENT)
    record = learner.history_[-1]
    assert record["accepted"] == 16 and figures_of(record)[TAKEN] == "16"
    expected = "; 16 were taken as familiar and reminded the learner of "
    assert expected in environment_sentence(record)
    refused = {**record, "accepted": 0, "accepted_by_class": {}}
    assert "; none was taken for a class known before." in environment_sentence(refused)
    assert figures_of(refused)[TAKEN] == "0"
    learner.partial_fit(*task(TROUT, count=2))
    assert "images were found." in environment_sentence(learner.history_[-1])


def test_images_that_could_not_be_read_taught_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    learner = small_learner("gd", epochs=1)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=3))
    learner.partial_fit(*task(BOAT, count=2), unlabeled=tmp_path)
    said = environment_sentence(learner.history_[-1])
    assert "image seen, 0 of them read (1 could not be), none kept to learn from; " in said
    assert said.endswith("the method did not use them.")


def test_a_record_from_before_trainings_were_noted_is_still_read() -> None:
    learner = small_learner("gd", epochs=1)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=3), unlabeled=ENVIRONMENT)
    learner.partial_fit(*task(BOAT, count=2), unlabeled=ENVIRONMENT)
    old = {**learner.history_[-1], "accepted": 0}
    del old["unlabeled_in"]
    assert environment_sentence(old).endswith("; none was taken for a class known before.")
    assert figures_of(old)[TAKEN] == "0"
    assert history_table([old, *learner.history_]).row_count == 3
