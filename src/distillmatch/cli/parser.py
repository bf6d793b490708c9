"""The parser of all commands: errors in one sentence with a suggestion, and help with examples."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from distillmatch.errors import ConfigError, did_you_mean

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


class _Formatter(argparse.HelpFormatter):
    """Wraps paragraphs, but keeps the lines of those that are indented."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        return "\n\n".join(
            part if "\n  " in part else super(_Formatter, self)._fill_text(part, width, indent)
            for part in paragraphs
        )


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence; with `intermixed`, options may stand among a list.

    `examples` are command lines that the help ends with. No `Path` may be empty.
    """

    def __init__(
        self, *args: Any, intermixed: bool = False, examples: Sequence[str] = (), **kwargs: Any
    ) -> None:
        defaults = {"allow_abbrev": False, "formatter_class": _Formatter}
        super().__init__(*args, **{**defaults, **kwargs})
        if examples:
            lines = "\n".join(f"  distillmatch {example}" for example in examples)
            self.epilog = f"examples:\n{lines}"
        self._intermixed = intermixed
        self._parses_twice = False
        self.register("type", Path, _path)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse, and refuse what nothing takes."""
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
        """Refuse words that nothing takes, with the nearest option."""
        for word in left:
            is_option = word.startswith("-")
            known = [option for action in self._actions for option in action.option_strings]
            hint = did_you_mean(word.partition("=")[0], known) if is_option else ""
            what = "unknown option" if is_option else "unexpected argument"
            raise ConfigError(f"{what} '{word}'{hint}; see {self.prog} --help")

    def error(self, message: str) -> NoReturn:
        """Report wrong usage like every other wrong input."""
        raise ConfigError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is none of an argument's choices, with the nearest one."""
        if action.choices is not None and value not in action.choices:
            known = [str(one) for one in action.choices]
            name = "/".join(action.option_strings) or action.metavar or action.dest
            hint = did_you_mean(value, known)
            self.error(f"{name} must be one of {', '.join(known)}, not '{value}'{hint}")


def add_command(
    commands: Commands, name: str, help: str, kind: type[Parser] = Parser, **options: Any
) -> Parser:
    """Add a command with its help as description."""
    parser_class = commands._parser_class
    try:
        commands._parser_class = kind
        parser: Parser = commands.add_parser(
            name, help=help, description=f"{help[0].upper()}{help[1:]}.", **options
        )
    finally:
        commands._parser_class = parser_class
    return parser


def option(
    group: "argparse._ActionsContainer",
    spelled: str,
    help: str,
    kind: Callable[[str], Any] = str,
    default: Any = None,
    **more: Any,
) -> None:
    """Add an option or a positional argument as it is spelled in the help.

    `--quick` is a switch, `--out DIR` takes a value, `--files FILE ...` takes several, and
    `--form html|text` takes one of these words. The help names the default, if there is one.
    """
    name, _, metavar = spelled.partition(" ")
    if not metavar and name.startswith("-"):
        group.add_argument(name, action="store_true", help=help, **more)
        return
    if metavar.endswith(" ..."):
        metavar, default = metavar.removesuffix(" ..."), default or []
        more = {"nargs": "+", "action": "extend", **more}
    elif "|" in metavar and metavar.islower():
        more = {"choices": metavar.split("|"), **more}
    if default not in (None, []) and "(default:" not in help:
        help += (
            f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
        )
    group.add_argument(name, type=kind, default=default, metavar=metavar, help=help, **more)


def _path(text: str) -> Path:
    """Return the path that a text names; an empty one would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("must be a path, not ''")
    return Path(text)
