"""`distillmatch views`: look at the augmentation."""

import argparse
from pathlib import Path

from distillmatch.cli.options import Commands, add_config_options, config_from
from distillmatch.config import StreamConfig
from distillmatch.report.canvas import check_picture_name
from distillmatch.sources import load_source
from distillmatch.terminal import plain_console


def add_parser(commands: Commands) -> None:
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
    dataset = load_source(config)
    from distillmatch.report.views_sheet import draw_views_of

    draw_views_of(dataset, config.seed, arguments.draw)
    plain_console(stderr=True, highlight=False).print(f"picture: {arguments.draw}", soft_wrap=True)
