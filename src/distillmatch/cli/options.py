"""Options that several commands have, and those made from the fields of a configuration."""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml

from distillmatch.cli.parser import Group, Parser, option, with_default
from distillmatch.config import (
    IMAGE_KEYS,
    LOCATION_KEYS,
    PLACE_KEYS,
    Config,
    RunConfig,
    StreamConfig,
    parse_yaml,
    read_yaml,
    with_underscores,
)
from distillmatch.config.base import CountOrZero, NotNegative, Place
from distillmatch.config.recipe import RecipeName
from distillmatch.errors import ConfigError
from distillmatch.plugins import CODE_KEYS, refuse_code
from distillmatch.streams import SavedStream

AnyConfig = TypeVar("AnyConfig", bound=Config)

LEDGERS = {"paper": Path("results"), "quick": Path("runs/quick/results")}
"""Where results are kept by default; small experiments stay out of the real ones."""
COMMON: dict[str, tuple[Any, ...]] = {
    "state": ("state STATE", "folder of the learner", Place),
    "config": ("--config FILE", "YAML file of options; those given here override it", Place),
    "allow_import": (
        "--allow-import NAME",
        "allow files to name this code of yours (module:name), and import it; repeatable",
        list[str],
    ),
    "device": ("--device", "where to compute", Literal["auto", "cpu", "cuda"], "auto"),
    "checkpoint_seconds": (
        "--checkpoint-seconds",
        "seconds between checkpoints; 0: only after each task",
        NotNegative,
        60.0,
    ),
    "seeds": ("--seeds N,N,…", "seeds (default: the experiment's)", tuple[CountOrZero, ...]),
    "json": ("--json", "print JSON instead of tables"),
    "recipe": (
        "--recipe",
        "how the paper's methods are computed where its words and its published figures differ "
        "(default: paper; with --scale quick as-written, which learns in fewer steps)",
        RecipeName,
    ),
    "scale": (
        "--scale",
        "experiments as in the paper, or small ones on the embedded data",
        Literal["paper", "quick"],
        "paper",
    ),
    "ledger": (
        "--ledger DIR",
        f"folder of results (default: {LEDGERS['paper']}; with --scale quick {LEDGERS['quick']})",
        Place,
    ),
}
"""Options of several commands, as arguments of `option`."""
GROUPS: dict[str, Sequence[str]] = {
    "images": IMAGE_KEYS,
    "stream": [key for key in StreamConfig.model_fields if key not in (*IMAGE_KEYS, "recipe")],
    "method": ("method", "recipe"),
    "training": [
        key
        for key in RunConfig.model_fields
        if key not in (*StreamConfig.model_fields, *PLACE_KEYS, "method", "options")
    ],
    "where to compute": PLACE_KEYS,
}
"""The fields of configurations in the groups of the help."""
RARE = (
    *("bad_images", "cache_dir", "task_sizes", "class_order", "repetition", "distractors"),
    *("random_classes", "unlabeled_per_task", "label_fraction", "momentum", "weight_decay"),
    "resident_bytes",
)
"""Options that the help of a run only mentions, as few people use them."""
OF_METHOD = "method:"
"""Prefix of a method's options among the parsed arguments."""


def add_common(group: Group, *names: str) -> None:
    """Add options that several commands have."""
    for name in names:
        option(group, *COMMON[name])


def add_config_options(parser: Parser, config: type[Config]) -> None:
    """Add `--config FILE` and an option for each field of a configuration.

    A command that runs a method has the method's own options, too.
    """
    add_common(parser, "config", "allow_import")
    rare = RARE if config is RunConfig else ()
    for title, keys in GROUPS.items():
        names = [key for key in keys if key in config.model_fields]
        if names:
            group = parser.add_argument_group(title)
            add_fields(group, config, *names, hidden=rare)
    notes = "Every option is also a key of a --config file."
    if config is RunConfig:
        parser.before_parsing = partial(_add_method_options, parser)
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in rare)
        method = "Add --help to --method NAME to see the options of that method."
        notes = f"{method} Less common options: {listed}. {notes}"
    parser.epilog = "\n\n".join(filter(None, (notes, parser.epilog)))


