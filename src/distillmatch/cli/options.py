"""Command line options made from a configuration type, so that names and meanings exist once."""

import argparse
import types
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar, Union, get_args, get_origin

import yaml

from distillmatch.config import Config, allowed_values, parse_yaml, read_yaml, with_underscores
from distillmatch.errors import ConfigError
from distillmatch.plugins import CODE_KEYS, refuse_code

AnyConfig = TypeVar("AnyConfig", bound=Config)
Commands: TypeAlias = "argparse._SubParsersAction[Any]"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence; `intermixed`, options may stand among a list.

    Whatever it reads as a `Path` may not be empty.
    """

    def __init__(self, *args: Any, intermixed: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self._intermixed = intermixed
        self._parses_twice = False
        self.register("type", Path, _path)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse, and refuse what nothing takes, with the nearest option there is."""
        if self._intermixed:
            self._intermixed = False  # what follows parses twice, by this very method
            self._parses_twice = True
            try:
                parsed, left = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._intermixed, self._parses_twice = True, False
        else:
            parsed, left = self.parse_some(args, namespace)
        if left and not self._parses_twice and self._subparsers is None:
            self.refuse(left)
        return parsed, left

    def parse_some(self, args: Any, namespace: Any) -> tuple[Any, list[str]]:
        """Parse what there are options for, and return the rest."""
        return super().parse_known_args(args, namespace)

    def refuse(self, left: Sequence[str]) -> None:
        """Refuse words that nothing takes; of an option the nearest one is named."""
        for word in left:
            name = word.partition("=")[0]
            known = [option for action in self._actions for option in action.option_strings]
            close = get_close_matches(name, known, n=1) if word.startswith("-") else []
            hint = f", did you mean '{close[0]}'?" if close else ""
            what = "no option" if word.startswith("-") else "nothing that takes"
            raise ConfigError(f"there is {what} '{word}'{hint} (see {self.prog} --help)")

    def error(self, message: str) -> NoReturn:
        """Report wrong usage like every other wrong input."""
        raise ConfigError(f"{message} (see {self.prog} --help)")


def add_command(commands: Commands, name: str, kind: type[Parser], help: str) -> Parser:
    """Add a command whose parser is of a kind of its own."""
    usual = commands._parser_class
    commands._parser_class = kind
    try:
        parser: Parser = commands.add_parser(name, help=help)
    finally:
        commands._parser_class = usual
    return parser


def add_config_file_option(group: "argparse._ActionsContainer") -> None:
    """Add `--config FILE`."""
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML file of the options below; they override it",
    )
    add_allow_import(group)


def add_allow_import(group: "argparse._ActionsContainer") -> None:
    """Add `--allow-import NAME`."""
    group.add_argument(
        "--allow-import",
        action="append",
        default=[],
        metavar="NAME",
        help="let a file name this code of your own (module:name), and import it; may be repeated",
    )


