"""Tiny-ImageNet-200 from its folder, with a small fake of the same layout."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError
from distillmatch.sources import Dataset, tiny_imagenet

WNIDS = ("n03", "n01", "n02")
LEVEL = {"n01": 50, "n02": 120, "n03": 200}

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make three classes of four training and two val images; one image in four is gray."""
    root = tmp_path / "data" / "tiny-imagenet-200"
    for wnid in WNIDS:
        for number in range(4):
            path = root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG"
            save(path, LEVEL[wnid], gray=number == 0)
    lines = []
    for number in range(6):
        wnid = WNIDS[number % 3]
        save(root / "val" / "images" / f"val_{number}.JPEG", LEVEL[wnid])
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t9\t9\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(WNIDS))
    (root / "words.txt").write_text("n00\tentity\nn01\tcrane, bird\nn02\tcrane\nn03\tgold fish\n")
    return root


def save(path: Path, level: int, gray: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    color = (level, level, level)
    image = Image.new("RGB", (64, 64), color)
    (image.convert("L") if gray else image).save(path, "JPEG", quality=95)


def load(data_dir: Path, size: int | None = None) -> Dataset:
    return tiny_imagenet.load(
        StreamConfig(source="tiny-imagenet", data_dir=data_dir, image_size=size)
    )


def test_both_parts_have_the_labels_of_the_lists(root: Path) -> None:
    dataset = load(root)
    assert dataset.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.test.labels.tolist() == [0, 1, 2, 0, 1, 2]
    for part in (dataset.train, dataset.test):
        levels = np.array([LEVEL[wnid] for wnid in WNIDS])[part.labels]
        assert abs(part.images.astype(int) - levels[:, None, None, None]).max() <= 2
    assert dataset.train.images.shape[1:] == (64, 64, 3)
    assert dataset.class_names == ("gold fish", "crane (n01)", "crane (n02)")
    assert (dataset.tree, dataset.image_size, load(root, 32).image_size) == (None, 64, 32)


ANNOTATIONS = "val/val_annotations.txt"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("val/images/val_3.JPEG", None, r"val_3\.JPEG: expected this file, which the annotations"),
        (ANNOTATIONS, None, r"val_annotations\.txt: expected this file"),
        ("words.txt", None, r"words\.txt: expected this file"),
        (ANNOTATIONS, "val_0.JPEG\tn01\nval_0.JPEG\tn99\t0", r"line 2: expected an image and"),
        (ANNOTATIONS, "val_0.JPEG\tn01\nval_0.JPEG", r"line 2: expected an image and"),
        ("wnids.txt", "n01\nn02\nn01\n", r"wnids\.txt: expected one class a line"),
        ("wnids.txt", "n01\nn09\n", "train/n09/images: expected the training images"),
    ],
)
def test_missing_files_and_wrong_lists_are_named(
    root: Path, name: str, text: str | None, sentence: str
) -> None:
    (root / name).unlink()
    if text is not None:
        (root / name).write_text(text)
    with pytest.raises(SourceError, match=sentence):
        load(root)


def test_another_place_is_refused(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(SourceError, match="missing: expected the folder tiny-imagenet-200 here"):
        load(tmp_path / "missing")
    with pytest.raises(SourceError, match=f"{cache}: expected .* unpack it there, or .*data-dir"):
        tiny_imagenet.load(StreamConfig(source="tiny-imagenet"))
