"""What the tests share: one torch thread, small data sets made on the spot, the GPU mark."""

import os
import signal
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_images import save

from distillmatch.sources import ClassTree, Dataset, Part, images

# Two spinning threads on a shared machine can be ten times slower than one.
torch.set_num_threads(1)


def pytest_configure() -> None:
    # What a shell starts in the background ignores SIGINT, and so would runs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def make_dataset(
    classes: int = 12,
    per_class: int = 20,
    test_per_class: int = 3,
    parents: int | None = 6,
    super_classes: int = 3,
    unknown: int = 0,
    noise: bool = False,
) -> Dataset:
    """Make a data set whose first pixels hold the image's number, so that images can be told apart.

    Images of the classes are interleaved, as in real files. With `noise` the other pixels are
    random, else black.
    """
    train = np.concatenate([np.tile(np.arange(classes), per_class), np.full(unknown, -1)])
    test = np.tile(np.arange(classes), test_per_class)

    def images(count: int, first: int) -> np.ndarray:
        numbers = np.arange(first, first + count, dtype="<u4")
        random = np.random.default_rng(first).integers(0, 256, (count, 8, 8, 3), np.uint8)
        pixels = random if noise else np.zeros_like(random)
        pixels.reshape(count, -1)[:, :4] = numbers.view(np.uint8).reshape(count, 4)
        return pixels

    tree = None
    if parents is not None:
        tree = ClassTree(
            parent_of_class=tuple(c * parents // classes for c in range(classes)),
            super_class_of_parent=tuple(p * super_classes // parents for p in range(parents)),
            parent_names=tuple(f"parent {p}" for p in range(parents)),
            super_class_names=tuple(f"super {s}" for s in range(super_classes)),
        )
    return Dataset(
        name="made",
        train=Part(images(len(train), 0), train.astype(np.int64)),
        test=Part(images(len(test), len(train)), test.astype(np.int64)),
        class_names=tuple(f"class {c}" for c in range(classes)),
        tree=tree,
    )


@pytest.fixture(name="make_dataset")
def make_dataset_fixture() -> Callable[..., Dataset]:
    return make_dataset


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the user's cache be a folder of the test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return tmp_path / "user-cache" / "distillmatch"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Make ten images of each of three classes, every image of another color."""
    for name, red in (("cat", 10), ("dog", 100), ("eel", 200)):
        for number in range(10):
            save(tmp_path / "data" / name / f"{number}.png", (red, number, 0))
    return tmp_path / "data"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the images that are decoded."""
    calls: list[int] = []
    decode = images.decode_image

    def counting(file: object, side: int) -> object:
        calls.append(side)
        return decode(file, side)  # type: ignore[arg-type]

    monkeypatch.setattr(images, "decode_image", counting)
    return calls


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    """Make a folder whose name is not UTF-8, where the system has such names."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/fold\xe9r"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    return folder


@pytest.fixture(name="bound")
def result_of_the_bound() -> dict[str, Any]:
    """Return the upper bound's result on three tasks of six classes."""
    from small_runs import bound_result

    return deepcopy(bound_result())


@pytest.fixture(name="base")
def result_of_base() -> dict[str, Any]:
    """Return Base's result on the same stream, with a coreset and Ω by that bound."""
    from small_runs import base_result

    return deepcopy(base_result())
