"""`distillmatch completion`: a script for bash, zsh or fish, generated from the parsers."""

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

from distillmatch.cli.parser import Commands, add_command
from distillmatch.config import RunConfig, allowed_values
from distillmatch.plugins import METHODS, plugin_names
from distillmatch.suite.catalogue import experiment_names
from distillmatch.terminal import say

SOURCES = "distillmatch.sources"
BASH = """\
_distillmatch() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="${{COMP_WORDS[1]}}" words=""
  case "$command" in
  suite|bench) ((COMP_CWORD > 2)) && command+=" ${{COMP_WORDS[2]}}";;
  esac
  ((COMP_CWORD == 1)) && command=""
  case "$command:$previous" in
{values}
  *) case "$command" in
{words}
    esac;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _distillmatch distillmatch
"""


def add_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = add_command(
        commands,
        "completion",
        "print a completion script for your shell",
        examples=(
            "completion bash > ~/.local/share/bash-completion/completions/distillmatch",
            "completion zsh >> ~/.zshrc",
            "completion fish > ~/.config/fish/completions/distillmatch.fish",
        ),
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="bash|zsh|fish")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print the script."""
    from distillmatch.cli import make_parser

    found = list(_walk(make_parser()))
    say((_fish if arguments.shell == "fish" else _bash)(found, arguments.shell))


def _walk(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parser of every command with the words that lead to it."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _walk(below, f"{path} {name}".strip())


def _values(action: argparse.Action) -> list[str]:
    """Return the values that an argument can have, if they are few and known."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if action.dest == "method":
        return list(plugin_names(METHODS))
    if action.dest == "source":
        return list(plugin_names(SOURCES))
    if action.dest in ("experiment", "names"):
        return list(experiment_names())
    field = RunConfig.model_fields.get(action.dest)
    return [str(value) for value in allowed_values(field.annotation)] if field else []


def _bash(found: list[tuple[str, Any]], shell: str) -> str:
    values, words = [], []
    for path, parser in found:
        plain: list[str] = []
        for action in parser._actions:
            plain += action.option_strings or _values(action)
            if action.option_strings and action.nargs != 0 and (known := _values(action)):
                names = "|".join(f'"{path}:{option}"' for option in action.option_strings)
                values.append(f"  {names}) words={shlex.quote(' '.join(known))};;")
        words.append(f'    "{path}") words={shlex.quote(" ".join(plain))};;')
    script = BASH.format(values="\n".join(values), words="\n".join(words))
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if shell == "zsh" else script


def _fish(found: list[tuple[str, Any]], shell: str) -> str:
    lines = []
    for path, parser in found:
        seen = " && ".join(f"__fish_seen_subcommand_from {word}" for word in path.split())
        where = f"-n {shlex.quote(seen or '__fish_use_subcommand')}"
        for action in parser._actions:
            known = f" -a {shlex.quote(' '.join(_values(action)))}" if _values(action) else ""
            said = "" if action.help in (None, argparse.SUPPRESS) else f" -d {_quoted(action.help)}"
            for option in action.option_strings:
                kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                value = " -r" if action.nargs != 0 else ""
                lines.append(f"complete -c distillmatch {where} {kind}{value}{known}{said}")
            if not action.option_strings and known:
                lines.append(f"complete -c distillmatch {where}{known}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return shlex.quote(text.replace("%%", "%"))
