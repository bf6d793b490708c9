"""What the commands about experiments and the ledger share: options and how they are read."""

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import get_args

from distillmatch.cli.options import add_allow_import
from distillmatch.config.recipe import RecipeName
from distillmatch.suite.catalogue import (
    Experiment,
    Scale,
    at_scale,
    experiment_names,
    load_experiment,
)

LEDGERS: dict[str, Path] = {"paper": Path("results"), "quick": Path("runs/quick/results")}
"""Where results are kept if the user does not say; small experiments stay out of the real ones."""


def add_suite_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which runs of an experiment are meant, and where their results are kept."""
    parser.add_argument(
        "--seeds", type=seed_list, metavar="N,N,…", help="seeds (default: the experiment's)"
    )
    parser.add_argument(
        "--recipe",
        choices=get_args(RecipeName),
        default="paper",
        help="how the methods are computed where the paper's words and its published figures "
        "differ, unless a row names one (default: paper)",
    )
    add_allow_import(parser)
    add_ledger_options(parser)


def add_ledger_options(parser: argparse.ArgumentParser) -> None:
    """Add the scale of experiments, which has a ledger of its own, and what names another one."""
    parser.add_argument(
        "--scale",
        choices=get_args(Scale),
        default="paper",
        help="experiments as the paper has them, or made small on the embedded data "
        "(default: paper)",
    )
    parser.add_argument(
        "--ledger",
        type=Path,
        metavar="DIR",
        help=f"folder of results (default: {LEDGERS['paper']}; "
        f"with --scale quick {LEDGERS['quick']})",
    )


def ledger_folder(arguments: argparse.Namespace) -> Path:
    """Return the ledger's folder that the options name."""
    given: Path | None = arguments.ledger
    return given or LEDGERS[arguments.scale]


def seed_list(text: str) -> tuple[int, ...]:
    """Read `1,2,3`."""
    try:
        seeds = tuple(int(word) for word in text.split(","))
    except ValueError:
        seeds = ()
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(
            f"expected different whole numbers such as 1,2,3, not '{text}'"
        )
    return seeds


def chosen_experiments(
    names: Sequence[str],
    scale: Scale,
    recipe: RecipeName = "paper",
    allow_import: Collection[str] = (),
) -> list[Experiment]:
    """Return the experiments of these names or files; without any, the paper's and then ours."""
    chosen = [
        at_scale(load_experiment(name, recipe, allow_import), scale)
        for name in names or experiment_names()
    ]
    return chosen if names else sorted(chosen, key=lambda experiment: experiment.beyond_paper)
