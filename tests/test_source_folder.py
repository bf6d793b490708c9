"""Own images: what is found, what is left out and why, and when it is decoded again."""

import os
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, SourceError
from distillmatch.sources import UNKNOWN, Dataset, folder
from distillmatch.sources.dataset import fingerprint


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the user's cache be a folder of the test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return tmp_path / "user-cache" / "distillmatch"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Make ten images of each of three classes, every image of another colour."""
    for name, red in (("cat", 10), ("dog", 100), ("eel", 200)):
        for number in range(10):
            save(tmp_path / "data" / name / f"{number}.png", (red, number, 0))
    return tmp_path / "data"


def save(path: Path, colour: tuple[int, int, int], size: int = 32) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), colour).save(path)
    return path


def load(data_dir: Path, **options: object) -> Dataset:
    return folder.load(StreamConfig(source="folder", data_dir=data_dir, **options))


def colours(dataset_part: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(map(int, image[0, 0])) for image in dataset_part]


def test_each_folder_is_a_class_and_a_fifth_of_it_is_held_out(data: Path) -> None:
    dataset = load(data)
    assert dataset.class_names == ("cat", "dog", "eel")
    assert np.bincount(dataset.train.labels).tolist() == [8, 8, 8]
    assert np.bincount(dataset.test.labels).tolist() == [2, 2, 2]
    red = np.array([10, 100, 200])
    for part in (dataset.train, dataset.test):
        assert np.array_equal(part.images[:, 5, 5, 0], red[part.labels])
    everything = colours(dataset.train.images) + colours(dataset.test.images)
    assert len(set(everything)) == 30
    assert dataset.label_fraction == 0.2
    assert dataset.problems == ()


def test_what_is_held_out_stays_held_out_when_images_are_added(data: Path) -> None:
    before = set(colours(load(data).test.images))
    save(data / "cat" / "new.png", (10, 77, 0))
    after = set(colours(load(data).test.images))
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
    found = dict(zip(colours(dataset.test.images), dataset.test.labels.tolist(), strict=True))
    assert found == {(1, 2, 3): 1, (4, 5, 6): 0}


def test_a_test_class_that_is_not_trained_is_refused(data: Path, tmp_path: Path) -> None:
    save(tmp_path / "test" / "fox" / "a.png", (1, 2, 3))
    with pytest.raises(
        SourceError, match=r"test/fox: expected a class of .*data, which has no 'fox'"
    ):
        load(data, test_dir=tmp_path / "test")


def test_unlabelled_images_follow_from_nested_folders(data: Path, tmp_path: Path) -> None:
    save(tmp_path / "wild" / "b" / "c" / "1.png", (1, 1, 1))
    save(tmp_path / "wild" / "a.png", (2, 2, 2))
    save(tmp_path / "more" / "z.png", (3, 3, 3))
    dataset = load(data, unlabeled_dirs=(tmp_path / "wild", tmp_path / "more"))
    unknown = dataset.train.labels == UNKNOWN
    assert colours(dataset.train.images[unknown]) == [(2, 2, 2), (1, 1, 1), (3, 3, 3)]
    assert unknown[-3:].all()
    assert UNKNOWN not in dataset.test.labels
    assert dataset.label_fraction == 1.0


def test_folders_inside_a_class_belong_to_the_class(data: Path) -> None:
    save(data / "cat" / "kittens" / "a.png", (10, 99, 0))
    assert np.bincount(load(data).train.labels).tolist() == [9, 8, 8]


def test_images_are_scaled_to_the_asked_side(data: Path) -> None:
    assert load(data).image_size == 32
    assert load(data, image_size=48).image_size == 48


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


def test_desktop_leftovers_and_hidden_files_are_passed_over(data: Path) -> None:
    for name in (".DS_Store", "cat/.DS_Store", "cat/Thumbs.db", "dog/desktop.ini", ".git/config"):
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text("x")
    dataset = load(data)
    assert dataset.problems == ()
    assert dataset.class_names == ("cat", "dog", "eel")


def a_text(path: Path) -> None:
    path.write_text("no image")


def an_empty_file(path: Path) -> None:
    path.write_bytes(b"")


