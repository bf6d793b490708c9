"""Saved streams: what is written is read back, and nothing else is believed."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import make_dataset

from distillmatch.config import RunConfig, StreamConfig
from distillmatch.errors import StreamError
from distillmatch.streams import build_stream, experience, read_stream, save_stream
from distillmatch.streams import validation_folds as folds_of


def test_a_saved_stream_is_read_back_as_it_was(tmp_path: Path) -> None:
    dataset = make_dataset()
    built = build_stream(dataset, StreamConfig(unlabeled="negative", seed=4, coreset=7))
    save_stream(built, tmp_path / "stream.json")
    read = read_stream(tmp_path / "stream.json", dataset)
    assert read.config == built.config
    for one, other in zip(built.tasks, read.tasks, strict=True):
        assert one.classes == other.classes and one.unlabeled_classes == other.unlabeled_classes
        for name in ("labeled", "unlabeled", "test"):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_a_stream_of_a_run_is_saved_without_what_is_the_runs(tmp_path: Path) -> None:
    dataset = make_dataset()
    built = build_stream(dataset, RunConfig(tasks=4, method="gd", epochs=3))
    save_stream(built, tmp_path / "stream.json")
    assert read_stream(tmp_path / "stream.json", dataset).config == StreamConfig(tasks=4)


def test_a_validation_fold_can_be_saved_too(tmp_path: Path) -> None:
    dataset = make_dataset()
    fold = folds_of(dataset, build_stream(dataset, StreamConfig(tasks=4)))[0]
    save_stream(fold, tmp_path / "fold.json")
    assert read_stream(tmp_path / "fold.json", dataset).evaluated_on == "train"


def test_a_stream_is_refused_against_other_data(tmp_path: Path) -> None:
    stream = build_stream(make_dataset(), StreamConfig(tasks=3))
    save_stream(stream, tmp_path / "stream.json")
    other = make_dataset(per_class=21)
    with pytest.raises(StreamError, match="fingerprint"):
        read_stream(tmp_path / "stream.json", other)
    with pytest.raises(StreamError, match="fingerprint"):
        experience(other, stream, 0)


def test_one_changed_pixel_changes_the_fingerprint() -> None:
    one, other = make_dataset(), make_dataset()
    other.train.images[5, 7, 7, 2] ^= 1
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == make_dataset().fingerprint


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "other"}, "found other JSON"),
        ({"version": 99}, "expected version 1"),
        ({"tasks": [{}]}, "classes"),
        ({"evaluated_on": "moon"}, "evaluated_on: .*'test' or 'train'"),
        ({"config": {"ordr": 1}}, "unknown key 'ordr'"),
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(
    tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    dataset, path = make_dataset(), tmp_path / "stream.json"
    save_stream(build_stream(dataset, StreamConfig(tasks=3)), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(StreamError, match=sentence):
        read_stream(path, dataset)
    path.write_text(path.read_text()[:100])
    with pytest.raises(StreamError, match="expected a saved stream in JSON"):
        read_stream(path, dataset)


def test_an_index_outside_the_source_is_refused(tmp_path: Path) -> None:
    dataset, path = make_dataset(), tmp_path / "stream.json"
    save_stream(build_stream(dataset, StreamConfig(tasks=3)), path)
    content = json.loads(path.read_text())
    content["tasks"][1]["unlabeled"][0] = 10**6
    path.write_text(json.dumps(content))
    with pytest.raises(StreamError, match=r"outside the .*240 "):
        read_stream(path, dataset)
