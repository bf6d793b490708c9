"""`distillmatch stream` and `distillmatch views`: look at what is learned, without training."""

import argparse
import json
import sys
from pathlib import Path

from distillmatch.cli.options import add_common, add_config_options, config_for_stream, config_from
from distillmatch.cli.parser import Commands, Parser, add_command, option
from distillmatch.config import StreamConfig
from distillmatch.config.base import Place
from distillmatch.report.sheets import check_picture_name, draw_stream, draw_views_of
from distillmatch.report.stream_summary import stream_summary, stream_table
from distillmatch.sources import load_source
from distillmatch.streams import Stream, build_stream
from distillmatch.terminal import say, show


def add_parser(commands: Commands) -> Parser:
    """Describe the command `stream`."""
    parser = add_command(commands, "stream", run)
    add_common(parser, "json")
    option(parser, "--draw FILE", "draw the stream as a picture", Place)
    option(parser, "--save FILE", "write the stream's index lists", Place)
    option(parser, "--read FILE", "show a saved stream instead of building one", Place)
    add_config_options(parser, StreamConfig)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Print, draw, or save the tasks of a stream.

    distillmatch stream --tasks 5 --draw stream.png
    distillmatch stream --source cifar100 --order parent --unlabeled positive --coreset 400
    distillmatch stream --seed 3 --save stream.json
    """
    if arguments.draw:
        check_picture_name(arguments.draw)
    if arguments.read:
        # The fingerprint says whether these are the images of the saved stream.
        images = ("source", "image_size", "bad_images")
        config = config_for_stream(arguments.read, arguments, StreamConfig, images)
        dataset = load_source(config)
        stream = Stream.load(arguments.read, dataset)
    else:
        config = config_from(arguments, StreamConfig)
        dataset = load_source(config)
        stream = build_stream(dataset, config)
    if arguments.json:
        say(json.dumps(stream_summary(dataset, stream), indent=2))
    else:
        show(stream_table(dataset, stream))
    for problem in dataset.problems:
        say(f"left out: {problem}", sys.stderr)
    if arguments.draw:
        draw_stream(dataset, stream, arguments.draw)
        say(f"picture: {arguments.draw}", sys.stderr)
    if arguments.save:
        stream.save(arguments.save)
        say(f"saved: {arguments.save}", sys.stderr)


def add_views_parser(commands: Commands) -> Parser:
    """Describe the command `views`."""
    parser = add_command(commands, "views", run_views)
    option(parser, "--draw FILE", "picture to write", Place, Path("views.png"))
    add_config_options(parser, StreamConfig)
    return parser


def run_views(arguments: argparse.Namespace) -> None:
    """Draw weak and strong views of a source's images.

    distillmatch views
    distillmatch views --source folder --data-dir photos --draw views.jpg
    """
    check_picture_name(arguments.draw)
    config = config_from(arguments, StreamConfig)
    dataset = load_source(config)
    draw_views_of(dataset, config.seed, arguments.draw)
    say(f"picture: {arguments.draw}", sys.stderr)
