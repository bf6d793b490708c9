"""What a user's own source may put into a data set, and what is refused before any training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_dataset

from distillmatch.cli import main
from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError
from distillmatch.sources import ClassTree, Dataset, Part

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "ints": ({"class_names": (0, 1)}, "own: class_names must be text, not 0 (int)"),
    "one text": ({"class_names": "ab"}, "own: class_names must be a tuple of texts, not 'ab'"),
    "surrogate": ({"class_names": ("a", "\ud800")}, "text that can be written in UTF-8, not"),
    "no share": ({"label_fraction": 0.0}, "own: label_fraction must be a number above 0 and at"),
    "nan": ({"label_fraction": float("nan")}, "own: label_fraction must be a number above 0"),
    "share text": ({"label_fraction": "0.2"}, "label_fraction must be a number above 0 and at"),
    "no problems": ({"problems": None}, "own: problems must be a tuple of texts, not None"),
    "errors": ({"problems": (OSError(),)}, "own: problems must be text, not OSError() (OSError)"),
    "name": ({"name": 3}, "the name of a data set must be text, not 3 (int)"),
}


def own(**values: Any) -> Dataset:
    data = make_dataset(classes=2, parents=None)
    given: dict[str, Any] = {"name": "own", "class_names": ("a", "b"), **values}
    return Dataset(train=data.train, test=data.test, **given)


def wrong(config: StreamConfig) -> Dataset:
    """Make the data set that the folder of the configuration names, as a source."""
    return own(**WRONG[str(config.data_dir)][0])


@pytest.mark.parametrize("case", WRONG)
def test_what_no_result_could_hold_is_one_sentence_before_training(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--source", "test_dataset:wrong", "--data-dir", case, "--tasks", "2"]
    assert main(["run", *words, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("distillmatch: error: ") and WRONG[case][1] in line
    assert not (tmp_path / "out" / "result.json").exists()


@pytest.mark.parametrize("odd", [[[0, 1], [2, 3]], torch.zeros(2, 8, 8, 3)])
def test_images_and_labels_that_are_no_numpy_arrays_are_refused(odd: Any) -> None:
    with pytest.raises(SourceError, match=r"images must be a NumPy array, not a (list|Tensor)"):
        Part(odd, np.array([0, 1]))
    with pytest.raises(SourceError, match="labels must be a NumPy array"):
        Part(np.zeros((2, 8, 8, 3), np.uint8), odd)


@pytest.mark.parametrize("bad", [1, "\udce9"])
def test_names_in_a_tree_are_texts(bad: Any) -> None:
    with pytest.raises(SourceError, match="parent_names of the class tree must be text"):
        ClassTree((0, 1), (0, 0), ("a", bad), ("all",))
    with pytest.raises(SourceError, match="super_class_names of the class tree must be text"):
        ClassTree((0, 1), (0, 0), ("a", "b"), (bad,))
