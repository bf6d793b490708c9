"""The configuration: Python, YAML and the command line build the same object, or say why not."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distillmatch.cli import make_parser
from distillmatch.cli.options import config_from
from distillmatch.config import RunConfig, StreamConfig
from distillmatch.errors import ConfigError

VALUES: dict[str, Any] = {
    "source": "folder",
    "data_dir": "images",
    "test_dir": "test images",
    "unlabeled_dirs": ["camera 1", "camera 2"],
    "tree": "tree.yaml",
    "image_size": 24,
    "bad_images": "skip",
    "cache_dir": "cache",
    "order": "random",
    "tasks": 2,
    "task_sizes": [3, 4],
    "class_order": ["a", "b b"],
    "unlabeled": "random",
    "random_classes": 3,
    "unlabeled_per_task": 0,
    "labels_per_class": 5,
    "coreset": 9,
    "seed": 12,
}


def from_command_line(options: dict[str, Any]) -> StreamConfig:
    words = ["stream"]
    for key, value in options.items():
        words.append(f"--{key.replace('_', '-')}")
        words += [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return config_from(make_parser().parse_args(words), StreamConfig)


@settings(max_examples=50, deadline=None)
@given(st.sets(st.sampled_from(sorted(VALUES))))
def test_python_yaml_and_the_command_line_build_the_same_object(keys: set[str]) -> None:
    import tempfile

    import yaml

    options = {key: VALUES[key] for key in sorted(keys)}
    try:
        expected = StreamConfig(**options)
    except ConfigError as refusal:
        with pytest.raises(ConfigError) as same:
            from_command_line(options)
        assert str(same.value) == str(refusal)
        return
    assert from_command_line(options) == expected
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.yaml"
        file.write_text(yaml.safe_dump({k.replace("_", "-"): v for k, v in options.items()}))
        assert StreamConfig.from_yaml(file) == expected
        file.write_text(expected.to_yaml())
        assert StreamConfig.from_yaml(file) == expected
        words = ["stream", "--config", str(file), "--seed", "77"]
        given_over_file = config_from(make_parser().parse_args(words), StreamConfig)
        assert given_over_file == expected.replace(seed=77)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ordr": "random"}, "unknown key 'ordr' (did you mean 'order'?); the keys are source, "),
        ({"order": "sideways"}, "order must be one of 'random', 'parent', not 'sideways'"),
        ({"unlabeled": "all"}, "unlabeled must be one of 'uniform', 'positive', 'negative', "),
        ({"tasks": "ten"}, "tasks must be a whole number, not 'ten'"),
        ({"tasks": 2.5}, "tasks must be a whole number, not 2.5"),
        ({"tasks": True}, "tasks must be a whole number, not True"),
        ({"tasks": 0}, "tasks must be at least 1, not 0"),
        ({"coreset": -1}, "coreset must be at least 0, not -1"),
        ({"label_fraction": 0.0}, "label_fraction must be more than 0"),
        ({"label_fraction": 1.5}, "label_fraction must be at most 1"),
        ({"task_sizes": "abc"}, "task_sizes must be a list, not 'abc'"),
        ({"data_dir": 3}, "data_dir must be a path, not 3"),
        ({"data_dir": ""}, "data_dir must be a path, not ''"),
        ({"cache_dir": ""}, "cache_dir must be a path, not ''"),
        ({"source": "folder", "unlabeled_dirs": ["a", ""]}, "unlabeled_dirs must be a path, not"),
        (
            {"order": "random", "unlabeled": "positive"},
            "order must be 'parent' with unlabeled 'positive', not 'random'",
        ),
        (
            {"labels_per_class": 3, "label_fraction": 0.5},
            "label_fraction cannot be given together with labels_per_class",
        ),
        ({"random_classes": 3}, "random_classes goes with unlabeled 'random' only"),
        ({"tasks": 3, "task_sizes": (1, 2)}, "task_sizes lists 2 tasks but tasks is 3"),
        ({"order": "parent", "task_sizes": (1, 2)}, "task_sizes goes with order 'random' only"),
        ({"tree": "tree.yaml"}, "tree goes with source 'folder' only, not 'shapes'"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_key_and_what_it_may_be(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        StreamConfig(**options)
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)


def test_the_object_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        StreamConfig().seed = 2  # type: ignore[misc]


def test_streams_by_super_class_imply_tasks_by_parent() -> None:
    assert StreamConfig(unlabeled="negative").order == "parent"
    assert StreamConfig().order == "random"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("tasks: [", "line 1: not valid YAML"),
        ("seed: 2020-13-45\n", "not valid YAML"),
        ("self: 1\n", "unknown key 'self'"),
        ("- 1\n", "expected a mapping of keys to values, found a list"),
        ("", "expected a mapping of keys to values, found nothing"),
        ("tasks: many\n", "tasks must be a whole number, not 'many'"),
        ("tasks: 2\nseed: 1\n'tasks': 3\n", "line 3: key 'tasks' is given twice, first in line 1"),
        ("label-fraction: 0.5\nlabel_fraction: 0.6\n", "label_fraction is given twice, with"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=sentence) as refusal:
        StreamConfig.from_yaml(file)
    assert str(file) in str(refusal.value)
    with pytest.raises(ConfigError, match=sentence) as refusal:
        config_from(make_parser().parse_args(["stream", "--config", str(file)]), StreamConfig)
    assert str(file) in str(refusal.value)


def test_a_key_over_a_merged_one_is_not_given_twice(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("<<: {tasks: 2, seed: 3}\ntasks: 4\n")
    assert StreamConfig.from_yaml(file) == StreamConfig(tasks=4, seed=3)


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml: No such file"):
        StreamConfig.from_yaml(tmp_path / "none.yaml")


def test_a_preset_that_is_no_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"preset must be one of .*, not \['release'\]"):
        RunConfig.from_mapping({"preset": ["release"]}, "run.yaml")
