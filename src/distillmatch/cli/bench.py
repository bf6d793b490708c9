"""`distillmatch bench`: measure speed on this machine, and learners on your own photographs."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from distillmatch.cli.options import (
    STREAM_GROUPS,
    MethodParser,
    add_config_options,
    add_device_option,
    add_json_option,
    add_run_options,
    at_least,
    config_from,
)
from distillmatch.cli.parser import Commands, Parser, add_command
from distillmatch.config import RunConfig, StreamConfig
from distillmatch.errors import ConfigError
from distillmatch.files import size_shown
from distillmatch.sources import load_source
from distillmatch.terminal import LiveProgress, plain_console, say

FIGURES = (
    ("all", "all"),
    ("old", "older"),
    ("new", "new"),
    ("rejected", "rejects"),
    ("accepted", "accepts"),
    ("seconds", "s"),
    ("bytes", "kept"),
)
"""The figures of a learner on photographs, and the heads of their columns."""
TUNED, FROM_SCRATCH = 10, 200
"""Epochs of networks that start from pretrained weights, and of others."""
OFFLINE = "offline"
PRETRAINED: dict[str, Any] = {
    "method": "base",
    "network": "efficientnet-lite0",
    "image_size": 224,
    "batch": 16,
    "learning_rate": 3e-4,
    "options": {"optimizer": "adamw", "schedule": "cosine", "strong_labels": True},
}
"""How the pretrained network is trained on the labels of all months at once."""


def add_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = add_command(commands, "bench", "measure speed, or learners on your photographs")
    kinds = parser.add_subparsers(
        dest="bench", required=True, metavar="views|train|photographs", parser_class=Parser
    )
    views = add_command(
        kinds, "views", "measure weak and strong views a second", examples=("bench views",)
    )
    add_device_option(views)
    _add_seconds(views, 3.0)
    add_json_option(views)
    add_config_options(views, StreamConfig, STREAM_GROUPS)
    views.set_defaults(run=run_views)
    train = add_command(
        kinds,
        "train",
        "measure training steps beside a plain eager float32 loop",
        MethodParser,
        examples=("bench train", "bench train --source cifar100 --method gd --device cuda"),
    )
    _add_seconds(train, 5.0)
    add_json_option(train)
    add_run_options(train)
    train.set_defaults(run=run_train)
    _add_photographs(kinds)


def _add_photographs(kinds: Commands) -> None:
    parser = add_command(
        kinds,
        "photographs",
        "compare learners and baselines on a folder of classes",
        examples=("bench photographs birds", "bench photographs birds --also base --epochs 50"),
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="images, one folder per class")
    for name, default, what in (
        ("splits", 3, "divisions of classes and images, each with a seed of its own"),
        ("months", 3, "tasks that the classes come in"),
        ("labels", 20, "labeled images of each class"),
    ):
        parser.add_argument(
            f"--{name}",
            type=at_least(1, int),
            default=default,
            metavar="N",
            help=f"{what} (default: {default})",
        )
    parser.add_argument(
        "--also",
        nargs="+",
        choices=("fine-tune", "offline", "base", "scratch"),
        default=[],
        help="also train networks, which is slow: ours with --fine-tune; the pretrained one on all "
        "months at once; from scratch, by method base or the default without a pretrained network",
    )
    parser.add_argument(
        "--epochs",
        type=at_least(1, int),
        metavar="N",
        help=f"epochs of what is trained (default: {TUNED} a month with pretrained weights, "
        f"{FROM_SCRATCH} from scratch)",
    )
    parser.add_argument(
        "--image-size",
        type=at_least(8, int),
        metavar="N",
        help="side in pixels to which images are brought; smaller ones are quicker (default: as "
        "`learn` chooses)",
    )
    add_device_option(parser)
    add_json_option(parser)
    parser.set_defaults(run=run_photographs)


def _add_seconds(parser: Parser, default: float) -> None:
    number = at_least(0, float)
    what = f"time for each measurement (default: {default:g})"
    parser.add_argument("--seconds", type=number, default=default, metavar="X", help=what)


def run_photographs(arguments: argparse.Namespace) -> None:
    """Measure learners over several splits; print means and standard deviations."""
    from distillmatch.bench.photographs import measure_photographs

    also, tuned = arguments.also, arguments.epochs or TUNED
    small = {"network": "wrn-28-2", "epochs": arguments.epochs or FROM_SCRATCH}
    everywhere: dict[str, Any] = {"device": arguments.device}
    if arguments.image_size is not None:
        everywhere["image_size"] = arguments.image_size
    learners: dict[str, dict[str, Any]] = {"ours": {}}
    if "fine-tune" in also:
        learners["fine-tuned"] = {"fine_tune": tuned}
    if OFFLINE in also:
        learners[OFFLINE] = {**PRETRAINED, "epochs": tuned}
    if "base" in also:
        learners["base"] = {**small, "method": "base", "coreset": 75}
    if "scratch" in also:
        learners["from scratch"] = small
    measured = measure_photographs(
        arguments.folder,
        {name: {**given, **everywhere} for name, given in learners.items()},
        at_once=[OFFLINE],
        splits=arguments.splits,
        months=arguments.months,
        labels=arguments.labels,
        progress=LiveProgress("photographs"),
    )
    if arguments.json:
        say(json.dumps([asdict(one) for one in measured], indent=2))
        return
    table = Table(
        title=f"{arguments.folder.name}: percent over {arguments.splits} splits, "
        f"{arguments.months} months, {arguments.labels} labels a class; rejects: unseen classes, "
        "accepts: known ones",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("learner", no_wrap=True)
    for _, head in FIGURES:
        table.add_column(head, justify="right", no_wrap=True)
    for one in measured:
        cells = (_cell(key, one.figures.get(key, [])) for key, _ in FIGURES)
        table.add_row(one.name, *cells)
    plain_console().print(table)


def _cell(key: str, values: list[float]) -> str:
    """Return a mean, and its standard deviation over splits where that says something."""
    if not values:
        return "–"
    if key == "bytes":
        return size_shown(round(mean(values)))
    spread = key in ("all", "old", "new") and len(values) > 1
    return f"{mean(values):.1f}" + (f" ±{stdev(values):.1f}" if spread else "")


def run_views(arguments: argparse.Namespace) -> None:
    """Measure views of the source's images; 32 px ones where the source can choose."""
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
    if arguments.json:
        say(json.dumps(asdict(measured), indent=2))
        return
    table = Table(
        title=f"views of {measured.image_size} px images on {measured.device}, "
        f"batches of {measured.batch_size:,}, {measured.threads} CPU thread(s)"
    )
    for name in ("view", "images a second"):
        table.add_column(name, justify="right")
    for kind, speed in (("weak", measured.weak), ("strong", measured.strong)):
        table.add_row(kind, f"{speed:,.0f}")
    plain_console().print(table)


