"""A class tree in a YAML file: numbered as written, refused when it is no tree of the classes."""

from pathlib import Path

import pytest
from folder_images import load

from distillmatch.errors import ConfigError

pytestmark = pytest.mark.usefixtures("cache")


def write_tree(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tree.yaml"
    path.write_text(text)
    return path


def test_parents_are_numbered_in_the_order_of_the_file_without_left_out_classes(
    data: Path, tmp_path: Path
) -> None:
    (data / "1").mkdir()
    text = "small: {insects: [1]}\nwater: {fish: [eel]}\nland: {pets: [dog, cat]}\n"
    for _ in range(2):
        tree = load(data, tree=write_tree(tmp_path, text), bad_images="skip").tree
        assert tree is not None
        assert tree.parent_names == ("fish", "pets")
        assert tree.super_class_names == ("water", "land")
        assert tree.parent_of_class == (1, 1, 0)
        assert tree.super_class_of_parent == (0, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: {b: [cat, dog]}", "expected every class in the tree, 'eel' is not in it"),
        ("a: {b: [cat, dog, eel, fox]}", "class 'fox' has no folder"),
        ("a: {b: [cat, dog, eel, cat]}", "class 'cat' must stand in the tree once"),
        ("a: {b: [cat, dog]}\nc: {b: [eel]}", "parent 'b' must have one super-class, not both"),
        ("a: [cat, dog, eel]", "expected super-classes, in each its parents"),
        ("a: {b: cat}", "in each a list of classes, found {'a': {'b': 'cat'}}"),
        ("a: {b: [cat, dog, no]}", "expected a name, found False; write it in quotes"),
        ("", "in each a list of classes, found None"),
        ("a: {b", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_tree_of_the_classes_is_refused_before_anything_is_decoded(
    data: Path, tmp_path: Path, decoded: list[int], text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=rf"tree\.yaml.*: .*{sentence}"):
        load(data, tree=write_tree(tmp_path, text))
    assert decoded == []