def add_state(parser: argparse.ArgumentParser) -> None:
    """Add the learner to be looked at, and whether its own code may be imported."""
    parser.add_argument("state", type=Path, metavar="STATE", help="folder of the learner")
    add_allow_import(parser)


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add where to compute, to a command that only looks."""
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to compute (default: auto)",
    )


def add_config_options(parser: argparse.ArgumentParser, config: type[Config]) -> None:
    """Add `--config FILE` and one option for each field of the configuration type."""
    parser.usage = "%(prog)s [options]"
    group = parser.add_argument_group("configuration")
    add_config_file_option(group)
    for name in config.model_fields:
        add_field_option(group, config, name)


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
    choices = allowed_values(field.annotation)
    known = field.default in (None, ()) or "default:" in str(field.description)
    default = str(field.default).lower() if isinstance(field.default, bool) else field.default
    shown = "" if known else f" (default: {default})"
    group.add_argument(
        f"--{name.replace('_', '-')}",
        dest=dest or name,
        default=argparse.SUPPRESS,
        nargs="+" if _is_list(field.annotation) else None,
        type=_reader(field.annotation),
        metavar="|".join(map(str, choices)) if choices else _metavar(field.annotation),
        help=argparse.SUPPRESS if hidden else f"{field.description}{shown}".replace("%", "%%"),
    )


def config_from(arguments: argparse.Namespace, config: type[AnyConfig]) -> AnyConfig:
    """Build the configuration from the options that were given, over those of `--config`."""
    return config_of(given_values(arguments, config), arguments, config)


def given_values(arguments: argparse.Namespace, config: type[Config]) -> dict[str, Any]:
    """Return the values that were given by options, over those of `--config`, unchecked."""
    given = {k: _flat(v) for k, v in vars(arguments).items() if k in config.model_fields}
    if arguments.config is None:
        return given
    read = read_yaml(arguments.config)
    if not isinstance(read, dict):
        config.from_mapping(read, str(arguments.config))  # which says what it expected
        return given
    refuse_code(read, str(arguments.config), allowed_imports(arguments))
    try:
        return {**with_underscores(read), **given}
    except ConfigError as error:
        raise ConfigError(f"{arguments.config}: {error}") from None


def config_of(
    values: dict[str, Any], arguments: argparse.Namespace, config: type[AnyConfig]
) -> AnyConfig:
    """Build the configuration from values, naming the file of `--config` in what is wrong."""
    if arguments.config is None:
        return config(**values)
    return config.from_mapping(values, str(arguments.config), allowed_imports(arguments))


def allowed_imports(arguments: argparse.Namespace) -> set[str]:
    """Return the names of code that the user gave, in options of their own or to allow them."""
    given = [getattr(arguments, key, None) for key in CODE_KEYS]
    return {*getattr(arguments, "allow_import", ()), *(one for one in given if one)}


def _path(text: str) -> Path:
    """Return the path that a text names; an empty one would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("must be a path, not ''")
    return Path(text)


def _flat(value: Any) -> Any:
    """Join the lists that commas made within a list of words."""
    if not isinstance(value, list):
        return value
    return [item for part in value for item in (part if isinstance(part, list) else [part])]


def _leaf_types(annotation: Any) -> list[Any]:
    """Return the plain types inside unions and annotations."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [leaf for part in get_args(annotation) for leaf in _leaf_types(part)]
    if hasattr(annotation, "__metadata__"):
        return _leaf_types(get_args(annotation)[0])
    return [annotation]


def _is_list(annotation: Any) -> bool:
    return any(get_origin(leaf) is tuple for leaf in _leaf_types(annotation))


def _item_types(annotation: Any) -> list[Any]:
    leaves = _leaf_types(annotation)
    lists = [_leaf_types(get_args(leaf)[0]) for leaf in leaves if get_origin(leaf) is tuple]
    return lists[0] if lists else leaves


def _reader(annotation: Any) -> Callable[[str], Any]:
    """Return what turns an option's text into a value; text that does not fit is left as it is.

    The configuration refuses it then, with the same sentence as for YAML and Python.
    """
    items = _item_types(annotation)

    def read(text: str) -> Any:
        if int in items and "," in text and _is_list(annotation):
            return [read(part) for part in text.split(",")]
        for number in (int, float):
            if number in items:
                try:
                    return number(text)
                except ValueError:
                    continue
        if bool in items and text in ("true", "false"):
            return text == "true"
        return None if text == "none" and type(None) in items else text

    return read


class _Pairs(argparse.Action):
    """Collects `name=value` words; a value is read as YAML would read it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        pairs: dict[str, Any] = {}
        for word in values or ():
            name, equals, value = str(word).partition("=")
            if not equals or not name:
                parser.error(f"{option_string} takes name=value, not '{word}'")
            try:
                pairs[name] = parse_yaml(value)
            except yaml.YAMLError:
                parser.error(f"{option_string} takes name=value, and '{value}' is no value")
        setattr(namespace, self.dest, pairs)


def _metavar(annotation: Any) -> str:
    names: Sequence[tuple[Any, str]] = (
        (int, "N"),
        (float, "X"),
        (Path, "PATH"),
        (bool, "true|false"),
    )
    items = _item_types(annotation)
    return next((name for kind, name in names if kind in items), "NAME")
