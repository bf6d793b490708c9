"""Own images: what is found, how it is divided, what cannot be used, when it is decoded again."""

import os
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from made_images import colors, load, save
from PIL import Image

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, SourceError, StreamError
from distillmatch.sources import UNKNOWN, folder
from distillmatch.streams import Stream

pytestmark = pytest.mark.usefixtures("cache")


def test_each_folder_is_a_class_and_a_fifth_of_it_is_held_out(data: Path) -> None:
    for name in (".DS_Store", "cat/.DS_Store", "cat/Thumbs.db", "dog/desktop.ini", ".git/config"):
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text("x")
    dataset = load(data)
    assert dataset.class_names == ("cat", "dog", "eel")
    assert np.bincount(dataset.train.labels).tolist() == [8, 8, 8]
    assert np.bincount(dataset.test.labels).tolist() == [2, 2, 2]
    red = np.array([10, 100, 200])
    for part in (dataset.train, dataset.test):
        assert np.array_equal(part.images[:, 5, 5, 0], red[part.labels])
    assert len({*colors(dataset.train.images), *colors(dataset.test.images)}) == 30
    assert (dataset.label_fraction, dataset.problems) == (0.2, ())
    assert (dataset.image_size, load(data, image_size=48).image_size) == (32, 48)


def test_what_is_held_out_stays_held_out_when_images_are_added(data: Path) -> None:
    before = set(colors(load(data).test.images))
    save(data / "cat" / "kittens" / "new.png", (10, 77, 0))
    dataset = load(data)
    assert len(dataset.train) + len(dataset.test) == 31
    assert len(before - set(colors(dataset.test.images))) <= 1


@pytest.mark.parametrize(("count", "held_out"), [(1, 0), (2, 1), (7, 1), (8, 2), (10, 2)])
def test_small_classes_keep_something_to_learn_from(
    tmp_path: Path, count: int, held_out: int
) -> None:
    for number in range(count):
        save(tmp_path / "data" / "only" / f"{number}.png", (number, 0, 0))
    dataset = load(tmp_path / "data")
    assert (len(dataset.train), len(dataset.test)) == (count - held_out, held_out)


def test_a_test_folder_is_the_test_part(data: Path, tmp_path: Path) -> None:
    save(tmp_path / "test" / "dog" / "a.png", (1, 2, 3))
    save(tmp_path / "test" / "Cat" / "b.png", (4, 5, 6))
    dataset = load(data, test_dir=tmp_path / "test")
    assert len(dataset.train) == 30
    found = dict(zip(colors(dataset.test.images), dataset.test.labels.tolist(), strict=True))
    assert found == {(1, 2, 3): 1, (4, 5, 6): 0}
    save(tmp_path / "test" / "fox" / "a.png", (1, 2, 3))
    with pytest.raises(SourceError, match=r"test/fox: expected a class of .*data, which has no"):
        load(data, test_dir=tmp_path / "test")


def test_unlabeled_images_follow_from_nested_folders(data: Path, tmp_path: Path) -> None:
    save(tmp_path / "wild" / "b" / "c" / "1.png", (1, 1, 1))
    save(tmp_path / "wild" / "a.png", (2, 2, 2))
    save(tmp_path / "more" / "z.png", (3, 3, 3))
    (tmp_path / "wild" / "b" / "loop").symlink_to(tmp_path / "wild")
    folders = (tmp_path / "wild", tmp_path / "more")
    dataset = load(data, unlabeled_dirs=folders, bad_images="skip")
    unknown = dataset.train.labels == UNKNOWN
    assert colors(dataset.train.images[unknown]) == [(2, 2, 2), (1, 1, 1), (3, 3, 3)]
    assert unknown[-3:].all() and UNKNOWN not in dataset.test.labels
    assert dataset.label_fraction == 1.0


def test_the_order_does_not_depend_on_the_file_system(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(data, cache_dir=tmp_path / "one").fingerprint
    scandir = os.scandir

    def backwards(path: str) -> Any:
        with scandir(path) as entries:
            listed = sorted(entries, key=lambda entry: entry.name, reverse=True)
        found = MagicMock()
        found.__enter__.return_value = listed
        return found

    monkeypatch.setattr(os, "scandir", backwards)
    assert load(data, cache_dir=tmp_path / "two").fingerprint == expected


def test_missing_and_overlapping_folders_are_named_with_their_key(
    data: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="data_dir must be given"):
        folder.load(StreamConfig(source="folder"))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"data_dir": tmp_path / "empty"}, "empty: expected one folder of images for each class"),
        ({"data_dir": tmp_path / "gone"}, "gone: expected the folder given as data_dir: No such"),
        ({"test_dir": tmp_path / "gone"}, "gone: expected the folder given as test_dir"),
        ({"unlabeled_dirs": (data / "cat" / "1.png",)}, "unlabeled_dirs: Not a directory"),
        ({"test_dir": data}, "test_dir must lie apart from data_dir"),
        ({"unlabeled_dirs": (tmp_path,)}, "unlabeled_dirs must lie apart from data_dir"),
    ]
    for given, sentence in cases:
        with pytest.raises((ConfigError, SourceError), match=sentence):
            load(**{"data_dir": data, **given})


