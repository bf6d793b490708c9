"""`distillmatch completion`: a script for a shell, made by shtab from the parsers."""

import argparse
from collections.abc import Sequence

from distillmatch.cli.parser import Commands, add_command, option
from distillmatch.config import RunConfig, allowed_values
from distillmatch.plugins import METHODS, plugin_names
from distillmatch.suite.catalogue import experiment_names
from distillmatch.terminal import say


def add_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = add_command(
        commands,
        "completion",
        "print a completion script for your shell",
        examples=(
            "completion bash > ~/.local/share/bash-completion/completions/distillmatch",
            "completion zsh > ~/.zfunc/_distillmatch",
            "completion fish > ~/.config/fish/completions/distillmatch.fish",
        ),
    )
    option(parser, "shell bash|zsh|fish", "your shell")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print the script."""
    import shtab

    from distillmatch.cli import make_parser

    parser = make_parser()
    _add_choices(parser)
    say(shtab.complete(parser, arguments.shell))


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """Give every argument the values that it can have, if they are few and known."""
    known: dict[str, Sequence[object]] = {
        "method": plugin_names(METHODS),
        "source": plugin_names("distillmatch.sources"),
        "experiment": experiment_names(),
        "names": experiment_names(),
    }
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = ""  # what is hidden in the help is not completed
            for below in {id(one): one for one in action.choices.values()}.values():
                _add_choices(below)
        elif action.choices is None and action.nargs != 0:
            field = RunConfig.model_fields.get(action.dest)
            choices = known.get(action.dest) or (allowed_values(field.annotation) if field else ())
            action.choices = [str(choice) for choice in choices] or None
