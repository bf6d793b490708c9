"""`distillmatch learn`, `inspect` and `export`: a learner of your own images."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distillmatch.cli.options import add_common, add_fields, allowed_imports, key_and_value
from distillmatch.cli.parser import Commands, Parser, add_command, option
from distillmatch.cli.predict import names_on_stdin
from distillmatch.config import RunConfig
from distillmatch.config.base import Place
from distillmatch.errors import ConfigError
from distillmatch.files import size_shown
from distillmatch.sources.walk import shown
from distillmatch.terminal import say, show, shown_progress, tell

if TYPE_CHECKING:
    from distillmatch.learner.environment import Place as UnlabeledPlace
    from distillmatch.learner.video import Camera

OF_TRAINING = ("epochs", "batch", "unlabeled_batch", "coreset", "learning_rate")
"""Settings that are fields of a run, of methods that train a network."""
SETTINGS = (
    *("method", "network", "pretrained", "image_size", "fine_tune", "accept", "unlabeled_limit"),
    *("seed", "device", *OF_TRAINING),
)
FINE_TUNING_EPOCHS = 10


def add_parser(commands: Commands) -> Parser:
    """Describe the command `learn`."""
    parser = add_command(
        commands,
        "learn",
        run,
        usage="%(prog)s STATE --labeled DIR [--unlabeled PLACE ...] [options]",
    )
    option(parser, "state STATE", "folder of the learner; created if there is none", Place)
    said = "labeled images of this task, one folder per class"
    option(parser, "--labeled DIR", said, Place, required=True)
    said = (
        "unlabeled images: folders, files, patterns ('camera/**/*.jpg'), videos, a camera "
        "(camera:0, rtsp://...), or - for paths on standard input, one per line"
    )
    option(parser, "--unlabeled PLACE ...", said)
    said = "minutes to watch a camera, one frame per second"
    option(parser, "--camera-minutes X", said, float, 10.0)
    option(parser, "--name NAME", "name of the task (default: that of the folder)")
    option(parser, "--test DIR", "labeled test images, one folder per class", Place)
    said = "without --test: share of each class that is kept for testing (default: 0.1)"
    option(parser, "--held-out X", said, float)
    said = "drop a task that was interrupted, instead of resuming it"
    option(parser, "--drop-unfinished", said)
    said = "learn a task that was learned already, or other images under its name"
    option(parser, "--again", said)
    option(parser, "--quiet", "show no progress and no report")
    add_common(parser, "checkpoint_seconds", "allow_import")
    group = parser.add_argument_group(
        "settings of a new learner",
        "An existing learner keeps its own settings unless they are given here; its method, "
        "network, image size, coreset, and seed cannot change.",
    )
    for spelled, kind, said in (
        (
            "--method NAME",
            str,
            "features (of a pretrained network), a method that trains a network, or your own "
            "module:name (default: features if the extra 'pretrained' is installed, else "
            "worldmatch)",
        ),
        (
            "--network NAME",
            str,
            "efficientnet-lite0, wrn-DEPTH-WIDTH, torchvision:NAME, timm:NAME, or your own "
            "module:name (default: efficientnet-lite0 for features, else wrn-28-2)",
        ),
        ("--pretrained FILE", Place, "pretrained weights of the network, .safetensors or .pt"),
        (
            "--image-size N",
            int,
            "side in pixels that images are scaled to (default: 224 for features, else the short "
            "side of the first image, at most 64)",
        ),
        ("--accept X", float, "share of known images to accept with --reject (default: 0.95)"),
        ("--unlabeled-limit N", int, "unlabeled images used per task (default: 50000)"),
    ):
        option(group, spelled, said, kind, argparse.SUPPRESS)
    said = (
        "in each task also tune a copy of the pretrained network, for N epochs (default: "
        f"{FINE_TUNING_EPOCHS}), and use it beside the frozen one where held-out images say so"
    )
    few = {"nargs": "?", "const": FINE_TUNING_EPOCHS}
    option(group, "--fine-tune N", said, int, argparse.SUPPRESS, **few)
    add_fields(group, RunConfig, "seed", "device")
    group = parser.add_argument_group("settings of a method that trains a network")
    add_fields(group, RunConfig, *OF_TRAINING)
    said = "options of the method, and others of a run"
    option(group, "--options NAME=VALUE ...", said, str, argparse.SUPPRESS)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Teach a learner of your own the next folder of images.

    distillmatch learn learner --labeled march --unlabeled camera --test test
    distillmatch learn learner --labeled april --unlabeled camera --name april
    """
    from distillmatch.learner import ContinualLearner, learn, read_state
    from distillmatch.report import learner_report as report
    from distillmatch.report.pages import write_learner_page

    given, state, allowed = vars(arguments), arguments.state, allowed_imports(arguments)
    settings = {name: given[name] for name in SETTINGS if name in given}
    if "options" in given:
        settings["options"] = dict(key_and_value("--options", word) for word in given["options"])
    passed = (
        "labeled",
        "name",
        "test",
        "held_out",
        "checkpoint_seconds",
        "drop_unfinished",
        "again",
    )
    title = shown(arguments.name or arguments.labeled.name)
    with shown_progress(None, not arguments.quiet, title) as progress:
        record = learn(
            state,
            unlabeled=_unlabeled(arguments.unlabeled, arguments.camera_minutes),
            settings=settings,
            progress=progress,
            tell=tell,
            allow_import=allowed,
            **{name: given[name] for name in passed},
        )
    summary = read_state(state)
    explanation = ContinualLearner.load(state, "cpu", allow_import=allowed).explain()
    page = write_learner_page(state, summary, explanation)
    if arguments.quiet:
        return
    history = summary["history"]
    show(report.history_table(history))
    say(report.lead_sentence(summary))
    for sentence in report.accuracy_sentences(history) + report.environment_sentences(record):
        say(sentence)
    for sentence in report.warnings_of(history):
        say(f"warning: {sentence}")
    say(f"report: {page}")


