"""Presets and the options of a run: the release's readings, and one object however it is given."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from distillmatch.cli import make_parser
from distillmatch.cli.options import config_from
from distillmatch.config import RunConfig, StreamConfig, allowed_values
from distillmatch.errors import ConfigError

# Every point where the paper and its release differ: the option, our default, the release's value.
READINGS: dict[str, tuple[object, object]] = {
    "initial_weights": ("normal", "uniform"),
    "last_batches": ("filled", "short"),
    "consistency_threshold": (0.9, 0.85),
    "distillation_shares": ("equal", "class-share"),
    "consistency_from": ("second-task", "second-task"),
    "clip": (1.0, 1.0),
    "base_clip": (None, 1.0),
    "count_smoothing": (1.0, 1.0),
    "weight_cap": (10.0, 10.0),
    "coreset_counts": ("labels", "labels"),
    "detector_losses": ("labels-and-past", "labels-and-past"),
    "similarity": ("cosine", "scaled-cosine"),
    "epsilon_rule": ("highest", "lowest-halved"),
    "negative_rule": ("other", "regrouped"),
    "base_distillation": (False, True),
    "ensemble_share": ("new-model", "past-model"),
    "dr_distillation": ("per-task", "per-task"),
    "strong_statistics": ("apart", "unlabeled"),
    "distillation_scale": ("one", "temperature-squared"),
    "teacher_start": ("fresh", "past"),
    "labeled_statistics": ("together", "apart"),
    "accepted_statistics": ("unlabeled", "labeled"),
    "new_task_statistics": ("apart", "together"),
    "past_statistics": ("running", "all-batches"),
    "pseudo_label_counts": ("pass", "epoch"),
    "fine_tuning_data": ("labeled-and-coreset", "labeled-and-coreset"),
    "fine_tuning_statistics": ("running", "batch"),
    "fine_tuning_unlabeled": (False, True),
    "balanced_trainings": ("fine-tuning", "fine-tuning"),
}


@pytest.mark.parametrize("name", READINGS)
def test_each_reading_has_the_decided_default_and_the_releases_value(name: str) -> None:
    ours, release = READINGS[name]
    assert getattr(RunConfig(), name) == ours
    assert getattr(RunConfig(preset="release"), name) == release


@pytest.mark.parametrize("change", [{}, {"preset": "release"}])
def test_accepted_images_are_normalized_with_labelled_ones_that_are_apart(
    change: dict[str, Any],
) -> None:
    """Unless that is said otherwise; a configuration that is changed or read back keeps it."""
    apart = RunConfig(labeled_statistics="apart", **change)
    assert apart.accepted_statistics == "labeled"
    assert RunConfig(**yaml.safe_load(apart.to_yaml())) == apart
    assert RunConfig().replace(**change, labeled_statistics="apart") == apart
    assert apart.replace(seed=2).accepted_statistics == "labeled"
    otherwise = apart.replace(accepted_statistics="unlabeled")
    assert otherwise.accepted_statistics == "unlabeled"
    assert otherwise.replace(seed=2).accepted_statistics == "unlabeled"
    assert otherwise.replace(seed=2, labeled_statistics="apart") == otherwise.replace(seed=2)


def test_the_release_preset_changes_nothing_else() -> None:
    ours, release = RunConfig().model_dump(), RunConfig(preset="release").model_dump()
    differing = {name for name in ours if ours[name] != release[name]}
    assert differing == {"preset"} | {name for name, (a, b) in READINGS.items() if a != b}


def test_the_release_in_full_differs_from_it_in_four_points() -> None:
    release, full = (RunConfig(preset=name).model_dump() for name in ("release", "release-in-full"))
    assert {name: value for name, value in full.items() if value != release[name]} == {
        "preset": "release-in-full",
        "initial_weights": "uniform-norms",
        "past_statistics": "step",
        "accepted_statistics": "labeled-only",
        "count_smoothing": 0.2,
    }


@pytest.mark.parametrize("name", [name for name, (a, b) in READINGS.items() if a != b])
def test_an_explicit_value_wins_over_the_preset(name: str) -> None:
    ours, _ = READINGS[name]
    config = RunConfig(preset="release", **{name: ours})
    assert getattr(config, name) == ours
    others = RunConfig(preset="release").model_dump(exclude={name})
    assert config.model_dump(exclude={name}) == others


def test_explicit_values_win_on_the_command_line_and_in_a_file(tmp_path: Path) -> None:
    words = ["--preset", "release", "--similarity", "inner", "--base-distillation", "false"]
    expected = RunConfig(preset="release", similarity="inner", base_distillation=False)
    assert from_words(words) == expected
    assert expected.epsilon_rule == "lowest-halved"
    file = tmp_path / "run.yaml"
    file.write_text("preset: release\nsimilarity: inner\nbase-distillation: false\n")
    assert RunConfig.from_yaml(file) == expected
    over_file = from_words(["--config", str(file), "--similarity", "cosine"])
    assert over_file == expected.replace(similarity="cosine")


def test_a_preset_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="preset must be one of 'protocol', 'release', 'release-in-full', not 'ours'",
    ):
        RunConfig(preset="ours")


# For every option of a run beside the stream's, a value that is not its default.
VALUES: dict[str, Any] = {
    "method": "gd",
    "preset": "release",
    "options": {"depth": 3, "rate": 0.5, "name": "b", "deep": True},
    "network": "wrn-16-2",
    "pretrained": "weights.safetensors",
    "initial_weights": "uniform",
    "epochs": 3,
    "batch": 5,
    "unlabeled_batch": 6,
    "last_batches": "short",
    "learning_rate": 0.02,
    "momentum": 0.5,
    "weight_decay": 0.001,
    "clip": 2.0,
    "base_clip": 3.0,
    "temperature": 3.0,
    "device": "cpu",
    "precision": "float32",
    "resident_bytes": 4096,
    "pseudo_labels": False,
    "class_balancing": False,
    "consistency": False,
    "distillation": False,
    "consistency_weight": 0.5,
    "distillation_weight": 0.25,
    "consistency_threshold": 0.7,
    "consistency_from": "first-task",
    "distillation_shares": "class-share",
    "count_smoothing": 0.0,
    "weight_cap": 5.0,
    "coreset_counts": "labels-and-pseudo-labels",
    "pseudo_label_counts": "epoch",
    "pseudo_label_targets": "soft",
    "pseudo_label_views": 3,
    "strong_labels": "labels",
    "past_statistics": "all-batches",
    "gate": "energy",
    "gate_confidence": 0.6,
    "true_positive_rate": 0.2,
    "true_positive_rate_rule": "growing",
    "false_positive_rate": 0.3,
    "similarity": "euclidean",
    "epsilon_rule": "lowest-halved",
    "detector_share": 1.5,
    "detector_losses": "labels",
    "weight_averaging": 0.99,
    "base_distillation": True,
    "strong_statistics": "together",
    "dr_distillation": "single",
    "distillation_scale": "temperature-squared",
    "teacher_start": "past",
    "labeled_statistics": "apart",
    "accepted_statistics": "labeled",
    "new_task_statistics": "together",
    "calibration": False,
    "ensemble_share": "past-model",
    "fine_tuning_data": "coreset",
    "fine_tuning_statistics": "batch",
    "fine_tuning_unlabeled": True,
    "balanced_trainings": "all",
}


def from_words(words: list[str]) -> RunConfig:
    return config_from(make_parser().parse_args(["run", "--out", "out", *words]), RunConfig)


def words_of(options: dict[str, Any]) -> list[str]:
    """Write options as on a command line: switches as true and false, own settings as pairs."""
    words = []
    for key, value in options.items():
        words.append(f"--{key.replace('_', '-')}")
        if isinstance(value, dict):
            words += [f"{name}={one}".replace("=True", "=true") for name, one in value.items()]
        elif isinstance(value, bool):
            words.append(str(value).lower())
        else:
            words.append(str(value))
    return words


def test_every_option_of_a_run_is_tried() -> None:
    assert VALUES.keys() == RunConfig.model_fields.keys() - StreamConfig.model_fields.keys()
    for name, value in VALUES.items():
        default = RunConfig.model_fields[name].get_default(call_default_factory=True)
        assert value != default, name


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from(sorted(VALUES))))
def test_python_yaml_and_the_command_line_build_the_same_run(keys: set[str]) -> None:
    options = {key: VALUES[key] for key in sorted(keys)}
    expected = RunConfig(**options)
    assert from_words(words_of(options)) == expected
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.yaml"
        file.write_text(yaml.safe_dump({k.replace("_", "-"): v for k, v in options.items()}))
        assert RunConfig.from_yaml(file) == expected
        file.write_text(expected.to_yaml())
        assert RunConfig.from_yaml(file) == expected
        over_file = from_words(["--config", str(file), "--seed", "77"])
        assert over_file == expected.replace(seed=77)


@pytest.mark.parametrize("switch", [True, False])
def test_a_switch_is_true_or_false(switch: bool) -> None:
    assert from_words(["--calibration", str(switch).lower()]).calibration is switch
    with pytest.raises(ConfigError, match="calibration must be true or false, not 'yes'"):
        from_words(["--calibration", "yes"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"learning_rate": 0.0}, "learning_rate must be more than 0"),
        ({"learning_rate": "fast"}, "learning_rate must be a number, not 'fast'"),
        (
            {"gate": "open"},
            "gate must be one of 'detector', 'softmax', 'energy', 'features', 'ensemble', ",
        ),
        ({"true_positive_rate": 1.5}, "true_positive_rate must be at most 1"),
        ({"false_positive_rate": 0.0}, "false_positive_rate must be more than 0"),
        *(
            (
                {"false_positive_rate": 0.2, "gate": gate},
                "false_positive_rate needs gate 'detector', 'energy', 'features', 'ensemble', "
                f"'newness', 'newness-crossed', whose threshold is calibrated, not '{gate}'",
            )
            for gate in ("softmax", "everything", "truth", "truth-new")
        ),
        ({"weight_averaging": 1.0}, "weight_averaging must be less than 1"),
        ({"consistency": 1}, "consistency must be true or false, not 1"),
        ({"calibrate": True}, "unknown key 'calibrate' (did you mean 'calibration'?)"),
        (
            {"device": "cpu", "precision": "bfloat16"},
            "precision must be 'float32' or 'auto' with device 'cpu'",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused_with_the_key_and_what_it_may_be(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        RunConfig(**options)
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)


def test_the_choices_of_a_run_are_shown_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["run", "--help"])
    shown = "".join(capsys.readouterr().out.split())
    for name, field in RunConfig.model_fields.items():
        assert f"--{name.replace('_', '-')}" in shown
        choices = "|".join(map(str, allowed_values(field.annotation)))
        assert choices in shown