def run_train(arguments: argparse.Namespace) -> None:
    """Measure a method's step; on a CPU with a small network unless another is asked for."""
    config = config_from(arguments, RunConfig)
    import torch

    from distillmatch.bench.train import measure_training
    from distillmatch.engine import Placement

    on_cpu = Placement.of(config).device.type == "cpu"
    if on_cpu and "network" not in arguments:
        config = config.replace(network="wrn-10-1")
    if on_cpu:
        torch.set_num_threads(1)
    dataset = load_source(config)
    measured = measure_training(config, dataset, arguments.seconds)
    if arguments.json:
        say(json.dumps({**asdict(measured), "ratio": measured.ratio}, indent=2))
        return
    table = Table(
        title=f"{measured.method}, {measured.network}, {measured.images_per_step} images a step, "
        f"on {measured.device}"
    )
    for name in ("loop", "ms a step", "images a second", "peak MB", "ratio"):
        table.add_column(name, justify="right")
    for name, speed, ratio in (
        ("plain float32", measured.plain, 1.0),
        (f"engine {measured.precision}", measured.engine, measured.ratio),
    ):
        peak = speed.peak_device_bytes
        table.add_row(
            name,
            f"{speed.milliseconds_per_step:.2f}",
            f"{speed.images_per_second:,.0f}",
            "-" if peak is None else f"{peak / 1e6:,.0f}",
            f"{ratio:.2f}",
        )
    plain_console().print(table)
