import numpy as np
import pytest
from numpy.typing import NDArray

from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError
from distillmatch.sources.dataset import ClassTree, Dataset
from distillmatch.sources.shapes import load

Floats = NDArray[np.floating]


@pytest.fixture(scope="module")
def shapes() -> Dataset:
    return load(StreamConfig())


@pytest.fixture(scope="module")
def large_shapes() -> Dataset:
    return load(StreamConfig(image_size=32))


def tree_of(data: Dataset) -> ClassTree:
    assert data.tree is not None
    return data.tree


def class_means(values: Floats, labels: NDArray[np.int64]) -> Floats:
    return np.stack([values[labels == k].mean(axis=0) for k in range(int(labels.max()) + 1)])


def distances(left: Floats, right: Floats) -> Floats:
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1) - 2 * left @ right.T
    roots: Floats = np.sqrt(np.maximum(squares, 0))
    return roots


def test_the_tree_has_six_worlds_of_two_kinds_of_five_classes(shapes: Dataset) -> None:
    tree = tree_of(shapes)
    assert len(tree.super_class_names) == 6
    assert all(len(tree.parents_of_super_class(s)) == 2 for s in range(6))
    assert len(tree.parent_names) == 12
    assert all(len(tree.classes_of_parent(p)) == 5 for p in range(12))
    assert len(shapes.class_names) == 60


def test_every_class_has_as_many_images_of_the_asked_side(
    shapes: Dataset, large_shapes: Dataset
) -> None:
    for data, side in ((shapes, 16), (large_shapes, 32)):
        assert data.train.images.shape == (60 * 150, side, side, 3)
        assert data.test.images.shape == (60 * 30, side, side, 3)
        assert np.array_equal(np.bincount(data.train.labels), [150] * 60)
        assert np.array_equal(np.bincount(data.test.labels), [30] * 60)


def test_the_data_are_the_same_bytes_on_every_machine(
    shapes: Dataset, large_shapes: Dataset
) -> None:
    # Saved streams name the data by these figures: when they change, those can no longer be read.
    assert shapes.fingerprint == "90b35ce250d0b10fb8eca759637210aa"
    assert large_shapes.fingerprint == "8eedea79f51c62567a4471517e79abec"
    assert load(StreamConfig(seed=7, tasks=5)).fingerprint == shapes.fingerprint


def test_both_sides_show_the_same_scenes(shapes: Dataset, large_shapes: Dataset) -> None:
    large = large_shapes.test.images.reshape(1800, 16, 2, 16, 2, 3)
    halved = large.mean(axis=(2, 4), dtype=np.float32)
    small = shapes.test.images.astype(np.float32)
    difference = np.abs(halved - small).mean(axis=(1, 2, 3))
    to_another = np.abs(halved - np.roll(small, 1, axis=0)).mean(axis=(1, 2, 3))
    assert (difference < to_another).mean() > 0.98


def test_no_two_images_are_equal_and_members_of_a_class_vary(shapes: Dataset) -> None:
    flat = np.concatenate([shapes.train.images, shapes.test.images]).reshape(60 * 180, -1)
    assert len(np.unique(flat, axis=0)) == len(flat)
    train = shapes.train.images.reshape(60, 150, -1).astype(np.float64)
    assert train.std(axis=1).mean(axis=1).min() > 20


def test_train_and_test_images_are_drawn_alike(shapes: Dataset) -> None:
    train, test = (
        part.images.reshape(60, -1, 16 * 16 * 3).astype(np.float64)
        for part in (shapes.train, shapes.test)
    )
    expected_error = train.std(axis=1) * np.sqrt(1 / 150 + 1 / 30)
    scores = (test.mean(axis=1) - train.mean(axis=1)) / expected_error
    assert 0.9 < np.sqrt((scores**2).mean()) < 1.1