def add_fields(
    group: Group, config: type[Config], *names: str, hidden: Sequence[str] = (), prefix: str = ""
) -> None:
    """Add an option for each of these fields; what is not given is not among the arguments."""
    for name in names:
        field, kind = config.model_fields[name], config.model_fields[name].annotation
        for constraint in field.metadata:
            kind = Annotated[kind, constraint]  # type: ignore[assignment]
        said = with_default(str(field.description), field.default)
        said = argparse.SUPPRESS if name in hidden else said
        spelled = f"--{name.replace('_', '-')}"
        option(group, spelled, said, kind, argparse.SUPPRESS, dest=f"{prefix}{name}")


def _add_method_options(parser: Parser, words: Sequence[str]) -> None:
    """Add the options of the method that is named, where one of them or the help is asked for.

    To find a method takes torch, and so a second.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--method")
    finder.add_argument("--config", type=Path)
    add_common(finder, "allow_import")
    try:
        found = finder.parse_known_args(words)[0]
    except argparse.ArgumentError:  # which the parser itself reports
        return
    known = parser._option_string_actions
    unknown = [word for word in words if word[:2] == "--" and word.partition("=")[0] not in known]
    if not unknown and (found.method is None or not {"-h", "--help"}.intersection(words)):
        return
    values = {"method": found.method}
    if found.method is None and found.config is not None:
        values = with_underscores(read_yaml(found.config), str(found.config))
        refuse_code(values, str(found.config), found.allow_import)
    from distillmatch.methods import find_method

    name = str(values.get("method") or RunConfig.model_fields["method"].default)
    options = find_method(name).Options
    group = parser.add_argument_group(f"options of method {name}")
    add_fields(group, options, *options.model_fields, prefix=OF_METHOD)


def config_from(
    arguments: argparse.Namespace, config: type[AnyConfig], values: dict[str, Any] | None = None
) -> AnyConfig:
    """Build a configuration from the given options, over those of `--config`, or from `values`."""
    values = given_values(arguments, config) if values is None else values
    if arguments.config is None:
        return config(**values)
    return config.from_mapping(values, str(arguments.config), allowed_imports(arguments))


def config_for_stream(
    path: Path, arguments: argparse.Namespace, config: type[AnyConfig], free: Sequence[str] = ()
) -> AnyConfig:
    """Return the configuration with what describes the saved stream at `path`.

    Values that contradict the stream are refused, except those in `free` and where files lie.
    """
    values = given_values(arguments, config)
    stream = SavedStream.read(path)
    saved = stream.stream_config(path, allowed_imports(arguments)).model_dump()
    own = {key for key in (*LOCATION_KEYS, *free) if key in values}
    for key in (key for key in saved if key in values and key not in own):
        there = len(stream.tasks) if key == "tasks" else saved[key]
        there, came = (list(one) if isinstance(one, tuple) else one for one in (there, values[key]))
        if came != there:
            raise ConfigError(f"{key} is {there!r} in {path}, not {came!r}")
    described = {key: value for key, value in saved.items() if key not in own}
    return config_from(arguments, config, {**values, **described})


def given_values(arguments: argparse.Namespace, config: type[Config]) -> dict[str, Any]:
    """Return the values of options, over the unchecked ones of `--config`.

    The options of a run's method are under `options`.
    """
    values: dict[str, Any] = {}
    if arguments.config is not None:
        values = with_underscores(read_yaml(arguments.config), str(arguments.config))
    own: dict[str, Any] = {}
    for name, value in vars(arguments).items():
        if name.startswith(OF_METHOD):
            own[name.removeprefix(OF_METHOD)] = value
        elif name in config.model_fields:
            values[name] = list(chain(*value)) if isinstance(value, list) else value
    if own:
        before = values.get("options", {})
        values["options"] = {**(before if isinstance(before, dict) else {}), **own}
    return values


def allowed_imports(arguments: argparse.Namespace) -> set[str]:
    """Return the names of code that the user gave in options, or allowed."""
    given = [getattr(arguments, key, None) for key in CODE_KEYS]
    return {*arguments.allow_import, *(one for one in given if one)}


def key_and_value(option: str, word: str) -> tuple[str, Any]:
    """Return the two sides of `key=value`, the value as YAML reads it."""
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise ConfigError(f"{option} takes key=value, not '{word}'")
    try:
        return key, parse_yaml(text)
    except yaml.YAMLError:
        raise ConfigError(f"{option} takes key=value, and '{text}' is not a value") from None
