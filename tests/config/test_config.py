"""The configuration: Python, YAML and the command line build the same object, or say why not."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distillmatch.cli import make_parser
from distillmatch.cli.options import config_from
from distillmatch.config import AS_WRITTEN, PAPER, RunConfig, StreamConfig
from distillmatch.errors import ConfigError
from distillmatch.methods import with_options

PARSER = make_parser()
VALUES: dict[str, Any] = {
    "source": "folder",
    "data_dir": "images",
    "test_dir": "test images",
    "unlabeled_dirs": ["camera 1", "camera 2"],
    "image_size": 24,
    "bad_images": "skip",
    "cache_dir": "cache",
    "order": "random",
    "tasks": 2,
    "task_sizes": [3, 4],
    "class_order": ["a", "b b"],
    "repetition": 0.5,
    "distractors": 4,
    "unlabeled": "random",
    "random_classes": 3,
    "unlabeled_per_task": 0,
    "labels_per_class": 5,
    "coreset": 9,
    "splits": "authors",
    "recipe": "as-written",
    "seed": 12,
}


def from_words(*words: str) -> StreamConfig:
    return config_from(PARSER.parse_args(["stream", *words]), StreamConfig)


def from_command_line(options: dict[str, Any]) -> StreamConfig:
    words: list[str] = []
    for key, value in options.items():
        words.append(f"--{key.replace('_', '-')}")
        words += [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return from_words(*words)


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
        over_file = from_words("--config", str(file), "--seed", "77")
        assert over_file == expected.replace(seed=77)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ordr": "random"}, "unknown key 'ordr' (did you mean 'order'?); the keys are source, "),
    ({"order": "sideways"}, "order must be one of 'random', 'parent', not 'sideways'"),
    ({"recipe": ["paper"]}, "recipe must be one of 'paper', 'as-written', not ['paper']"),
    ({"tasks": "ten"}, "tasks must be a whole number, not 'ten'"),
    ({"tasks": True}, "tasks must be a whole number, not True"),
    ({"tasks": 0}, "tasks must be at least 1, not 0"),
    ({"label_fraction": 0.0}, "label_fraction must be more than 0"),
    ({"label_fraction": 1.5}, "label_fraction must be at most 1"),
    ({"learning_rate": 1e300}, "learning_rate must be at most 1e+38, not 1e+300"),
    ({"momentum": 2.0}, "momentum must be less than 1, not 2.0"),
    ({"task_sizes": "abc"}, "task_sizes must be a list, not 'abc'"),
    ({"data_dir": 3}, "data_dir must be a path, not 3"),
    ({"data_dir": ""}, "data_dir must be a path, not ''"),
    ({"cache_dir": "\ud800"}, r"cache_dir must be a path, not '\ud800'"),
    ({"source": "folder", "unlabeled_dirs": ["a", ""]}, "unlabeled_dirs must be a path, not"),
    ({"order": "random", "unlabeled": "positive"}, "order must be 'parent' with unlabeled 'pos"),
    ({"labels_per_class": 3, "label_fraction": 0.5}, "label_fraction cannot be given together "),
    ({"random_classes": 3}, "random_classes goes with unlabeled 'random' only"),
    ({"tasks": 3, "task_sizes": (1, 2)}, "task_sizes lists 2 tasks but tasks is 3"),
    ({"order": "parent", "task_sizes": (1, 2)}, "task_sizes goes with order 'random' only"),
    (
        {"source": "\udce9", "test_dir": "t"},
        r"test_dir goes with source 'folder' only, not '\udce9'",
    ),
    ({"stored_share": 0.5}, "stored_share needs a coreset, and coreset is 0"),
    ({"device": "cpu", "precision": "bfloat16"}, "precision must be 'float32' or 'auto' with"),
    ({"options": {"a": [1]}}, "options 'a' must be a number, text, true or false, not [1]"),
    (
        {"options": {"momentun": 0.9}},
        "method 'dm' has no option 'momentun' (did you mean 'momentum'?); its options are pseudo",
    ),
    ({"options": {"consistency_weight": -1.0}}, "method 'dm': consistency_weight must be at least"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_what_cannot_be_run_is_refused_with_the_key_and_what_it_may_be(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        with_options(RunConfig(**options))
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("tasks: [", "line 1: not valid YAML"),
        ("seed: 2020-13-45\n", "not valid YAML"),
        ("self: 1\n", "unknown key 'self'"),
        ("- 1\n", "expected a mapping of keys to values, found a list"),
        ("", "expected a mapping of keys to values, found nothing"),
        ("tasks: 2\nseed: 1\n'tasks': 3\n", "line 3: key 'tasks' is given twice, first in line 1"),
        ("label-fraction: 0.5\nlabel_fraction: 0.6\n", "label_fraction is given twice, with"),
        ("[" * 5000, "(nested too deeply|not valid YAML)"),
        ("a: &a [1]\nb: *a", "line 2: an alias, which is not read here"),
        (f"seed: 0x{'f' * 5000}", "line 1: a number of too many digits"),
        ("source: mine:Own\n", "its source is 'mine:Own', .* --allow-import mine:Own"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=sentence) as refusal:
        StreamConfig.from_yaml(file)
    assert str(file) in str(refusal.value)
    with pytest.raises(ConfigError, match=sentence) as refusal:
        from_words("--config", str(file))
    assert str(file) in str(refusal.value)


def test_a_file_may_merge_keys_and_streams_by_super_class_imply_their_order(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("<<: {tasks: 2, seed: 3}\nseed: 4\nunlabeled: negative\n")
    merged = StreamConfig(tasks=2, seed=4, unlabeled="negative", order="parent")
    assert StreamConfig.from_yaml(file) == merged


def test_the_recipes_have_no_point_in_which_they_agree() -> None:
    one, other = asdict(PAPER), asdict(AS_WRITTEN)
    pairs = [(one.pop("statistics"), other.pop("statistics")), (one, other)]
    for paper, as_written in pairs:
        assert all(paper[point] != as_written[point] for point in paper)


def test_options_that_are_the_methods_defaults_are_left_out() -> None:
    given = {"consistency_weight": 1, "class_balancing": True, "distillation_weight": 2}
    config = with_options(RunConfig(options=given))
    assert config == RunConfig(options={"distillation_weight": 2.0})
    assert config.identity() == RunConfig(options={"distillation_weight": 2.0}).identity()
    assert with_options(RunConfig(method="gd", options={"calibration": True})).options == {}


def test_the_identity_of_a_run_is_neither_its_place_nor_where_its_files_lie() -> None:
    here = RunConfig(source="folder", data_dir=Path("here"))
    there = RunConfig(
        source="folder",
        data_dir=Path("there"),
        cache_dir=Path("cache"),
        unlabeled_dirs=(Path("camera"),),
        device="cpu",
        precision="float32",
        resident_bytes=7,
    )
    assert here.identity() == there.identity()
    changes: list[dict[str, Any]] = [
        {"seed": 2},
        {"recipe": "as-written"},
        {"splits": "authors"},
        {"options": {"pseudo_labels": False}},
        {"strong_labels": True},
        {"epochs": 3},
    ]
    for change in changes:
        assert here.replace(**change).identity() != here.identity()


def test_saying_the_number_of_tasks_makes_no_other_run() -> None:
    assert RunConfig().identity() == RunConfig(tasks=10).identity()
    sizes = RunConfig(task_sizes=(3, 4))
    assert sizes.identity() == sizes.replace(tasks=2).identity()
    by_parents = RunConfig(order="parent")
    assert by_parents.identity() == by_parents.replace(tasks=20).identity()


def test_a_file_decides_which_code_is_imported_only_if_that_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    for key in ("source", "method", "network"):
        file.write_text(f"{key}: mine:Own\n")
        with pytest.raises(ConfigError, match=f"its {key} is 'mine:Own', .* --allow-import"):
            RunConfig.from_yaml(file)
        allowed = RunConfig.from_yaml(file, allow_import={"mine:Own"})
        assert getattr(allowed, key) == "mine:Own"
    file.write_text("network: torchvision:resnet18\n")
    assert RunConfig.from_yaml(file).network == "torchvision:resnet18"
