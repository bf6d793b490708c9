"""Labels in folders: `learn` takes them, nothing escapes, everything can be undone."""

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
from review_client import numbers_of, start_review, write_camera

from distillmatch.errors import DiskError, LearnerError
from distillmatch.learner.labels import class_folders
from distillmatch.serve.app import Review
from distillmatch.serve.labels import SKIPPED, class_name


@pytest.fixture
def review(tmp_path: Path) -> Review:
    camera = write_camera(tmp_path / "camera", {"red": 4, "green": 3})
    return start_review(camera, tmp_path / "labels")


def reopened(review: Review) -> Review:
    camera = Path(review.camera.shots[0].path).parent
    return start_review(camera, review.labels.folder)


def contents(review: Review) -> dict[bytes, str]:
    """Return the label of each file's content, as `learn` reads the folder."""
    labeled = class_folders(review.labels.folder)
    assert not labeled.problems and not labeled.hidden
    pairs = zip(labeled.items, labeled.labels, strict=True)
    return {file.open().read(): str(label) for file, label in pairs}


def content(review: Review, number: int) -> bytes:
    return Path(review.camera.shots[number].path).read_bytes()


@pytest.mark.parametrize("links", [True, False])
def test_learn_reads_what_was_labeled(
    review: Review, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    before = [content(review, number) for number in range(7)]
    reds, greens = numbers_of(review, "red"), numbers_of(review, "green")
    review.give(reds, "red")
    review.give(greens, "lime tree")
    review.give(greens[:1], SKIPPED)
    review.give(reds[:1], None)
    expected = {content(review, n): "red" for n in reds[1:]}
    expected |= {content(review, n): "lime tree" for n in greens[1:]}
    assert contents(review) == expected
    assert [content(review, number) for number in range(7)] == before
    for label in ("red", "lime tree"):
        review.give(reds + greens, label)
        assert contents(review) == dict.fromkeys(before, label), "no folder of a class is empty"


def test_any_actions_are_undone_one_by_one_and_found_when_reopened(review: Review) -> None:
    """Compare with a plain dictionary for each moment."""
    draw = random.Random(1)
    moments: list[dict[int, str]] = [{}]
    labels: list[str | None] = ["red", "blue", "new", SKIPPED, None]
    for _ in range(60):
        if draw.random() < 0.4:
            changed = review.undo()["changed"]
            assert bool(changed) == (len(moments) > 1)
            moments = moments[:-1] or [{}]
        else:
            label, numbers = draw.choice(labels), draw.sample(range(7), draw.randint(1, 4))
            after = {n: old for n, old in moments[-1].items() if n not in numbers}
            after |= {} if label is None else dict.fromkeys(numbers, label)
            if review.give(numbers, label)["changed"]:
                moments.append(after)
            assert after == moments[-1]
        for one in (review, reopened(review)):
            found = {n: one.labels.of(n) for n in range(7)}
            assert {n: label for n, label in found.items() if label is not None} == moments[-1]
    assert len(moments) > 3


@pytest.mark.parametrize(
    "name",
    [
        *("..", ".", ".git", "a/b", "/etc", "..\\x", "a\\b", "\x00", "a\nb/..", "unknown", " "),
        *("x" * 201, "é" * 101, "\u202ered", "\udc80", "Thumbs.db", "../red", "a\x1b[31m"),
    ],
)
def test_names_that_are_no_folder_are_refused(review: Review, name: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LearnerError):
        review.labels.give([0], name)
    assert sorted(tmp_path.rglob("*")) == before


def test_links_in_the_folder_lead_nowhere(review: Review, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    review.labels.folder.mkdir()
    (review.labels.folder / "red").symlink_to(outside)
    with pytest.raises(LearnerError, match="a link"):
        review.give([0], "red")
    assert not list(outside.iterdir())


def test_files_moved_by_hand_keep_their_new_label(review: Review) -> None:
    review.give([0, 1, 2], "red")
    folder = review.labels.folder
    (folder / "oak").mkdir()
    (moved, removed, _) = sorted((folder / "red").iterdir())
    moved.rename(folder / "oak" / moved.name)
    removed.unlink()
    again = reopened(review)
    found = [again.labels.of(number) for number in range(7)]
    assert sorted(filter(None, found)) == ["oak", "red"]
    assert "oak" in again.labels.classes


def test_a_full_disk_is_reported_and_what_was_done_can_be_undone(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, calls = os.link, []

    def fill(source: str, target: Path) -> None:
        calls.append(target)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(source, target)

    monkeypatch.setattr(os, "link", fill)
    monkeypatch.setattr(shutil, "copyfileobj", lambda *_: fill("", Path()))
    with pytest.raises(DiskError, match="no space left"):
        review.give([0, 1, 2, 3], "red")
    assert review.labels.labeled == 2
    assert len(review.undo()["changed"]) == 2
    assert review.labels.labeled == 0


def test_a_class_has_one_folder_however_it_is_typed() -> None:
    known = ["Red Fox", "straße", "double  space"]
    assert class_name(" red   fox ", known) == "Red Fox"
    assert class_name("STRASSE", known) == "straße"
    assert class_name("double  space", known) == "double  space"
    assert class_name("  a   b ", known) == "a b"
    assert class_name("e\u0301", known) == "é"
