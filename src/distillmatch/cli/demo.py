"""`distillmatch demo`: the paper in miniature, or a learner, on the embedded data in minutes."""

import argparse
import shlex
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from distillmatch.cli.parser import Commands, Parser, add_command, option
from distillmatch.cli.queue import do_runs
from distillmatch.config import RunConfig, StreamConfig
from distillmatch.config.base import Place
from distillmatch.errors import TrainingError, explain_disk_errors
from distillmatch.files import write_atomically
from distillmatch.randomness import permutation
from distillmatch.report.sheets import draw_learner, draw_stream, draw_views_of
from distillmatch.sources import load_source
from distillmatch.sources.walk import shown
from distillmatch.streams import build_stream
from distillmatch.terminal import say, show

RATES = {"dm": 0.1, "worldmatch": 0.2, "offline": 0.2, "gd": 0.1, "base": 0.05}
"""The learning rate of each method, chosen by `distillmatch tune` on two folds of three tasks."""
SETTINGS: dict[str, Any] = {
    "source": "shapes",
    "tasks": 6,
    "labels_per_class": 15,
    "unlabeled": "uniform",
    "unlabeled_per_task": 700,
    "recipe": "as-written",
    "network": "wrn-10-1",
    "epochs": 12,
    "batch": 16,
    "unlabeled_batch": 96,
    "device": "cpu",
}
"""Steps are few, and by this recipe networks learn in fewer than by `paper`. DM learns from the
unlabeled images, so there are six of them for each labeled one of a step."""
OWN_SETTINGS: dict[str, Any] = {
    "network": "wrn-10-1",
    "image_size": 16,
    "epochs": 45,
    "batch": 20,
    "unlabeled_batch": 60,
    "learning_rate": 0.03,
    "device": "cpu",
}
MONTHS = {
    "march": ("daisy", "goldfish"),
    "april": ("pizza", "shuttle"),
    "may": ("cottage", "football"),
}
UNKNOWN_CLASSES = ("palm", "pirate ship", "tower block", "crescent moon", "tea cup", "dice block")
LABELS, SEEN, UNKNOWN_SEEN, TESTS = 20, 40, 20, 20
"""Images of each class: labeled, in front of the camera in a month (fewer of unknown classes), and
for testing."""


