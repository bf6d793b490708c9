"""Own images: files, names and classes that cannot be used, named and left out."""

import os
import sys
import unicodedata
from collections.abc import Callable
from errno import EACCES
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folder_images import colors, load, save
from PIL import Image

from distillmatch.errors import SourceError
from distillmatch.sources import UNKNOWN

pytestmark = pytest.mark.usefixtures("cache")


def a_text(path: Path) -> None:
    path.write_text("no image")


def half_an_image(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:2000])


BAD: list[tuple[str, Callable[[Path], object], str]] = [
    ("cat/bad", a_text, "cat/bad: not an image in a format that can be read"),
    ("cat/bad", lambda path: path.write_bytes(b""), "cat/bad: the file is empty"),
    ("cat/bad", half_an_image, "cat/bad: the image is damaged"),
    ("cat/bad", lambda path: Image.new("F", (32, 32)).save(path, "TIFF"), " of mode F cannot"),
    ("cat/bad", lambda path: path.symlink_to("nowhere.png"), "cat/bad: a link to nothing"),
    ("cat/bad", lambda path: path.symlink_to(path), "cat/bad: Too many levels of symbolic links"),
    (
        "cat/bad",
        lambda path: path.symlink_to(path.parent.parent, target_is_directory=True),
        "cat/bad: a link that loops back to .*data",
    ),
    (
        "cat/bad",
        lambda path: path.symlink_to(path.parent.parent / "dog", target_is_directory=True),
        "cat/bad: the same folder as .*data/dog, which is used",
    ),
    ("cat/bad", os.mkfifo, "cat/bad: neither a file nor a folder"),
    ("stray.png", lambda path: save(path, (0, 0, 0)), "stray.png: not in the folder of a class"),
    ("ant", Path.mkdir, "data/ant: a class without images"),
]


@pytest.mark.skipif(sys.platform == "win32", reason="makes Unix files")
@pytest.mark.parametrize(("name", "make", "sentence"), BAD)
def test_what_cannot_be_used_is_named_and_stops_or_is_left_out(
    data: Path, name: str, make: Callable[[Path], object], sentence: str, decoded: list[int]
) -> None:
    make(data / name)
    with pytest.raises(SourceError, match=sentence) as caught:
        load(data)
    assert "\n" not in str(caught.value)
    assert "--bad-images skip" in str(caught.value)
    count = len(decoded)
    dataset = load(data, bad_images="skip")
    again = load(data, bad_images="skip")
    assert len(decoded) == count
    assert len(dataset.problems) == 1
    assert dataset.problems == again.problems
    assert dataset.class_names == ("cat", "dog", "eel")
    assert len(dataset.train) + len(dataset.test) == 30
    with pytest.raises(SourceError, match=sentence):
        load(data)


def test_loops_and_pipes_among_unlabeled_images_are_passed_over(data: Path, tmp_path: Path) -> None:
    wild = tmp_path / "wild"
    save(wild / "a" / "1.png", (1, 1, 1))
    save(wild / "b" / "2.png", (2, 2, 2))
    (wild / "a" / "to-b").symlink_to(wild / "b")
    (wild / "b" / "to-a").symlink_to(wild / "a")
    os.mkfifo(wild / "pipe")
    dataset = load(data, unlabeled_dirs=(wild,), bad_images="skip")
    unknown = dataset.train.images[dataset.train.labels == UNKNOWN]
    assert sorted(colors(unknown)) == [(1, 1, 1), (2, 2, 2)]
    assert len(dataset.problems) == 3
    assert f"{wild / 'pipe'}: neither a file nor a folder" in dataset.problems


def test_the_first_of_many_is_named_with_the_number_of_others(data: Path) -> None:
    for name in ("x", "y", "z"):
        a_text(data / "dog" / name)
    with pytest.raises(SourceError, match=r"dog/x: .* \(and 2 more\); leave such files out"):
        load(data)
    dataset = load(data, bad_images="skip")
    assert [problem.split(":")[0] for problem in dataset.problems] == [
        str(data / "dog" / name) for name in ("x", "y", "z")
    ]


def test_a_class_of_bad_files_is_left_out_with_its_test_images(data: Path, tmp_path: Path) -> None:
    (data / "ant").mkdir()
    a_text(data / "ant" / "text")
    save(tmp_path / "test" / "ant" / "1.png", (1, 1, 1))
    save(tmp_path / "test" / "dog" / "2.png", (2, 2, 2))
    dataset = load(data, test_dir=tmp_path / "test", bad_images="skip")
    assert dataset.class_names == ("cat", "dog", "eel")
    assert colors(dataset.test.images) == [(2, 2, 2)]
    assert dataset.test.labels.tolist() == [1]
    assert f"{data / 'ant'}: a class without usable training images" in dataset.problems


@pytest.mark.parametrize(
    ("kept", "same"), [("Cat", "cat"), ("b\u00e4r", unicodedata.normalize("NFD", "b\u00e4r"))]
)
def test_names_that_differ_in_case_or_encoding_are_the_same_class(
    tmp_path: Path, kept: str, same: str
) -> None:
    for name in (kept, same, "dog"):
        save(tmp_path / "data" / name / "1.png", (0, 0, 0))
    if len(list((tmp_path / "data").iterdir())) == 2:
        pytest.skip("this file system takes both for one name")
    with pytest.raises(SourceError, match=r"data/.* the same class name as .*data/"):
        load(tmp_path / "data")
    assert load(tmp_path / "data", bad_images="skip").class_names == (kept, "dog")


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux only")
def test_names_that_are_no_text_can_be_loaded_and_printed(data: Path) -> None:
    save(Path(os.fsdecode(os.fsencode(data) + b"/f\xff\n/\xfe.png")), (0, 0, 0))
    a_text(Path(os.fsdecode(os.fsencode(data) + b"/f\xff\n/\xfd")))
    dataset = load(data, bad_images="skip")
    for text in (*dataset.class_names, *dataset.problems):
        assert text.encode().decode().isprintable()
    assert len(dataset.class_names) == 4


def test_a_folder_without_any_usable_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data" / "ant").mkdir(parents=True)
    a_text(tmp_path / "data" / "ant" / "text")
    with pytest.raises(SourceError, match="ant/text: not an image"):
        load(tmp_path / "data")
    with pytest.raises(SourceError, match="expected images in the folders of classes, found none"):
        load(tmp_path / "data", bad_images="skip")


@pytest.mark.parametrize("key", ["data_dir", "test_dir", "unlabeled_dirs"])
def test_a_given_folder_that_may_not_be_listed_is_refused_with_the_systems_reason(
    key: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = data if key == "data_dir" else tmp_path / "closed"
    closed.mkdir(exist_ok=True)
    scan = os.scandir

    def refusing(path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    options = {"test_dir": closed, "unlabeled_dirs": (closed,)}
    given = {} if key == "data_dir" else {key: options[key]}
    sentence = f"the folder given as {key} cannot be listed: Permission denied"
    with pytest.raises(SourceError, match=sentence) as caught:
        load(data, bad_images="skip", **given)
    assert str(caught.value).startswith(f"{closed}: ")
