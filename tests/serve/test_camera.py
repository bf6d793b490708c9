"""Camera images: which files are looked at, once each, and what is said of the others."""

import shutil
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from review_client import ColorLearner, start_review, write_camera

from distillmatch import ContinualLearner
from distillmatch.errors import LearnerError
from distillmatch.serve import camera as of_camera
from distillmatch.serve.camera import Camera, describe, look


def test_each_content_is_judged_once_and_other_files_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_camera, "BATCH", 4)
    camera = write_camera(tmp_path / "camera", {"red": 5, "green": 5})
    shutil.copytree(camera, camera / "later")
    (camera / "notes.txt").write_text("no image")
    (camera / ".DS_Store").write_text("ignored")
    learner = ColorLearner()
    found = look(cast(ContinualLearner, learner), [camera, camera / "later"], tmp_path / "out")
    assert learner.seen == len(found.shots) == len(found.judged.probabilities) == 10
    assert found.copies == 10
    (problem,) = found.problems
    assert problem.endswith("notes.txt: not an image in a format that can be read")
    best = found.judged.probabilities.argmax(axis=1)
    for shot, number in zip(found.shots, best, strict=True):
        assert shot.name.startswith(learner.classes_[number])


def test_labels_inside_the_camera_folder_are_not_camera_images(tmp_path: Path) -> None:
    camera = write_camera(tmp_path / "camera", {"red": 3})
    for _ in range(2):
        review = start_review(camera, camera / "labels")
        assert [shot.name for shot in review.camera.shots] == [f"red-{n}.png" for n in range(3)]
        review.give([0, 1, 2], "red")
    with pytest.raises(LearnerError, match="apart"):
        start_review(camera, tmp_path)


def look_at(*places: Path) -> Camera:
    return look(cast(ContinualLearner, ColorLearner()), places, Path("nowhere"))


def test_links_do_not_lead_out_of_the_places_given(tmp_path: Path) -> None:
    camera = write_camera(tmp_path / "camera", {"red": 2})
    other = write_camera(tmp_path / "other", {"green": 2})
    (camera / "one.png").symlink_to(other / "green-0.png")
    (camera / "all").symlink_to(other)
    (camera / "same.png").symlink_to(camera / "red-0.png")
    found = look_at(camera)
    assert {shot.name for shot in found.shots} == {"red-0.png", "red-1.png"}
    assert len(found.problems) == 3 and all("leads out" in one for one in found.problems)
    assert len(look_at(camera, other).shots) == 4
    assert len(look_at(camera / "one.png").shots) == 1, "it was named"
    found = look_at(camera / "r*.png", camera / "red-1.png", other / "green-0.png")
    assert [shot.name for shot in found.shots] == ["red-0.png", "red-1.png", "green-0.png"]


@pytest.mark.parametrize("side", [8, 20])
def test_descriptors_are_means_of_squares(side: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
    cell = side // 8
    expected = [
        images[0, y * cell : (y + 1) * cell, x * cell : (x + 1) * cell, color].mean() / 255
        for y in range(8)
        for x in range(8)
        for color in range(3)
    ]
    np.testing.assert_allclose(describe(images)[0], expected, atol=1e-6)
    features = np.array([[3, 4], [0, 0], [30, 40]], np.float32)
    directions = np.array([[0.6, 0.8], [0, 0], [0.6, 0.8]])
    np.testing.assert_allclose(describe(features), directions, atol=1e-6)
