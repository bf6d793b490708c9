"""Own images: what is found, how it is divided, and when it is decoded again."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from folder_images import colors, load, save

from distillmatch.cli import main
from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, SourceError
from distillmatch.sources import UNKNOWN, folder
from distillmatch.sources.dataset import fingerprint

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
    everything = colors(dataset.train.images) + colors(dataset.test.images)
    assert len(set(everything)) == 30
    assert dataset.label_fraction == 0.2
    assert dataset.problems == ()
    assert (dataset.image_size, load(data, image_size=48).image_size) == (32, 48)


def test_what_is_held_out_stays_held_out_when_images_are_added(data: Path) -> None:
    before = set(colors(load(data).test.images))
    save(data / "cat" / "kittens" / "new.png", (10, 77, 0))
    dataset = load(data)
    after = set(colors(dataset.test.images))
    assert len(dataset.train) + len(dataset.test) == 31
    assert len(before - after) <= 1


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
    dataset = load(data, unlabeled_dirs=(tmp_path / "wild", tmp_path / "more"))
    unknown = dataset.train.labels == UNKNOWN
    assert colors(dataset.train.images[unknown]) == [(2, 2, 2), (1, 1, 1), (3, 3, 3)]
    assert unknown[-3:].all()
    assert UNKNOWN not in dataset.test.labels
    assert dataset.label_fraction == 1.0


def test_the_order_does_not_depend_on_the_file_system(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(data, cache_dir=tmp_path / "one").fingerprint
    scandir = os.scandir

    class Backwards:
        def __init__(self, path: str) -> None:
            with scandir(path) as entries:
                self._entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self._entries

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Backwards)
    assert load(data, cache_dir=tmp_path / "two").fingerprint == expected


def test_missing_and_overlapping_folders_are_named_with_their_key(
    data: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="empty: expected one folder of images for each class"):
        load(tmp_path / "empty")
    with pytest.raises(ConfigError, match="data_dir must be given"):
        folder.load(StreamConfig(source="folder"))
    with pytest.raises(SourceError, match="gone: expected the folder given as data_dir"):
        load(tmp_path / "gone")
    with pytest.raises(SourceError, match="gone: expected the folder given as test_dir"):
        load(data, test_dir=tmp_path / "gone")
    with pytest.raises(SourceError, match="unlabeled_dirs, found a file there"):
        load(data, unlabeled_dirs=(data / "cat" / "1.png",))
    with pytest.raises(ConfigError, match="test_dir must lie apart from data_dir"):
        load(data, test_dir=data)
    with pytest.raises(ConfigError, match="unlabeled_dirs must lie apart from data_dir"):
        load(data, unlabeled_dirs=(tmp_path,))


def test_an_unchanged_folder_is_mapped_and_not_decoded_again(
    data: Path, decoded: list[int]
) -> None:
    first = load(data)
    assert len(decoded) == 30
    again = load(data)
    assert len(decoded) == 30
    assert isinstance(again.train.images, np.memmap)
    assert isinstance(again.test.images, np.memmap)
    computed = fingerprint((again.train, again.test), again.class_names, again.tree)
    assert first.fingerprint == again.fingerprint == computed


def added(data: Path) -> None:
    save(data / "cat" / "new.png", (10, 50, 0))


def removed(data: Path) -> None:
    (data / "cat" / "1.png").unlink()


def renamed(data: Path) -> None:
    (data / "cat" / "1.png").rename(data / "dog" / "from-cat.png")


def overwritten(data: Path) -> None:
    save(data / "cat" / "1.png", (11, 1, 0))
    os.utime(data / "cat" / "1.png", ns=(10**18, 10**18))


def grown_at_the_same_time(data: Path) -> None:
    path = data / "cat" / "1.png"
    before = path.stat().st_mtime_ns
    save(path, (10, 1, 0), size=64)
    os.utime(path, ns=(before, before))


@pytest.mark.parametrize("change", [added, removed, renamed, overwritten, grown_at_the_same_time])
def test_a_changed_folder_is_decoded_again_over_the_old_cache(
    data: Path, change: Callable[[Path], None], decoded: list[int], cache: Path
) -> None:
    load(data)
    before = len(decoded)
    change(data)
    load(data)
    assert len(decoded) > before
    assert len(list(cache.iterdir())) == 1


def test_a_task_without_a_test_image_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The classes of one image each keep it for training, so that nothing is left to test."""
    for name, count in {"carp": 6, "eel": 1}.items():
        for number in range(count):
            save(tmp_path / "data" / name / f"{number}.png", (number, 0, 0))
    words = ["run", "--source", "folder", "--data-dir", str(tmp_path / "data"), "--tasks", "2"]
    assert main([*words, "--method", "base", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.endswith("(eel) of source 'folder' has no test image to measure accuracy on\n")
    assert not (tmp_path / "out" / "result.json").exists()