def add_parser(commands: Commands) -> Parser:
    """Describe the command."""
    parser = add_command(commands, "demo", run)
    said = "three months of a learner for your own images, in under a minute"
    option(parser, "what", said, Literal["own"], nargs="?")
    option(parser, "--out DIR", "output folder (default: demo, or demo-own)", Place)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Show the paper in miniature, or a learner for your own images.

    distillmatch demo
    distillmatch demo own
    """
    if arguments.what == "own":
        learn_months(arguments.out or Path("demo-own"))
    else:
        compare_methods(arguments.out or Path("demo"))


def compare_methods(out: Path) -> None:
    """Draw the stream and its views, train the methods, and write the page."""
    from distillmatch.report.comparison import comparison_table, with_omega
    from distillmatch.report.pages import write_demo_page
    from distillmatch.runs import read_result
    from distillmatch.runs.log import history, read_log
    from distillmatch.runs.side_by_side import Job
    from distillmatch.suite.queue import error_file

    configs = [RunConfig(**SETTINGS, method=one, learning_rate=RATES[one]) for one in RATES]
    dataset = load_source(configs[0])
    draw_stream(dataset, build_stream(dataset, configs[0]), out / "stream.png")
    draw_views_of(dataset, configs[0].seed, out / "views.png")
    for config in configs:
        _start_over_if_changed(config, out / config.method)
    queue = do_runs([Job(one.method, one, out / one.method) for one in configs], out)
    for name in queue.names("failed"):
        reason, see = queue.entries[name].reason, error_file(queue.entries[name].job)
        raise TrainingError(f"the demo's run of {name} failed: {reason}; see {see}")
    results = with_omega([read_result(out / config.method) for config in configs])
    results.sort(key=lambda result: -result["metrics"]["A_N"])
    accepted = {
        entry["task"]: entry["examples"]
        for entry in history(read_log(out / "dm"))
        if entry["event"] == "task" and entry.get("examples")
    }
    show(comparison_table(results))
    say(f"Open {write_demo_page(results, dataset, accepted, out)}")


def _start_over_if_changed(config: RunConfig, out: Path) -> None:
    """Write the configuration beside its run, and clear the run of another one."""
    from distillmatch.runs.folder import RunFolder

    settings, text = out / "config.yaml", config.to_yaml()
    if settings.exists() and settings.read_text(encoding="utf-8") != text:
        with RunFolder(out, lambda sentence: None) as folder:
            folder.start_over()
    write_atomically(settings, text, "writing the configuration")


def learn_months(out: Path) -> None:
    """Write the months' images, learn them one by one, and say what to try next."""
    from distillmatch.cli import make_parser
    from distillmatch.learner import ContinualLearner
    from distillmatch.learner.saved import HEAD
    from distillmatch.learner.state import read_state

    write_months(out)
    state = out / "learner"
    begun = (state / HEAD).exists()
    known = [record["name"] for record in read_state(state)["history"]] if begun else []
    examples: list[Any] = []
    for month in MONTHS:
        if month in known:
            continue
        words = ["learn", str(state), "--labeled", str(out / month / "labeled"), "--unlabeled"]
        words += [str(out / month / "camera"), "--test", str(out / "test"), "--name", month]
        for name, value in {} if known or examples else OWN_SETTINGS.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        say(f"\n$ distillmatch {shown(shlex.join(words))}")
        arguments = make_parser().parse_args(words)
        arguments.run(arguments)
        examples.append(ContinualLearner.load(state, "cpu").explain().examples)
    if len(examples) == len(MONTHS):
        history = read_state(state)["history"]
        tasks = [
            (record, _one_of_each(out / month / "labeled"), [one.image for one in accepted])
            for record, month, accepted in zip(history, MONTHS, examples, strict=True)
        ]
        draw_learner(tasks, out / "learner.png")
    place = shown(state)
    say(
        "\nThree months are learned, and no image of them was kept to learn from. Try next:\n"
        f"  open {shown(state / 'report.html')}\n"
        f"  distillmatch predict {place} {shown(out / 'may' / 'camera')} --reject --csv\n"
        f"  distillmatch inspect {place}\n"
        f"  distillmatch export {place} --onnx {shown(out / 'learner.onnx')}\n"
        f"  distillmatch learn {place} --labeled YOURS --unlabeled YOUR_CAMERA"
    )


def _one_of_each(labeled: Path) -> list[Any]:
    folders = sorted(folder for folder in labeled.iterdir() if folder.is_dir())
    return [np.asarray(Image.open(folder / "001.png").convert("RGB")) for folder in folders]


def write_months(folder: Path) -> None:
    """Write each month's labeled images and what its camera sees, and the images to test with."""
    dataset, known = load_source(StreamConfig(source="shapes")), list[str]()
    slots = {name: slot for slot, name in enumerate(dataset.class_names)}
    # Training images of each class, each taken once.
    left = {name: iter(dataset.train.images[dataset.train.labels == slots[name]]) for name in slots}
    for month, classes in MONTHS.items():
        known += classes
        for label in classes:
            _write(islice(left[label], LABELS), folder / month / "labeled" / label)
        counts = {**dict.fromkeys(known, SEEN), **dict.fromkeys(UNKNOWN_CLASSES, UNKNOWN_SEEN)}
        seen = [image for label, count in counts.items() for image in islice(left[label], count)]
        order = permutation(len(seen), 1, "the camera of", month)
        _write((seen[place] for place in order), folder / month / "camera")
    for label in known:
        tests = dataset.test.images[dataset.test.labels == slots[label]][:TESTS]
        _write(tests, folder / "test" / label)


def _write(images: Iterable[NDArray[np.uint8]], folder: Path) -> None:
    with explain_disk_errors("writing the images of the demo", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for number, pixels in enumerate(images, start=1):
            Image.fromarray(pixels).save(folder / f"{number:03}.png")