def _unlabeled(given: Sequence[str], minutes: float) -> list["UnlabeledPlace | Camera"]:
    """Return the places of unlabeled images; - stands for the paths on standard input."""
    from distillmatch.learner.video import Camera, is_camera

    found: list[UnlabeledPlace | Camera] = []
    for name in given:
        if not name:
            raise ConfigError("expected files or folders of unlabeled images, not an empty name")
        if name == "-":
            found += map(Path, names_on_stdin())
        else:
            found.append(Camera(name, minutes=minutes) if is_camera(name) else Path(name))
    return found


def add_inspect_parser(commands: Commands) -> Parser:
    """Describe the command `inspect`."""
    parser = add_command(commands, "inspect", run_inspect)
    add_common(parser, "state", "json")
    return parser


def run_inspect(arguments: argparse.Namespace) -> None:
    """Show what a learner of your own knows.

    distillmatch inspect learner
    """
    from distillmatch.learner.state import read_state
    from distillmatch.report.learner_report import history_table, state_table

    summary = read_state(arguments.state)
    if arguments.json:
        say(json.dumps(summary, indent=2))
        return
    show(state_table(summary))
    show(history_table(summary["history"]))


def add_export_parser(commands: Commands) -> Parser:
    """Describe the command `export`."""
    parser = add_command(commands, "export", run_export)
    add_common(parser, "state", "allow_import")
    option(parser, "--onnx FILE", "file to write (needs the extra 'onnx')", Place, required=True)
    return parser


def run_export(arguments: argparse.Namespace) -> None:
    """Export a learner's classifier to ONNX.

    distillmatch export learner --onnx learner.onnx
    """
    from distillmatch.learner.estimator import ContinualLearner
    from distillmatch.learner.export import export_onnx

    learner = ContinualLearner.load(arguments.state, "cpu", allow_import=arguments.allow_import)
    export_onnx(learner, arguments.onnx)
    say(
        f"{arguments.onnx}: {len(learner.classes_)} classes, images (count, 3, height, width) of "
        f"uint8, scaled to {learner.image_size_} px, {size_shown(arguments.onnx.stat().st_size)}"
    )
