"""`distillmatch completion`: a script for a shell, made by shtab from the parsers."""

import argparse
from typing import Literal

from distillmatch.cli.parser import Commands, Parser, add_command, option
from distillmatch.plugins import METHODS, plugin_names
from distillmatch.suite.catalogue import experiment_names
from distillmatch.terminal import say


def add_parser(commands: Commands) -> Parser:
    """Describe the command."""
    parser = add_command(commands, "completion", run)
    option(parser, "shell", "your shell", Literal["bash", "zsh", "fish"])
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Print a completion script for your shell.

    distillmatch completion bash > ~/.local/share/bash-completion/completions/distillmatch
    distillmatch completion zsh > ~/.zfunc/_distillmatch
    distillmatch completion fish > ~/.config/fish/completions/distillmatch.fish
    """
    import shtab

    from distillmatch.cli import make_parser

    names = {
        "method": plugin_names(METHODS),
        "source": plugin_names("distillmatch.sources"),
        "experiment": experiment_names(),
        "names": experiment_names(),
    }
    parser = make_parser()
    _add_choices(parser, names)
    say(shtab.complete(parser, arguments.shell))


def _add_choices(parser: argparse.ArgumentParser, names: dict[str, tuple[str, ...]]) -> None:
    """Give arguments the names that exist, though they take others, too."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = ""  # what is hidden in the help is not completed
            for below in action.choices.values():
                _add_choices(below, names)
        elif action.dest in names and action.nargs != 0:
            action.choices = names[action.dest]
