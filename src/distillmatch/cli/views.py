"""`distillmatch views`: look at the augmentation."""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console

from distillmatch.cli.options import add_config_options, config_from
from distillmatch.config import StreamConfig
from distillmatch.randomness import shuffled
from distillmatch.report.canvas import check_picture_name
from distillmatch.sources import Dataset, load_source


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the command."""
    parser = commands.add_parser("views", help="draw weak and strong views of a source's images")
    parser.add_argument(
        "--draw", type=Path, required=True, metavar="FILE", help="write the sheet of views here"
    )
    add_config_options(parser, StreamConfig)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Draw originals, weak and strong views, and each operation at its extremes."""
    check_picture_name(arguments.draw)
    config = config_from(arguments, StreamConfig)
    draw_views(load_source(config), config.seed, arguments.draw)
    Console(stderr=True, highlight=False).print(
        f"picture: {arguments.draw}", markup=False, soft_wrap=True
    )


def draw_views(dataset: Dataset, seed: int, path: Path) -> None:
    """Draw the sheet of views of a few images, each of another class."""
    from distillmatch.report.views_sheet import SHEET_IMAGES, draw_views_sheet
    from distillmatch.views import Normalization

    shown = shuffled(range(len(dataset.class_names)), seed, "sheet")[:SHEET_IMAGES]
    chosen = [int(np.flatnonzero(dataset.train.labels == c)[0]) for c in shown]
    draw_views_sheet(
        dataset.train.images[chosen],
        [dataset.class_names[c] for c in shown],
        Normalization.of(dataset.train.images),
        seed,
        path,
    )
