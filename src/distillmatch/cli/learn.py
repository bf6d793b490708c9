"""`distillmatch learn`, `inspect` and `export`: a learner of your own images."""

import argparse
import json
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distillmatch.cli.options import (
    add_allow_import,
    add_field_option,
    add_state,
    allowed_imports,
)
from distillmatch.cli.parser import Commands
from distillmatch.cli.predict import names_on
from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.files import size_shown
from distillmatch.sources.walk import shown
from distillmatch.terminal import LiveProgress, plain_console, tell

if TYPE_CHECKING:
    from distillmatch.learner.environment import Place
    from distillmatch.learner.explanation import Explanation
    from distillmatch.learner.video import Camera

OF_TRAINING = ("epochs", "batch", "unlabeled_batch", "coreset", "learning_rate", "options")
"""Settings of a learner that trains a network; a run has them under the same name."""
FINE_TUNING_EPOCHS = 10
SETTINGS = (
    *("method", "network", "pretrained", "image_size", "accept", "unlabeled_limit"),
    *("seed", "device", "fine_tune", *OF_TRAINING),
)


def add_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "learn",
        help="feed a learner of your own the next folder of images",
        usage="%(prog)s STATE --labeled DIR [--unlabeled DIR ...] [options]",
        examples=(
            "learn learner --labeled march --unlabeled camera --test test",
            "learn learner --labeled april --unlabeled camera --name april",
        ),
    )
    parser.add_argument(
        "state", type=Path, metavar="STATE", help="folder of the learner; a new one is made there"
    )
    parser.add_argument(
        "--labeled",
        type=Path,
        required=True,
        metavar="DIR",
        help="labeled images of this task, a folder a class",
    )
    parser.add_argument(
        "--unlabeled",
        nargs="+",
        action="extend",
        default=[],
        metavar="PLACE",
        help="unlabeled images: folders, files, patterns ('camera/**/*.jpg'), videos, a camera "
        "(camera:0, rtsp://...), or - for paths on standard input, one a line",
    )
    parser.add_argument(
        "--camera-minutes",
        type=float,
        default=10.0,
        metavar="X",
        help="how long a camera is watched, one frame a second (default: 10)",
    )
    parser.add_argument("--name", metavar="NAME", help="what to call the task")
    parser.add_argument(
        "--test", type=Path, metavar="DIR", help="labeled images to test with, a folder a class"
    )
    parser.add_argument(
        "--held-out",
        type=float,
        metavar="X",
        help="without --test: share of each class that is kept for testing (default: 0.1)",
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=60.0,
        metavar="X",
        help="how often what was learned is kept, to continue from (default: 60)",
    )
    parser.add_argument(
        "--drop-unfinished",
        action="store_true",
        help="forget a task that was interrupted, instead of continuing it",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="learn a task that was learned already, or other images under its name",
    )
    add_allow_import(parser)
    parser.add_argument("--quiet", action="store_true", help="show no progress and no report")
    add_setting_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Learn the task and report on it."""
    from distillmatch.runs import Interrupted
    from distillmatch.runs.interruption import end_process

    try:
        learn_task(
            arguments.state,
            labeled=arguments.labeled,
            unlabeled=_unlabeled(arguments.unlabeled, arguments.camera_minutes),
            name=arguments.name,
            test=arguments.test,
            held_out=arguments.held_out,
            settings=settings_of(arguments),
            checkpoint_seconds=arguments.checkpoint_seconds,
            drop_unfinished=arguments.drop_unfinished,
            again=arguments.again,
            allow_import=allowed_imports(arguments),
            quiet=arguments.quiet,
        )
    except Interrupted as stop:
        tell(str(stop))
        end_process(stop)


def _unlabeled(given: Sequence[str], minutes: float) -> list["Place | Camera"]:
    """Return the places of unlabeled images; - stands for the paths on standard input."""
    from distillmatch.learner.video import Camera, is_camera

    found: list[Place | Camera] = []
    for name in given:
        if not name:
            raise ConfigError("expected files or folders of unlabeled images, not an empty name")
        if name == "-":
            found += [Path(path) for path in names_on(sys.stdin.buffer, b"\n") if path]
        else:
            found.append(Camera(name, minutes=minutes) if is_camera(name) else Path(name))
    return found


def learn_task(
    state: Path,
    *,
    labeled: Path,
    unlabeled: Sequence["Place | Camera"],
    name: str | None,
    test: Path | None = None,
    held_out: float | None = None,
    settings: dict[str, Any],
    checkpoint_seconds: float = 60.0,
    drop_unfinished: bool = False,
    again: bool = False,
    allow_import: Collection[str] = (),
    quiet: bool = False,
) -> "Explanation":
    """Learn one task with progress shown, write and print the report; return what it shows."""
    from distillmatch.learner.estimator import ContinualLearner
    from distillmatch.learner.state import learn, read_state
    from distillmatch.report.learner_report import (
        accuracy_sentences,
        environment_sentences,
        history_table,
        lead_sentence,
        warnings_of,
    )
    from distillmatch.report.pages import write_learner_page

    progress = None if quiet else LiveProgress(shown(name or labeled.name))
    try:
        record = learn(
            state,
            labeled=labeled,
            unlabeled=unlabeled,
            name=name,
            test=test,
            held_out=held_out,
            settings=settings,
            progress=progress,
            checkpoint_seconds=checkpoint_seconds,
            tell=tell,
            drop_unfinished=drop_unfinished,
            again=again,
            allow_import=allow_import,
        )
    finally:
        if progress is not None:
            progress.stop()
    summary = read_state(state)
    allowed = {*allow_import, *(settings.get(key, "") for key in ("method", "network"))}
    explanation = ContinualLearner.load(state, device="cpu", allow_import=allowed).explain()
    page = write_learner_page(state, summary, explanation)
    if quiet:
        return explanation
    console = plain_console()
    console.print(history_table(summary["history"]))
    for sentence in (
        lead_sentence(summary),
        *accuracy_sentences(summary["history"]),
        *environment_sentences(record),
        *(f"warning: {sentence}" for sentence in warnings_of(summary["history"])),
        f"report: {page}",
    ):
        console.print(sentence, highlight=False, soft_wrap=True)
    return explanation


def add_setting_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that make a new learner."""
    group = parser.add_argument_group(
        "settings of a new learner",
        "A learner that is there keeps its own where they are not given; another method, network, "
        "image size, coreset, seed or gate is refused. --options takes any further one of a run.",
    )
    group.add_argument(
        "--method",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="features (of a pretrained network), or a method that trains a network, or your own "
        "module:name (default: auto, features where the extra 'pretrained' is installed, else dm)",
    )
    group.add_argument(
        "--network",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="efficientnet-lite0, wrn-DEPTH-WIDTH, torchvision:NAME, timm:NAME, or your own "
        "module:name (default: auto, efficientnet-lite0 for features, else wrn-28-2)",
    )
    group.add_argument(
        "--pretrained",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="weights that the network was trained to, .safetensors or .pt",
    )
    group.add_argument(
        "--image-size",
        type=int,
        default=argparse.SUPPRESS,
        metavar="N",
        help="side in pixels to which images are brought (default: 224 for features, else the "
        "short side of the first one, at most 64)",
    )
    group.add_argument(
        "--fine-tune",
        type=int,
        nargs="?",
        const=FINE_TUNING_EPOCHS,
        default=argparse.SUPPRESS,
        metavar="N",
        help="in each task also tune a copy of the pretrained network, for N epochs (default: "
        f"{FINE_TUNING_EPOCHS}), and use it beside the frozen one where held-out images say so",
    )
    group.add_argument(
        "--accept",
        type=float,
        default=argparse.SUPPRESS,
        metavar="X",
        help="share of known images that `predict --reject` is to accept (default: 0.95)",
    )
    group.add_argument(
        "--unlabeled-limit",
        type=int,
        default=argparse.SUPPRESS,
        metavar="N",
        help="unlabeled images used of one task, drawn at random (default: 50000)",
    )
    for name in ("seed", "device"):
        add_field_option(group, RunConfig, name)
    training = parser.add_argument_group("settings of a method that trains a network")
    for name in OF_TRAINING:
        add_field_option(training, RunConfig, name)


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given."""
    return {name: value for name, value in vars(arguments).items() if name in SETTINGS}


def add_inspect_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "inspect", help="show what a learner of your own knows", examples=("inspect learner",)
    )
    parser.add_argument("state", type=Path, metavar="STATE", help="folder of the learner")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run_inspect)


def run_inspect(arguments: argparse.Namespace) -> None:
    """Print the learner's classes, settings, sizes, thresholds and history."""
    from distillmatch.learner.state import read_state
    from distillmatch.report.learner_report import history_table, state_table

    summary = read_state(arguments.state)
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return
    console = plain_console()
    console.print(state_table(summary))
    if summary["history"]:
        console.print(history_table(summary["history"]))