def test_siblings_look_more_alike_than_cousins_and_cousins_more_than_strangers(
    shapes: Dataset,
) -> None:
    tree = tree_of(shapes)
    parent = np.array(tree.parent_of_class)
    world = np.array(tree.super_class_of_parent)[parent]
    same_parent = parent[:, None] == parent
    same_world = world[:, None] == world
    images = shapes.train.images.reshape(len(shapes.train), -1).astype(np.float64)
    means = class_means(images, shapes.train.labels)
    apart = distances(means, means)
    siblings = apart[same_parent & ~np.eye(60, dtype=bool)].mean()
    cousins = apart[same_world & ~same_parent].mean()
    strangers = apart[~same_world].mean()
    assert siblings < 0.8 * cousins
    assert cousins < 0.8 * strangers
    np.fill_diagonal(apart, np.inf)
    assert (world[apart.argmin(axis=1)] == world).mean() > 0.95


def test_pixels_alone_tell_the_world_but_seldom_the_class(shapes: Dataset) -> None:
    tree = tree_of(shapes)
    world = np.array(tree.super_class_of_parent)[np.array(tree.parent_of_class)]
    labeled = np.arange(len(shapes.train)) % 150 < 30
    known = shapes.train.images[labeled].reshape(1800, -1) / 255.0
    asked = shapes.test.images.reshape(1800, -1) / 255.0
    found = shapes.train.labels[labeled][distances(asked, known).argmin(axis=1)]
    assert (world[found] == world[shapes.test.labels]).mean() > 0.8
    assert 0.1 < (found == shapes.test.labels).mean() < 0.7


def test_a_shallow_network_with_thirty_labels_a_class_is_right_in_70_to_95_percent(
    shapes: Dataset,
) -> None:
    """One layer of random whitened patches, pooled over quarters, and a linear layer on top."""
    generator = np.random.default_rng(0)
    labeled = np.arange(len(shapes.train)) % 150 < 30
    images, labels = shapes.train.images[labeled], shapes.train.labels[labeled]
    sample = patches(images[generator.permutation(1800)[:600]]).reshape(-1, 75)
    sample = sample[generator.permutation(len(sample))[:20_000]]
    spread, axes = np.linalg.eigh(np.cov(sample.T))
    whitening = (axes / np.sqrt(spread + 0.01)) @ axes.T
    filters = (sample[:150] - sample.mean(axis=0)) @ whitening
    filters = whitening @ (filters / np.linalg.norm(filters, axis=1, keepdims=True)).T
    filters = filters.astype(np.float32)
    offsets = sample.mean(axis=0) @ filters

    train, test = (
        np.concatenate([pooled(patches(some) @ filters - offsets) for some in np.split(part, 12)])
        for part in (images, shapes.test.images)
    )
    middle, width = train.mean(axis=0), train.std(axis=0) + 1e-4
    train, test = (train - middle) / width, (test - middle) / width
    kernel = train @ train.T + 0.01 * train.shape[1] * np.eye(len(train), dtype=np.float32)
    weights = train.T @ np.linalg.solve(kernel, np.eye(60, dtype=np.float32)[labels] - 1 / 60)
    right = ((test @ weights).argmax(axis=1) == shapes.test.labels).mean()
    assert 0.70 < right < 0.95


def patches(images: NDArray[np.uint8]) -> Floats:
    """Return the 12 x 12 patches of 5 x 5 pixels of each image, as rows of 75 numbers."""
    values = images.astype(np.float32) / np.float32(255)
    windows = np.lib.stride_tricks.sliding_window_view(values, (5, 5), axis=(1, 2))
    return windows.reshape(len(images), 144, 75)


def pooled(responses: Floats) -> Floats:
    """Return the mean rise above and fall below a threshold in each quarter of the image."""
    both = np.concatenate([np.maximum(responses - 0.5, 0), np.maximum(-responses - 0.5, 0)], 2)
    quarters = both.reshape(len(both), 2, 6, 2, 6, -1)
    means: Floats = quarters.mean(axis=(2, 4)).reshape(len(both), -1)
    return means


@pytest.mark.parametrize("side", [8, 24, 64])
def test_another_side_is_refused_in_a_sentence(side: int) -> None:
    with pytest.raises(SourceError, match=f"^image_size must be 16 or 32 .*not {side}$"):
        load(StreamConfig(image_size=side))
