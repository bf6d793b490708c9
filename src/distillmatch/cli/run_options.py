"""Options of the commands that train: a run's, in groups, and those of the method that is named."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distillmatch.cli.options import (
    Parser,
    add_config_file_option,
    add_field_option,
    config_of,
    given_values,
)
from distillmatch.config import RunConfig, read_yaml
from distillmatch.plugins import METHODS, plugin_names, refuse_unknown

GROUPS: dict[str, tuple[str, ...]] = {
    "stream": (
        "source",
        "data_dir",
        "unlabeled_dirs",
        "test_dir",
        "image_size",
        "order",
        "tasks",
        "unlabeled",
        "labels_per_class",
        "coreset",
        "splits",
        "seed",
    ),
    "method": ("method", "recipe"),
    "training": (
        "network",
        "pretrained",
        "epochs",
        "batch",
        "unlabeled_batch",
        "stored_share",
        "strong_labels",
        "learning_rate",
        "schedule",
        "optimizer",
        "weight_averaging",
    ),
    "where to compute": ("device", "precision"),
}
"""What `--help` shows. All other keys of a run are options as well, which few people turn."""
OF_METHOD = "method:"
"""Begins the names of a method's options among the parsed arguments."""


class MethodParser(Parser):
    """A parser of a command that trains: it takes the options of the method that is named."""

    def parse_some(self, args: Any, namespace: Any) -> tuple[Any, list[str]]:
        """Parse; where words are left, or help is asked for, look at the method's own options."""
        words = list(args or ())
        named = _value_of("--method", words)
        if named is not None and any(word in ("-h", "--help") for word in words):
            self._add_method_options(named)
        parsed, left = super().parse_some(words, namespace)
        unknown = [word for word in left if word.startswith("--")]
        if unknown and not any(one.title == METHOD_GROUP for one in self._action_groups):
            self._add_method_options(_method_of(parsed))
            parsed, left = super().parse_some(words, namespace)
        return parsed, left

    def _add_method_options(self, name: str) -> None:
        from distillmatch.methods import find_method

        if ":" not in name:
            refuse_unknown(name, plugin_names(METHODS), "method")
        options = find_method(name).Options
        group = self.add_argument_group(METHOD_GROUP, f"of method '{name}'")
        for field in options.model_fields:
            add_field_option(group, options, field, dest=f"{OF_METHOD}{field}")


METHOD_GROUP = "method's own options"


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add `--config FILE` and an option for each field of a run's configuration."""
    parser.usage = "%(prog)s [options]"
    add_config_file_option(parser.add_argument_group("configuration"))
    shown = {name for names in GROUPS.values() for name in names}
    rare = [name for name in RunConfig.model_fields if name not in (*shown, "options")]
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            add_field_option(group, RunConfig, name)
    for name in rare:
        add_field_option(parser, RunConfig, name, hidden=True)
    listed = ", ".join(f"--{name.replace('_', '-')}" for name in rare)
    parser.epilog = (
        f"Further options, which few runs need: {listed}. With --method NAME --help the method's "
        "own options are listed. Every option is a key of a --config file as well, those of the "
        "method under the key options."
    )


def run_config_from(arguments: argparse.Namespace) -> RunConfig:
    """Build the configuration from the options that were given, over those of `--config`."""
    return config_of(run_values(arguments), arguments, RunConfig)


def run_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values that were given, the method's options among them, unchecked."""
    values = given_values(arguments, RunConfig)
    own = {
        name.removeprefix(OF_METHOD): value
        for name, value in vars(arguments).items()
        if name.startswith(OF_METHOD)
    }
    if own:
        before = values.get("options", {})
        values["options"] = {**(before if isinstance(before, dict) else {}), **own}
    return values


def _method_of(parsed: argparse.Namespace) -> str:
    """Return the method that the options or the file of `--config` name."""
    if "method" in parsed:
        return str(parsed.method)
    path: Path | None = getattr(parsed, "config", None)
    read = read_yaml(path) if path is not None else None
    named = read.get("method") if isinstance(read, dict) else None
    return str(named or RunConfig.model_fields["method"].default)


def _value_of(option: str, words: Sequence[str]) -> str | None:
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None
