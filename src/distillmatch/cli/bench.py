"""`distillmatch bench`: how fast this machine is, beside a plain way of doing the same."""

import argparse
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from distillmatch.cli.options import add_config_options, config_from
from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError
from distillmatch.sources import load_source


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the command."""
    parser = commands.add_parser("bench", help="measure speed on the machine at hand")
    kinds = parser.add_subparsers(
        dest="bench", required=True, metavar="WHAT", parser_class=type(parser)
    )
    views = kinds.add_parser("views", help="weak and strong views, beside a Pillow loop")
    views.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute"
    )
    views.add_argument(
        "--seconds", type=float, default=3.0, metavar="X", help="time for each measurement"
    )
    views.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_config_options(views, StreamConfig)
    views.set_defaults(run=run_views)


def run_views(arguments: argparse.Namespace) -> None:
    """Measure views of the source's images; 32 px ones where the source can choose."""
    if not arguments.seconds > 0:
        raise ConfigError(f"seconds must be more than 0, not {arguments.seconds}")
    config = config_from(arguments, StreamConfig)
    if config.source == "shapes" and config.image_size is None:
        config = config.replace(image_size=32)
    dataset = load_source(config)
    import torch

    from distillmatch.bench.views import measure_views

    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda', but torch sees no CUDA device here")
    if device == "cpu":
        torch.set_num_threads(1)
    measured = measure_views(dataset.train.images, device, arguments.seconds)
    speeds = (measured.weak, measured.strong)
    if arguments.json:
        content = asdict(measured)
        for speed in speeds:
            content[speed.kind]["ratio"] = speed.ratio
        print(json.dumps(content, indent=2))
        return
    table = Table(
        title=f"views of {measured.image_size} px images on {measured.device}, "
        f"batches of {measured.batch_size:,}, {measured.threads} CPU thread(s)"
    )
    for name in ("view", "images a second", "Pillow loop", "ratio"):
        table.add_column(name, justify="right")
    for speed in speeds:
        table.add_row(
            speed.kind,
            f"{speed.images_per_second:,.0f}",
            f"{speed.pillow_images_per_second:,.0f}",
            f"{speed.ratio:.1f}",
        )
    Console().print(table)
