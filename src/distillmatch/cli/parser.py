"""Parsers of commands: typed options, help with examples, and errors of one sentence."""

import argparse
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import indent, wrap
from types import NoneType
from typing import Any, NoReturn, TypeAlias, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from distillmatch.config.base import complaint
from distillmatch.errors import ConfigError, did_you_mean

Commands: TypeAlias = "argparse._SubParsersAction[Any]"
Group: TypeAlias = "argparse._ActionsContainer"
METAVARS = {int: "N", float: "X", Path: "PATH", bool: "true|false"}
"""What the help calls a value of a type; others are names."""


class _Formatter(argparse.HelpFormatter):
    """Wraps paragraphs, but keeps the lines of those that are indented; its usage is short."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        """Show what must be given; all else is in the list of options."""
        if usage is None and prefix is None:
            needed = [one for one in actions if one.required or not one.option_strings]
            usage = f"{self._format_usage(None, needed, [], '').strip()} [options]"
        super().add_usage(usage, actions, groups, prefix)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = [
            part
            if "\n  " in part
            else "\n".join(indent + line for line in self._split_lines(part, width - len(indent)))
            for part in text.split("\n\n")
        ]
        return "\n\n".join(parts)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one sentence, with the nearest option.

    Options may stand among the words of a list. `before_parsing` is given the words of the command
    line before they are parsed, and may add options.
    """

    before_parsing: Callable[[Sequence[str]], None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": _Formatter, **kwargs})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse, and refuse what nothing takes."""
        if self.before_parsing is not None:
            self.before_parsing(args)
        parsed, left = super().parse_known_args(args, namespace)
        if self._subparsers is None:
            self._take_left(left, parsed)
            left = []
        return parsed, left

    def _take_left(self, left: list[str], parsed: argparse.Namespace) -> None:
        """Add words that come after options to the list of words; refuse all others."""
        lists = [one for one in self._get_positional_actions() if one.nargs in ("*", "+")]
        for place, word in enumerate(left):
            is_option = word.startswith("-") and word != "-" and "--" not in left[:place]
            if lists and not is_option:
                getattr(parsed, lists[0].dest).append(self._get_value(lists[0], word))
            elif word != "--":
                known = self._option_string_actions
                hint = did_you_mean(word.partition("=")[0], known) if is_option else ""
                what = "unknown option" if is_option else "unexpected argument"
                self.error(f"{what} '{word}'{hint}")

    def error(self, message: str) -> NoReturn:
        """Report wrong usage like every other wrong input."""
        message = message.removeprefix("argument ").replace(": must", " must", 1)
        raise ConfigError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is none of an argument's choices, with the nearest one."""
        if action.choices is not None and value not in action.choices:
            known = [str(one) for one in action.choices]
            hint = did_you_mean(value, known)
            message = f"must be one of {', '.join(known)}, not '{value}'{hint}"
            raise argparse.ArgumentError(action, message)


def add_command(
    commands: Commands, name: str, run: Callable[..., int | None], usage: str | None = None
) -> Parser:
    """Add a command whose help is the docstring of its function: a sentence, then examples."""
    sentence, _, examples = str(inspect.getdoc(run)).partition("\n\n")
    parser: Parser = commands.add_parser(name, help=sentence, description=sentence, usage=usage)
    if examples:
        parser.epilog = f"examples:\n{indent(examples, '  ')}"
    parser.set_defaults(run=run)
    return parser


def add_group(commands: Commands, name: str, sentence: str, parts: str) -> tuple[Parser, Commands]:
    """Add a command of several parts, such as `list|run`; return it and where to add these."""
    parser: Parser = commands.add_parser(name, help=sentence, description=sentence)
    return parser, parser.add_subparsers(
        dest="part", required=True, metavar=parts, parser_class=Parser
    )


def option(
    group: Group, spelled: str, help: str, kind: Any = None, default: Any = None, **more: Any
) -> None:
    """Add an option or a positional argument as it is spelled in the help.

    `--quick` is a switch, `--out DIR` takes a value, and `--files FILE ...` takes several. Values
    are read as `kind` by pydantic: numbers in a tuple are separated by commas, and an option of
    `list[str]` can be repeated. Where no word for the value is given, it follows from the type,
    such as `paper|quick`. The help names the default.
    """
    name, _, metavar = spelled.partition(" ")
    if not metavar and kind is None:
        group.add_argument(name, action="store_true", help=help, **more)
        return
    types = _types_in(kind or str)
    choices = [value for value in types if isinstance(value, str)]
    if choices == types:
        more["choices"] = choices
    if not metavar:
        metavar = "|".join(choices) or next((METAVARS[t] for t in METAVARS if t in types), "NAME")
        metavar += " ..." if _is_list(kind) else ""
    if get_origin(kind) is list:
        kind, default = get_args(kind)[0], []
        more["action"] = "append"
    if metavar.endswith(" ..."):
        metavar, default = metavar.removesuffix(" ..."), default or []
        more = {"nargs": "+", "action": "extend", **more}
    read = str if kind in (None, str) or "choices" in more else _reader(kind)
    help = with_default(help, default).replace("%", "%%")
    group.add_argument(name, type=read, default=default, metavar=metavar, help=help, **more)


def with_default(help: str, default: Any) -> str:
    """Return the help of an option with its default, unless it says it already."""
    if "(default:" in help or default in (None, [], (), argparse.SUPPRESS):
        return help
    shown = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{help} (default: {shown.lower() if isinstance(default, bool) else shown})"


def _types_in(annotation: Any) -> list[Any]:
    """Return the types inside unions, lists and annotations, and the values of literals."""
    if hasattr(annotation, "__metadata__"):
        return _types_in(annotation.__origin__)
    inside = [found for part in get_args(annotation) for found in _types_in(part)]
    return [one for one in inside or [annotation] if one not in (NoneType, Ellipsis)]


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(map(_is_list, get_args(annotation)))


def _reader(kind: Any) -> Callable[[str], Any]:
    """Return what reads a value of a type from text; `none` is None where that may be."""

    def read(text: str) -> Any:
        given: Any = text
        if _is_list(kind):
            given = text.split(",") if int in _types_in(kind) else [text]
        elif text == "none" and NoneType in get_args(kind):
            return None
        try:
            return TypeAdapter(kind).validate_python(given, strict=False)
        except ValidationError as error:
            raise argparse.ArgumentTypeError(complaint(error.errors()[0])) from None

    return read