def half_an_image(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:2000])


def floating_point_colours(path: Path) -> None:
    Image.new("F", (32, 32)).save(path, "TIFF")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere.png")


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def a_link_that_loops(path: Path) -> None:
    path.symlink_to(path.parent.parent, target_is_directory=True)


def a_link_to_another_class(path: Path) -> None:
    path.symlink_to(path.parent.parent / "dog", target_is_directory=True)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_forbidden_file(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    save(path.with_suffix(".png"), (0, 0, 0)).rename(path)
    path.chmod(0)


def a_forbidden_folder(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path.mkdir(mode=0)


BAD: dict[Callable[[Path], None], str] = {
    a_text: "cat/bad: not an image in a format that can be read",
    an_empty_file: "cat/bad: the file is empty",
    half_an_image: "cat/bad: the image is damaged",
    floating_point_colours: "cat/bad: colours of mode F cannot",
    a_link_to_nothing: "cat/bad: a link to nothing",
    a_link_to_itself: "cat/bad: Too many levels of symbolic links",
    a_link_that_loops: "cat/bad: a link that loops back to .*data",
    a_link_to_another_class: "cat/bad: the same folder as .*data/dog, which is used already",
    a_pipe: "cat/bad: neither a file nor a folder",
    a_forbidden_file: "cat/bad: Permission denied",
    a_forbidden_folder: "cat/bad: Permission denied",
}


@pytest.mark.skipif(sys.platform == "win32", reason="makes Unix files")
@pytest.mark.parametrize("make", BAD)
def test_what_cannot_be_used_is_named_and_stops_or_is_left_out(
    data: Path, make: Callable[[Path], None], decoded: list[int]
) -> None:
    make(data / "cat" / "bad")
    with pytest.raises(SourceError, match=BAD[make]) as caught:
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
    assert np.bincount(dataset.train.labels).tolist() == [8, 8, 8]
    with pytest.raises(SourceError, match=BAD[make]):
        load(data)


def test_a_pipe_among_unlabelled_images_does_not_hang(data: Path, tmp_path: Path) -> None:
    save(tmp_path / "wild" / "a.png", (1, 2, 3))
    a_pipe(tmp_path / "wild" / "pipe")
    dataset = load(data, unlabeled_dirs=(tmp_path / "wild",), bad_images="skip")
    assert dataset.problems == (f"{tmp_path / 'wild' / 'pipe'}: neither a file nor a folder",)


def test_loops_among_unlabelled_images_are_followed_once(data: Path, tmp_path: Path) -> None:
    wild = tmp_path / "wild"
    save(wild / "a" / "1.png", (1, 1, 1))
    save(wild / "b" / "2.png", (2, 2, 2))
    (wild / "a" / "to-b").symlink_to(wild / "b")
    (wild / "b" / "to-a").symlink_to(wild / "a")
    dataset = load(data, unlabeled_dirs=(wild,), bad_images="skip")
    unknown = dataset.train.images[dataset.train.labels == UNKNOWN]
    assert sorted(colours(unknown)) == [(1, 1, 1), (2, 2, 2)]
    assert len(dataset.problems) == 2


def test_the_first_of_many_is_named_with_the_number_of_others(data: Path) -> None:
    for name in ("x", "y", "z"):
        a_text(data / "dog" / name)
    with pytest.raises(SourceError, match=r"dog/x: .* \(and 2 more\); leave such files out"):
        load(data)
    dataset = load(data, bad_images="skip")
    assert [problem.split(":")[0] for problem in dataset.problems] == [
        str(data / "dog" / name) for name in ("x", "y", "z")
    ]


def test_a_file_beside_the_classes_is_named(data: Path) -> None:
    save(data / "stray.png", (0, 0, 0))
    with pytest.raises(SourceError, match=r"stray\.png: not in the folder of a class"):
        load(data)


def test_an_empty_class_is_named_and_left_out(data: Path) -> None:
    (data / "ant").mkdir()
    with pytest.raises(SourceError, match="ant: a class without images"):
        load(data)
    dataset = load(data, bad_images="skip")
    assert dataset.class_names == ("cat", "dog", "eel")
    assert dataset.problems == (f"{data / 'ant'}: a class without images",)


def test_a_class_of_bad_files_is_left_out_with_its_test_images(data: Path, tmp_path: Path) -> None:
    (data / "ant").mkdir()
    a_text(data / "ant" / "text")
    save(tmp_path / "test" / "ant" / "1.png", (1, 1, 1))
    save(tmp_path / "test" / "dog" / "2.png", (2, 2, 2))
    dataset = load(data, test_dir=tmp_path / "test", bad_images="skip")
    assert dataset.class_names == ("cat", "dog", "eel")
    assert colours(dataset.test.images) == [(2, 2, 2)]
    assert dataset.test.labels.tolist() == [1]
    assert f"{data / 'ant'}: a class without usable images" in dataset.problems


def test_names_that_differ_in_case_are_the_same_class(data: Path) -> None:
    save(data / "Cat" / "1.png", (0, 0, 0))
    if len(list(data.iterdir())) == 3:
        pytest.skip("this file system does not tell case apart")
    with pytest.raises(SourceError, match=r"data/cat: the same class name as .*data/Cat"):
        load(data)
    assert load(data, bad_images="skip").class_names == ("Cat", "dog", "eel")


def test_names_that_differ_in_encoding_are_the_same_class(tmp_path: Path) -> None:
    composed = unicodedata.normalize("NFC", "bär")
    for name in (composed, unicodedata.normalize("NFD", composed), "dog"):
        save(tmp_path / "data" / name / "1.png", (0, 0, 0))
    if len(list((tmp_path / "data").iterdir())) == 2:
        pytest.skip("this file system does not tell encodings apart")
    with pytest.raises(SourceError, match="the same class name as"):
        load(tmp_path / "data")
    assert load(tmp_path / "data", bad_images="skip").class_names == (composed, "dog")


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


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(SourceError, match="data: expected one folder of images for each class"):
        load(tmp_path / "data")


def test_missing_folders_are_named_with_their_key(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data_dir must be given"):
        folder.load(StreamConfig(source="folder"))
    with pytest.raises(SourceError, match="gone: expected the folder given as data_dir"):
        load(tmp_path / "gone")
    with pytest.raises(SourceError, match="gone: expected the folder given as test_dir"):
        load(data, test_dir=tmp_path / "gone")
    with pytest.raises(SourceError, match="unlabeled_dirs, found a file there"):
        load(data, unlabeled_dirs=(data / "cat" / "1.png",))


def test_folders_that_overlap_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="test_dir must lie apart from data_dir"):
        load(data, test_dir=data)
    with pytest.raises(ConfigError, match="unlabeled_dirs must lie apart from data_dir"):
        load(data, unlabeled_dirs=(tmp_path,))


def write_tree(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tree.yaml"
    path.write_text(text)
    return path


def test_a_tree_file_gives_parents_and_super_classes(data: Path, tmp_path: Path) -> None:
    path = write_tree(tmp_path, "water: {fish: [eel]}\nland: {pets: [dog, cat]}\n")
    for _ in range(2):
        tree = load(data, tree=path).tree
        assert tree is not None
        assert tree.parent_names == ("fish", "pets")
        assert tree.super_class_names == ("water", "land")
        assert tree.parent_of_class == (1, 1, 0)
        assert tree.super_class_of_parent == (0, 1)


def test_a_class_left_out_leaves_the_tree_too(data: Path, tmp_path: Path) -> None:
    (data / "ant").mkdir()
    path = write_tree(tmp_path, "small: {insects: [ant]}\nbig: {all: [dog, cat, eel]}\n")
    tree = load(data, tree=path, bad_images="skip").tree
    assert tree is not None
    assert tree.parent_names == ("all",)


def test_a_tree_of_other_classes_is_refused_before_anything_is_decoded(
    data: Path, tmp_path: Path, decoded: list[int]
) -> None:
    with pytest.raises(ConfigError, match="'eel' is not in it"):
        load(data, tree=write_tree(tmp_path, "a: {b: [cat, dog]}"))
    assert decoded == []


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
