"""`distillmatch stream`: look at a stream, draw it, save it, without training anything."""

import argparse
import json
from pathlib import Path

from distillmatch.cli.options import Commands, add_config_options, config_from
from distillmatch.cli.saved_stream import config_beside
from distillmatch.config import StreamConfig
from distillmatch.report.canvas import check_picture_name
from distillmatch.report.stream_picture import draw_stream
from distillmatch.report.stream_summary import stream_summary, stream_table
from distillmatch.sources import load_source
from distillmatch.streams import build_stream, read_stream, save_stream
from distillmatch.terminal import plain_console


def add_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser("stream", help="print, draw and save a stream")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="write the stream as a picture")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the stream's index lists")
    parser.add_argument(
        "--read",
        type=Path,
        metavar="FILE",
        help="show a saved stream instead of building one; what describes it comes from there",
    )
    add_config_options(parser, StreamConfig)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Build or read the stream, then show it in the ways asked for."""
    if arguments.draw:
        check_picture_name(arguments.draw)
    if arguments.read:
        # Which images there are, the fingerprint judges.
        images = ("source", "image_size", "bad_images")
        config = config_beside(arguments.read, arguments, StreamConfig, free=images)
    else:
        config = config_from(arguments, StreamConfig)
    dataset = load_source(config)
    stream = (
        read_stream(arguments.read, dataset) if arguments.read else build_stream(dataset, config)
    )
    if arguments.json:
        print(json.dumps(stream_summary(dataset, stream), indent=2))
    else:
        console = plain_console()
        console.print(stream_table(dataset, stream, console.width))
    notes = plain_console(stderr=True, highlight=False)
    for problem in dataset.problems:
        notes.print(f"left out: {problem}", soft_wrap=True)
    if arguments.draw:
        draw_stream(dataset, stream, arguments.draw)
        notes.print(f"picture: {arguments.draw}", soft_wrap=True)
    if arguments.save:
        save_stream(stream, arguments.save)
        notes.print(f"saved: {arguments.save}", soft_wrap=True)
