"""Images and labels, in whatever form they are given."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_world import BOAT, GOLDFISH, images_of, small_learner, write_images
from PIL import Image

from distillmatch.errors import LearnerError
from distillmatch.learner.inputs import PixelReader, natural_side, open_images, read_all
from distillmatch.learner.labels import labeled_images
from distillmatch.sources.images import decode_image

PIXELS = images_of(GOLDFISH, BOAT, count=2)
TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


def read(given: Any, side: int = 16) -> Any:
    return read_all(open_images(given), PixelReader(side))


@pytest.mark.parametrize(
    "given",
    [
        PIXELS,
        PIXELS.astype(np.int64),
        (PIXELS / 255).astype(np.float32),
        PIXELS.transpose(0, 3, 1, 2),
        TENSOR,
        TENSOR.float() / 255,
        [torch.from_numpy(image).permute(2, 0, 1) for image in PIXELS],
        (PIXELS[0], Image.fromarray(PIXELS[1]), *PIXELS[2:]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_the_same_images_are_read_from_whatever_holds_them(given: Any) -> None:
    np.testing.assert_array_equal(read(given), PIXELS)


def test_files_are_read_by_path(tmp_path: Path) -> None:
    paths = sorted(write_images(tmp_path / "a", PIXELS).iterdir())
    named = [str(path) for path in paths]
    for given in (paths, named, np.array(named), tmp_path, [paths[0], *PIXELS[1:]]):
        np.testing.assert_array_equal(read(given), PIXELS)


def test_gray_images_get_three_equal_channels() -> None:
    gray = PIXELS[..., 0]
    for given in (gray, gray[..., None], gray[:, None], [*gray], torch.from_numpy(gray)):
        np.testing.assert_array_equal(read(given), np.repeat(gray[..., None], 3, axis=3))


def test_sizes_may_differ_and_are_fitted_as_files_are() -> None:
    wide = np.random.default_rng(1).integers(0, 256, (20, 40, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(wide).save(file, "PNG")
    expected = decode_image(file, 16)
    got = read([wide, torch.from_numpy(wide).permute(2, 0, 1), Image.fromarray(wide), PIXELS[0]])
    np.testing.assert_array_equal(got, [expected, expected, expected, PIXELS[0]])
    np.testing.assert_array_equal(read(wide[None])[0], expected)
    assert (read([Image.new("RGBA", (16, 16), (10, 20, 30, 0))]) == 255).all(), "over white"


@pytest.mark.parametrize(
    ("shape", "side"), [((50, 41, 3), 40), ((30, 33), 32), ((3000, 4000, 3), 64), ((5, 9, 3), 8)]
)
def test_the_first_image_suggests_a_size(shape: tuple[int, ...], side: int, tmp_path: Path) -> None:
    pixels = np.zeros(shape, np.uint8)
    assert natural_side(open_images([pixels])) == side
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert natural_side(open_images(tmp_path)) == side


def test_an_image_given_by_its_size_alone_is_brought_to_that_of_the_first() -> None:
    learner = small_learner(image_size=None, epochs=1)
    learner.partial_fit(np.zeros((2, 23, 30, 3), np.uint8), ["a", "b"])
    assert learner.image_size_ == 24
    assert len(learner.predict([PIXELS[0], np.zeros((90, 70), np.uint8)])) == 2
    assert learner.predict([]).shape == (0,)
    assert learner.predict_proba(PIXELS[:0]).shape == (0, 2)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (np.zeros((2, 9, 9, 4), np.uint8), r"must have the shape .* uint8 of shape \(2, 9, 9, 4\)"),
        ([np.zeros((9, 9, 2), np.uint8)], "must have the shape"),
        (np.zeros((9, 9, 3), np.uint8), "a single image goes in a list"),
        (np.zeros((4, 7), np.uint8), "name network 'identity'"),
        ([np.zeros(7, np.uint8)], "must have the shape"),
        (np.zeros((2, 0, 9, 3), np.uint8), "must have the shape"),
        (np.full((1, 9, 9, 3), 1.5), "floats from 0 to 1 .* values from 1.5 to 1.5"),
        (np.full((1, 9, 9, 3), -0.5), "not normalized"),
        (np.full((1, 9, 9, 3), np.nan), "values from nan"),
        (np.full((1, 9, 9, 3), 256), "bytes from 0 to 255"),
        (np.zeros((1, 9, 9, 3), bool), "this is bool"),
        (7, "not an int"),
        ([7], "the list has an int"),
        ("no such place", "found nothing"),
        (["no such file.png"], "no such file.png: No such file"),
        (["a\0b"], "a.b: no file can have this name"),
    ],
)
def test_what_is_no_image_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(LearnerError, match=sentence):
        read(given)


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        (PIXELS[:2], ["a"], "2 images, but 1 labels"),
        (PIXELS[:2], None, "labels must be given"),
        (PIXELS[:0], [], "at least one"),
        (PIXELS[:2], [1, "a"], "'a' meets 1"),
        (PIXELS[:2], [["a"], ["b"]], "one label an image"),
        (PIXELS[:2], ["a", "unknown"], "may be called 'unknown'"),
        *((PIXELS[:2], [1, bad], "labels must be text") for bad in (1.5, True, -(2**63) - 1)),
    ],
)
def test_labels_that_cannot_be_used_are_refused(images: Any, labels: Any, sentence: str) -> None:
    with pytest.raises(LearnerError, match=sentence):
        small_learner(epochs=1).partial_fit(images, labels)


def test_a_folder_of_class_folders_brings_its_labels(tmp_path: Path) -> None:
    write_images(tmp_path / "boat", PIXELS[2:])
    write_images(tmp_path / "gold\nfish", PIXELS[:2])
    files, labels, *_ = labeled_images(tmp_path, None)
    assert labels == ["boat", "boat", "gold�fish", "gold�fish"]
    np.testing.assert_array_equal(read_all(files, PixelReader(16)), PIXELS[[2, 3, 0, 1]])
    with pytest.raises(LearnerError, match="labels cannot be given beside a folder"):
        labeled_images(tmp_path, ["a"])


def test_what_lies_among_labeled_images_and_is_none_is_left_out(tmp_path: Path) -> None:
    """Notes, hidden files and a picture cut short, which only decoding tells."""
    whole = write_images(tmp_path / "boat", PIXELS[2:]) / "0.png"
    write_images(tmp_path / "goldfish", PIXELS[:2])
    (tmp_path / "goldfish" / "2.png").write_bytes(whole.read_bytes()[:200])
    (tmp_path / "boat" / "0\n.txt").write_text("rain")
    (tmp_path / "notes.txt").write_text("sun")
    (tmp_path / "boat" / ".DS_Store").write_bytes(b"x")
    write_images(tmp_path / ".thumbnails", PIXELS)
    learner = small_learner(image_size=None, epochs=1).partial_fit(tmp_path)
    assert (learner.image_size_, learner.classes_.tolist()) == (16, ["boat", "goldfish"])
    record = learner.history_[-1]
    assert record["labeled_by_class"] == {"boat": 2, "goldfish": 2}
    left_out = record["left_out"]
    assert (left_out["labeled"], left_out["test"], left_out["hidden"]) == (3, 0, 2)
    assert any("0�.txt: not an image" in said for said in left_out["for_example"]), "on one line"
    assert learner.score(tmp_path) == learner.score(PIXELS, ["goldfish"] * 2 + ["boat"] * 2)
