"""Command line options made from configuration types, so that names and meanings exist once."""

import argparse
import contextlib
import types
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml

from distillmatch.cli.parser import Parser, option
from distillmatch.config import (
    IMAGE_KEYS,
    LOCATION_KEYS,
    Config,
    RunConfig,
    StreamConfig,
    allowed_values,
    parse_yaml,
    read_yaml,
    with_underscores,
)
from distillmatch.errors import ConfigError
from distillmatch.plugins import CODE_KEYS, METHODS, plugin_names, refuse_code, refuse_unknown
from distillmatch.streams import SavedStream

AnyConfig = TypeVar("AnyConfig", bound=Config)

RUN_GROUPS: dict[str, tuple[str, ...]] = {
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
"""What the help of a run shows. All its other keys are options as well, but few people use them."""
STREAM_GROUPS: dict[str, tuple[str, ...]] = {
    "images": IMAGE_KEYS,
    "stream": tuple(name for name in StreamConfig.model_fields if name not in IMAGE_KEYS),
}
OF_METHOD = "method:"
"""Prefix of a method's options among the parsed arguments."""
METHOD_GROUP = "method's own options"


def at_least(least: int, kind: type[int] | type[float] = int) -> Callable[[str], Any]:
    """Return the reader of a number that must not be smaller."""
    what = "a whole number" if kind is int else "a number"

    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if (number := kind(text)) >= least:
                return number
        raise argparse.ArgumentTypeError(f"must be {what} of at least {least}, not '{text}'")

    return read


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read seeds, as `1,2,3`."""
    seeds = tuple(int(word) for word in text.split(",") if word.isdecimal())
    if len(set(seeds)) < len(text.split(",")):
        raise argparse.ArgumentTypeError(
            f"expected different whole numbers such as 1,2,3, not '{text}'"
        )
    return seeds


def add_config_file_option(group: "argparse._ActionsContainer") -> None:
    """Add `--config FILE` and `--allow-import`."""
    option(group, "--config FILE", "YAML file of these options; they override it", Path)
    add_allow_import(group)


def add_allow_import(group: "argparse._ActionsContainer") -> None:
    """Add `--allow-import NAME`."""
    said = "allow a file to name this code of yours (module:name), and import it; repeatable"
    option(group, "--allow-import NAME", said, action="append", default=[])


def add_state(parser: argparse.ArgumentParser) -> None:
    """Add the folder of a learner, and whether code that it names may be imported."""
    option(parser, "state STATE", "folder of the learner", Path)
    add_allow_import(parser)


def add_device_option(parser: "argparse._ActionsContainer") -> None:
    """Add where to compute, to a command without a run's options."""
    option(parser, "--device auto|cpu|cuda", "where to compute", default="auto")


def add_checkpoint_seconds(group: "argparse._ActionsContainer") -> None:
    """Add `--checkpoint-seconds`."""
    said = "seconds between a run's checkpoints; 0: only after each task"
    option(group, "--checkpoint-seconds X", said, at_least(0, float), 60.0)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    option(parser, "--json", "print JSON instead of tables")


def add_config_options(
    parser: argparse.ArgumentParser,
    config: type[Config],
    groups: dict[str, tuple[str, ...]],
) -> None:
    """Add `--config FILE` and an option for each field; fields in no group are hidden."""
    parser.usage = "%(prog)s [options]"
    add_config_file_option(parser)
    for title, names in groups.items():
        group = parser.add_argument_group(title)
        for name in names:
            add_field_option(group, config, name)
    shown = {name for names in groups.values() for name in names}
    rare = [name for name in config.model_fields if name not in (*shown, "options")]
    for name in rare:
        add_field_option(parser, config, name, hidden=True)
    listed = ", ".join(f"--{name.replace('_', '-')}" for name in rare)
    note = f"Rarely needed options: {listed}. Every option is also a key of a --config file."
    parser.epilog = "\n\n".join(filter(None, (note, parser.epilog)))


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run's configuration."""
    add_config_options(parser, RunConfig, RUN_GROUPS)
    note = "Add --help to --method NAME to see the options of that method."
    parser.epilog = f"{note} {parser.epilog}"


def add_field_option(
    group: "argparse._ActionsContainer",
    config: type[Config],
    name: str,
    *,
    hidden: bool = False,
    dest: str | None = None,
) -> None:
    """Add the option of one field; what is not given is not in the parsed arguments."""
    field = config.model_fields[name]
    if get_origin(field.annotation) is dict:
        group.add_argument(
            f"--{name}",
            default=argparse.SUPPRESS,
            nargs="+",
            action=_Pairs,
            metavar="NAME=VALUE",
            help=field.description,
        )
        return
    choices, (kinds, is_list) = allowed_values(field.annotation), _kinds(field.annotation)
    known = field.default in (None, ()) or "default:" in str(field.description)
    default = str(field.default).lower() if isinstance(field.default, bool) else field.default
    shown = "" if known else f" (default: {default})"
    names = {int: "N", float: "X", Path: "PATH", bool: "true|false"}
    metavar = next((shown for kind, shown in names.items() if kind in kinds), "NAME")
    group.add_argument(
        f"--{name.replace('_', '-')}",
        dest=dest or name,
        default=argparse.SUPPRESS,
        nargs="+" if is_list else None,
        type=_reader(kinds, is_list),
        metavar="|".join(map(str, choices)) or metavar,
        help=argparse.SUPPRESS if hidden else f"{field.description}{shown}".replace("%", "%%"),
    )


class MethodParser(Parser):
    """A parser of a command that trains: it takes the options of the method that is named."""

    def parse_some(self, args: Any, namespace: Any) -> tuple[Any, list[str]]:
        """Parse; add the method's own options for its help, or if options are left over."""
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


def config_from(
    arguments: argparse.Namespace,
    config: type[AnyConfig],
    values: dict[str, Any] | None = None,
) -> AnyConfig:
    """Build a configuration from the given options, over those of `--config`, or from `values`."""
    values = given_values(arguments, config) if values is None else values
    if arguments.config is None:
        return config(**values)
    return config.from_mapping(values, str(arguments.config), allowed_imports(arguments))


def config_beside(
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
    """Return the unchecked values of options, over those of `--config`.

    The options of a run's method are under `options`.
    """
    values: dict[str, Any] = {}
    if arguments.config is not None:
        read = read_yaml(arguments.config)
        if not isinstance(read, dict):
            config.from_mapping(read, str(arguments.config))  # raises with what it expected
            return values
        refuse_code(read, str(arguments.config), allowed_imports(arguments))
        try:
            values = with_underscores(read)
        except ConfigError as error:
            raise ConfigError(f"{arguments.config}: {error}") from None
    own: dict[str, Any] = {}
    for name, value in vars(arguments).items():
        if name.startswith(OF_METHOD):
            own[name.removeprefix(OF_METHOD)] = value
        elif name in config.model_fields:
            values[name] = _flat(value)
    if own:
        before = values.get("options", {})
        values["options"] = {**(before if isinstance(before, dict) else {}), **own}
    return values


def allowed_imports(arguments: argparse.Namespace) -> set[str]:
    """Return the names of code that the user gave in options, or allowed."""
    given = [getattr(arguments, key, None) for key in CODE_KEYS]
    return {*getattr(arguments, "allow_import", ()), *(one for one in given if one)}


def key_and_value(option: str, word: str) -> tuple[str, Any]:
    """Return the two sides of `key=value`, the value as YAML reads it."""
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise ConfigError(f"{option} takes key=value, not '{word}'")
    try:
        return key, parse_yaml(text)
    except yaml.YAMLError:
        raise ConfigError(f"{option} takes key=value, and '{text}' is not a value") from None


def _method_of(parsed: argparse.Namespace) -> str:
    """Return the method that the options or the file of `--config` name."""
    if "method" in parsed:
        return str(parsed.method)
    path: Path | None = getattr(parsed, "config", None)
    read = read_yaml(path) if path is not None else None
    named = read.get("method") if isinstance(read, dict) else None
    return str(named or RunConfig.model_fields["method"].default)


def _value_of(option: str, words: Sequence[str]) -> str | None:
    for word, following in pairwise((*words, "")):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _flat(value: Any) -> Any:
    """Join the lists that commas made within a list of words."""
    if not isinstance(value, list):
        return value
    return [item for part in value for item in (part if isinstance(part, list) else [part])]


def _kinds(annotation: Any) -> tuple[set[Any], bool]:
    """Return the plain types inside unions and annotations, and whether they are of a list."""
    if hasattr(annotation, "__metadata__"):
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        return _kinds(get_args(annotation)[0])[0], True
    if get_origin(annotation) not in (Union, types.UnionType):
        return {annotation}, False
    parts = [_kinds(part) for part in get_args(annotation)]
    return set().union(*(kinds for kinds, _ in parts)), any(is_list for _, is_list in parts)


def _reader(kinds: set[Any], is_list: bool) -> Callable[[str], Any]:
    """Return what turns an option's text into a value; text that does not fit stays text.

    The configuration then refuses it with the same sentence as for YAML and Python.
    """

    def read(text: str) -> Any:
        if int in kinds and "," in text and is_list:
            return [read(part) for part in text.split(",")]
        for number in (int, float):
            with contextlib.suppress(ValueError):
                if number in kinds:
                    return number(text)
        if bool in kinds and text in ("true", "false"):
            return text == "true"
        return None if text == "none" and type(None) in kinds else text

    return read


class _Pairs(argparse.Action):
    """Collects `name=value` words."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        pairs = dict(key_and_value(str(option_string), str(word)) for word in values or ())
        setattr(namespace, self.dest, pairs)
