"""`distillmatch bench`: measure speed on this machine, and learners on your own photographs."""

import argparse
import json
from dataclasses import asdict
from statistics import mean, stdev
from typing import Any, Literal, get_args

from distillmatch.cli.options import add_common, add_config_options, config_from
from distillmatch.cli.parser import Commands, Parser, add_command, add_group, option
from distillmatch.config import RunConfig, StreamConfig
from distillmatch.config.base import Count, NotNegative, Place
from distillmatch.files import size_shown
from distillmatch.sources import load_source
from distillmatch.terminal import LiveProgress, make_table, say, show

FIGURES = {
    "all": "all",
    "old": "older",
    "new": "new",
    "rejected": "rejects",
    "other": "other",
    "accepted": "accepts",
    "seconds": "s",
    "bytes": "kept",
}
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
Also = Literal["fine-tune", "offline", "base", "scratch"]


def add_parser(commands: Commands) -> Parser:
    """Describe the command and its parts."""
    said = "Measure speed, or learners on your photographs."
    bench, kinds = add_group(commands, "bench", said, "views|train|photographs")
    parser = add_command(kinds, "views", run_views)
    add_common(parser, "device", "json")
    option(parser, "--seconds X", "time for each measurement", NotNegative, 3.0)
    add_config_options(parser, StreamConfig)
    parser = add_command(kinds, "train", run_train)
    add_common(parser, "json")
    option(parser, "--seconds X", "time for each measurement", NotNegative, 5.0)
    add_config_options(parser, RunConfig)
    parser = add_command(kinds, "photographs", run_photographs)
    option(parser, "folder DIR", "images, one folder per class", Place)
    option(parser, "--splits N", "random divisions of classes and images", Count, 3)
    option(parser, "--months N", "tasks that the classes come in", Count, 3)
    option(parser, "--labels N", "labeled images of each class", Count, 20)
    said = "folder of images of another world, of which it is measured how many are rejected"
    option(parser, "--other DIR", said, Place)
    said = (
        "also train networks, which is slow: ours with --fine-tune; the pretrained one on all "
        "months at once; from scratch, by method base or the default without a pretrained network"
    )
    option(parser, f"--also {'|'.join(get_args(Also))} ...", said, Also)
    said = (
        f"epochs of what is trained (default: {TUNED} a month with pretrained weights, "
        f"{FROM_SCRATCH} from scratch)"
    )
    option(parser, "--epochs N", said, Count)
    said = "side in pixels that images are scaled to (default: as `learn` chooses)"
    option(parser, "--image-size N", said, Count)
    add_common(parser, "device", "json")
    return bench


def run_views(arguments: argparse.Namespace) -> None:
    """Measure weak and strong views per second.

    distillmatch bench views
    """
    config = config_from(arguments, StreamConfig)
    if config.source == "shapes" and config.image_size is None:
        config = config.replace(image_size=32)
    dataset = load_source(config)
    import torch

    from distillmatch.bench.views import measure_views
    from distillmatch.engine import Placement

    device = Placement.of(RunConfig(device=arguments.device)).device
    if device.type == "cpu":
        torch.set_num_threads(1)
    measured = measure_views(dataset.train.images, device, arguments.seconds)
    if arguments.json:
        say(json.dumps(measured, indent=2))
        return
    said = "views of {image_size} px images on {device}, in batches of {batch_size:,}, {threads} "
    said += "CPU thread(s)\nweak:   {weak:12,.0f} images/s\nstrong: {strong:12,.0f} images/s"
    say(said.format(**measured))


def run_train(arguments: argparse.Namespace) -> None:
    """Measure training steps against a plain eager float32 loop.

    distillmatch bench train
    distillmatch bench train --source cifar100 --method gd --device cuda
    """
    config = config_from(arguments, RunConfig)
    import torch

    from distillmatch.bench.train import measure_training
    from distillmatch.engine import Placement

    if Placement.of(config).device.type == "cpu":
        torch.set_num_threads(1)
        if "network" not in arguments:
            config = config.replace(network="wrn-10-1")
    measured = measure_training(config, load_source(config), arguments.seconds)
    if arguments.json:
        say(json.dumps(measured, indent=2))
        return
    say("{method}, {network}, {images_per_step} images per step, on {device}".format(**measured))
    engine = f"engine {measured['precision']}:"
    for name, speed in (("plain float32:", measured["plain"]), (engine, measured["engine"])):
        peak = speed["peak_device_bytes"]
        memory = "" if peak is None else f", {size_shown(peak)} of GPU memory"
        times = "{milliseconds_per_step:9.2f} ms/step, {images_per_second:9,.0f}".format(**speed)
        say(f"{name:<17}{times} images/s{memory}")
    say(f"The engine is {measured['ratio']:.2f} times as fast.")


def run_photographs(arguments: argparse.Namespace) -> None:
    """Compare learners and baselines on a folder of classes.

    distillmatch bench photographs birds
    distillmatch bench photographs birds --other holidays --splits 10
    distillmatch bench photographs birds --also base --epochs 50
    """
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
        other=arguments.other,
        progress=LiveProgress("photographs"),
    )
    if arguments.json:
        say(json.dumps([asdict(one) for one in measured], indent=2))
        return
    title = (
        f"{arguments.folder.name}: percent over {arguments.splits} splits, {arguments.months} "
        f"months, {arguments.labels} labels a class; rejects: unseen classes, other: of another "
        "world, accepts: known ones"
    )
    keys = [key for key in FIGURES if key != "other" or arguments.other]
    rows = [(one.name, *(_cell(key, one.figures.get(key, [])) for key in keys)) for one in measured]
    heads = ("learner", *(f">{FIGURES[key]}" for key in keys))
    show(make_table(heads, rows, title=title, box=None, padding=(0, 1, 0, 0), fold=False))


def _cell(key: str, values: list[float]) -> str:
    """Return a mean, and its standard deviation over splits where that says something."""
    if not values:
        return "–"
    if key == "bytes":
        return size_shown(round(mean(values)))
    spread = key in ("all", "old", "new") and len(values) > 1
    return f"{mean(values):.1f}" + (f" ±{stdev(values):.1f}" if spread else "")
