"""`distillmatch export`: a learner's classifier as a file for other programs."""

import argparse
import os
from pathlib import Path

from distillmatch.cli.learner_options import add_state
from distillmatch.errors import ConfigError
from distillmatch.files import size_shown
from distillmatch.terminal import plain_console


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the command."""
    parser = commands.add_parser("export", help="write a learner's classifier for other programs")
    add_state(parser)
    parser.add_argument("--onnx", type=Path, metavar="FILE", help="write ONNX (extra: onnx)")
    parser.add_argument("--torch", type=Path, metavar="FILE", help="write torch.export's .pt2")
    parser.add_argument(
        "--pixels",
        choices=("uint8", "float"),
        default="uint8",
        help="images that the file takes: bytes, or floats from 0 to 1 (default: uint8)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
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
                f"{path}: {len(learner.classes_)} classes, images (count, 3, "
                f"{learner.image_size_}, {learner.image_size_}) of {arguments.pixels}, "
                f"{size_shown(path.stat().st_size)}",
            )


def _same(one: Path, other: Path) -> bool:
    """Tell whether two paths name the same file, which need not be there yet."""
    return os.path.realpath(one) == os.path.realpath(other)