def test_an_unchanged_folder_is_mapped_and_not_decoded_again(
    data: Path, decoded: list[int]
) -> None:
    first, again = load(data), load(data)
    assert len(decoded) == 30
    assert isinstance(again.train.images, np.memmap) and isinstance(again.test.images, np.memmap)
    assert first.fingerprint == again.fingerprint


def overwritten(data: Path) -> None:
    save(data / "cat" / "1.png", (11, 1, 0))
    os.utime(data / "cat" / "1.png", ns=(10**18, 10**18))


def grown_at_the_same_time(data: Path) -> None:
    before = (data / "cat" / "1.png").stat().st_mtime_ns
    save(data / "cat" / "1.png", (10, 1, 0), size=64)
    os.utime(data / "cat" / "1.png", ns=(before, before))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: save(data / "cat" / "new.png", (10, 50, 0)),
        lambda data: (data / "cat" / "1.png").unlink(),
        lambda data: (data / "cat" / "1.png").rename(data / "dog" / "from-cat.png"),
        overwritten,
        grown_at_the_same_time,
    ],
)
def test_a_changed_folder_is_decoded_again_over_the_old_cache(
    data: Path, change: Callable[[Path], object], decoded: list[int], cache: Path
) -> None:
    load(data)
    before = len(decoded)
    change(data)
    load(data)
    assert len(decoded) > before
    assert len(list(cache.iterdir())) == 1


def half_an_image(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:2000])


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(path.parent / target, target_is_directory=True)


BAD: list[tuple[str, Callable[[Path], object], str]] = [
    ("cat/bad", lambda path: path.write_text("text"), "cat/bad: not an image in a format that can"),
    ("cat/bad", lambda path: path.write_bytes(b""), "cat/bad: the file is empty"),
    ("cat/bad", half_an_image, "cat/bad: the image is damaged"),
    ("cat/bad", lambda path: Image.new("F", (32, 32)).save(path, "TIFF"), " of mode F cannot"),
    ("cat/bad", link_to("nowhere.png"), "cat/bad: a link to nothing"),
    ("cat/bad", link_to("bad"), "cat/bad: Too many levels of symbolic links"),
    ("cat/bad", link_to(".."), "cat/bad: the same folder as .*data, which is used"),
    ("cat/bad", link_to("../dog"), "cat/bad: the same folder as .*data/dog, which is used"),
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
    assert "\n" not in str(caught.value) and "--bad-images skip" in str(caught.value)
    count = len(decoded)
    dataset, again = load(data, bad_images="skip"), load(data, bad_images="skip")
    assert len(decoded) == count
    assert len(dataset.problems) == 1 and dataset.problems == again.problems
    assert dataset.class_names == ("cat", "dog", "eel")
    assert len(dataset.train) + len(dataset.test) == 30
    with pytest.raises(SourceError, match=sentence):
        load(data)


def test_a_class_of_bad_files_is_left_out_with_its_test_images(data: Path, tmp_path: Path) -> None:
    (data / "ant").mkdir()
    for name in ("ant/text", "dog/x", "dog/y"):
        (data / name).write_text("text")
    save(tmp_path / "test" / "ant" / "1.png", (1, 1, 1))
    save(tmp_path / "test" / "dog" / "2.png", (2, 2, 2))
    dataset = load(data, test_dir=tmp_path / "test", bad_images="skip")
    assert dataset.class_names == ("cat", "dog", "eel")
    assert colors(dataset.test.images) == [(2, 2, 2)] and dataset.test.labels.tolist() == [1]
    assert f"{data / 'ant'}: a class without usable training images" in dataset.problems
    with pytest.raises(SourceError, match=r"ant/text: not an image.* \(and 3 more\); leave such"):
        load(data)
    for name in ("cat", "dog", "eel"):
        (data / name).rename(tmp_path / name)
    with pytest.raises(SourceError, match="expected images in the folders of classes, found none"):
        load(data, bad_images="skip")


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


def test_an_order_by_parents_needs_a_source_with_a_tree(data: Path) -> None:
    sentence = "order 'parent' needs a source with a class tree, and source 'folder' has none"
    with pytest.raises(StreamError, match=sentence):
        Stream.build(source="folder", data_dir=data, order="parent")
