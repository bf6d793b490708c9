"""Saved streams: what is written is read back, and nothing else is believed."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_dataset

from distillmatch import Stream
from distillmatch.cli import main
from distillmatch.config import RunConfig, StreamConfig
from distillmatch.errors import StreamError
from distillmatch.sources.dataset import MappedRows, Part
from distillmatch.streams import Coreset, build_stream


@pytest.mark.parametrize(
    "options", [{"unlabeled": "negative"}, {"tasks": 5, "repetition": 0.5, "distractors": 2}]
)
def test_a_saved_stream_is_read_back_as_it_was(options: dict[str, Any], tmp_path: Path) -> None:
    dataset = make_dataset()
    built = build_stream(dataset, StreamConfig(seed=4, coreset=7, **options))
    built.save(tmp_path / "stream.json")
    read = Stream.load(tmp_path / "stream.json", dataset)
    assert read.config == built.config and read.digest == built.digest
    for one, other in zip(built.tasks, read.tasks, strict=True):
        assert one.classes == other.classes and one.unlabeled_classes == other.unlabeled_classes
        for name in ("labeled", "unlabeled", "test"):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_runs_and_validation_folds_save_what_describes_the_stream(tmp_path: Path) -> None:
    dataset = make_dataset()
    built = build_stream(dataset, RunConfig(tasks=4, method="gd", epochs=3))
    built.save(tmp_path / "stream.json")
    assert Stream.load(tmp_path / "stream.json", dataset).config == StreamConfig(tasks=4)
    built.validation_folds()[0].save(tmp_path / "fold.json")
    assert Stream.load(tmp_path / "fold.json", dataset).evaluated_on == "train"
    none = Part(dataset.test.images[:0], dataset.test.labels[:0])
    untested = replace(dataset, test=none)
    build_stream(untested, StreamConfig(tasks=4)).save(tmp_path / "untested.json")
    assert len(Stream.load(tmp_path / "untested.json", untested)) == 4


def test_a_stream_of_an_earlier_version_is_read_without_options_that_are_gone(
    tmp_path: Path,
) -> None:
    dataset, path = make_dataset(), tmp_path / "stream.json"
    build_stream(dataset, StreamConfig(tasks=3)).save(path)
    for tree in (None, "tree.yaml"):
        content = json.loads(path.read_text())
        content["config"]["tree"] = tree
        path.write_text(json.dumps(content))
        assert Stream.load(path, dataset).config == StreamConfig(tasks=3)


def test_a_stream_is_refused_against_other_data(tmp_path: Path) -> None:
    stream = build_stream(make_dataset(), StreamConfig(tasks=3))
    stream.save(tmp_path / "stream.json")
    other = make_dataset(per_class=21)
    with pytest.raises(StreamError, match="fingerprint"):
        Stream.load(tmp_path / "stream.json", other)
    with pytest.raises(StreamError, match="fingerprint"):
        stream.check_fingerprint(other)


def test_one_changed_pixel_changes_the_fingerprint() -> None:
    one, other = make_dataset(), make_dataset()
    other.train.images[5, 7, 7, 2] ^= 1
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == make_dataset().fingerprint


Change = Callable[[dict[str, Any]], object]


def task(number: int, **lists: Any) -> Change:
    """Change lists of one task."""
    return lambda content: content["tasks"][number].update(lists)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: content.update(format="other"), "found other JSON"),
        (lambda content: content.update(version=99), "expected version 1"),
        (lambda content: content.update(evaluated_on="moon"), "evaluated_on: .*'test' or 'train'"),
        (lambda content: content.update(config={"ordr": 1}), "unknown key 'ordr'"),
        (lambda content: content.update(config=[1]), "config: .*dictionary, not a list"),
        (lambda content: content.update(tasks=[{}]), "tasks.0.classes: field required"),
        (lambda content: content.update(extra=1), "extra: .*not permitted"),
        (task(1, labeled=[]), "tasks.1.labeled: .*at least 1"),
        (task(1, labeled=[1.5]), "tasks.1.labeled.0: .*integer, not 1.5"),
        (task(1, labeled=None), "tasks.1.labeled: .*list, not None"),
        (task(1, unlabeled=[-1]), "tasks.1.unlabeled.0: .*not -1"),
        (task(1, unlabeled=[2**62]), "tasks.1.unlabeled.0: .*not 4611686018427387904"),
        (task(1, unlabeled=[10**6]), "index 1000000 lies outside the 240 train images"),
        (task(1, test=[10**6]), "index 1000000 lies outside the 36 test images"),
        (task(1, classes=[0, 1, 2, 12]), "expected classes from 0 to 11"),
        (task(1, unlabeled_classes=[12]), "task 2: expected unlabeled_classes from 0 to 11"),
        (task(1, classes=[0, 0]), "each in one task at most"),
        (
            lambda content: content["tasks"][0].update(classes=content["tasks"].pop()["classes"]),
            "task 1: expected labels of its classes and those before it",
        ),
    ],
)
def test_a_file_that_is_wrong_in_form_or_range_is_refused_in_one_sentence(
    tmp_path: Path, change: Change, sentence: str
) -> None:
    dataset, path = make_dataset(), tmp_path / "stream.json"
    build_stream(dataset, StreamConfig(tasks=3)).save(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(StreamError, match=sentence) as refusal:
        Stream.load(path, dataset)
    assert "\n" not in str(refusal.value) and str(path) in str(refusal.value)


@pytest.mark.parametrize("text", ['{"format": "distillm', "", "[" * 10**5, "\x00\xff", '"text"'])
def test_a_cut_or_foreign_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "stream.json").write_text(text)
    with pytest.raises(StreamError, match="expected a saved stream"):
        Stream.load(tmp_path / "stream.json")


def test_a_saved_stream_imports_its_source_only_if_that_name_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source's module leaves a trace when it is imported."""
    monkeypatch.chdir(tmp_path)
    trace, path, name = Path("imported"), Path("stream.json"), "own_pictures:load"
    Path("own_pictures.py").write_text(
        "from pathlib import Path\n"
        "from distillmatch.sources.shapes import load\n"
        "Path('imported').touch()\n"
    )
    Stream.build(source="shapes").save(path)
    path.write_text(path.read_text().replace('"source":"shapes"', f'"source":"{name}"'))
    refused = f"its source is '{name}', and a file does not decide what is imported"
    for command in (["stream", "--read"], ["run", "--out", "out", "--stream"]):
        assert main([*command, str(path), "--allow-import", "own_pictures:other"]) == 2
        assert refused in capsys.readouterr().err
    for allowed in ((), "own_pictures:other", ["own_pictures"]):
        with pytest.raises(StreamError, match=refused):
            Stream.load(path, allow_import=allowed)
    assert not trace.exists() and "own_pictures" not in sys.modules
    assert len(Stream.load(path, allow_import=name)) == 10
    assert trace.exists()
    sys.modules.pop("own_pictures")


def test_a_stream_loads_its_data_set_and_no_repr_prints_pixels(tmp_path: Path) -> None:
    Stream.build(source="shapes", tasks=6, seed=3, coreset=30).save(tmp_path / "stream.json")
    stream = Stream.load(tmp_path / "stream.json")
    for number, learned in enumerate(stream):
        names = learned.class_names[learned.past :]
        assert names == tuple(stream.class_names[c] for c in stream.tasks[number].classes)
        assert len(learned.images) == 300 and len(learned.unlabeled) == 1200
    part = stream.dataset.train
    for thing in (
        *(stream, stream.dataset, part, stream.tasks[0], learned),
        stream.evaluation_part(0),
        Coreset(30, 16).after(learned, 1),
        MappedRows(part.images, stream.tasks[0].labeled),
    ):
        assert len(repr(thing)) < 150 and "array" not in repr(thing)
        assert "array" not in f"{[thing]}"
    assert "6 tasks, 60 classes" in repr(stream) and "60 classes" in repr(stream.dataset)
