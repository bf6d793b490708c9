"""Options that the commands for a learner share."""

import argparse
from pathlib import Path
from typing import Any

from distillmatch.cli.options import add_field_option
from distillmatch.config import RunConfig

OF_A_RUN = (
    "method",
    "network",
    "image_size",
    "epochs",
    "batch",
    "unlabeled_batch",
    "coreset",
    "learning_rate",
    "seed",
    "device",
    "options",
)
"""Settings of a learner that a run has under the same name."""
OF_A_LEARNER = ("unlabeled_limit", "known_rate")
SETTINGS = (*OF_A_RUN, *OF_A_LEARNER)


def add_setting_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that make a new learner."""
    group = parser.add_argument_group(
        "settings of a new learner",
        "A learner that is there keeps its own where they are not given; another method, network, "
        "image size, coreset, seed or gate is refused. --options takes any further one of a run.",
    )
    for name in OF_A_RUN:
        add_field_option(group, RunConfig, name)
    group.add_argument(
        "--unlabeled-limit",
        type=int,
        default=argparse.SUPPRESS,
        metavar="N",
        help="unlabelled images used of one task, drawn at random (default: 50000)",
    )
    group.add_argument(
        "--known-rate",
        type=float,
        default=argparse.SUPPRESS,
        metavar="X",
        help="share of known images that `predict --reject` is to recognise (default: 0.95)",
    )


def add_state(parser: argparse.ArgumentParser) -> None:
    """Add the learner to be looked at, and whether its own code may be imported."""
    parser.add_argument("state", type=Path, metavar="STATE", help="folder of the learner")
    parser.add_argument(
        "--allow-import",
        action="store_true",
        help="import the method or network of your own (module:name) that the learner names",
    )


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add where to compute, to a command that only looks."""
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to compute (default: auto)",
    )


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given."""
    return {name: value for name, value in vars(arguments).items() if name in SETTINGS}