def add_export_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "export",
        help="write a learner's classifier for other programs",
        examples=("export learner --onnx learner.onnx", "export learner --torch learner.pt2"),
    )
    add_state(parser)
    parser.add_argument("--onnx", type=Path, metavar="FILE", help="write ONNX (extra: onnx)")
    parser.add_argument("--torch", type=Path, metavar="FILE", help="write torch.export's .pt2")
    parser.add_argument(
        "--pixels",
        choices=("uint8", "float"),
        default="uint8",
        help="images that the file takes: bytes, or floats from 0 to 1 (default: uint8)",
    )
    parser.set_defaults(run=run_export)


def run_export(arguments: argparse.Namespace) -> None:
    """Write the files that were asked for."""
    if arguments.onnx is None and arguments.torch is None:
        raise ConfigError("export needs --onnx FILE or --torch FILE, or both")
    if None not in (arguments.onnx, arguments.torch) and _same(arguments.onnx, arguments.torch):
        raise ConfigError(
            f"--onnx and --torch must name two files, not both {arguments.torch}, "
            "or one would be written over the other"
        )
    from distillmatch.learner.estimator import ContinualLearner
    from distillmatch.learner.export import export_onnx, export_torch

    learner = ContinualLearner.load(
        arguments.state, device="cpu", allow_import=arguments.allow_import
    )
    console = plain_console(highlight=False, soft_wrap=True)
    for path, write in ((arguments.onnx, export_onnx), (arguments.torch, export_torch)):
        if path is not None:
            write(learner, path, arguments.pixels)
            console.print(
                f"{path}: {len(learner.classes_)} classes, images (count, 3, height, width) of "
                f"{arguments.pixels}, brought to {learner.image_size_} px, "
                f"{size_shown(path.stat().st_size)}",
            )


def _same(one: Path, other: Path) -> bool:
    """Tell whether two paths name the same file, which need not be there yet."""
    return os.path.realpath(one) == os.path.realpath(other)
