"""`distillmatch demo own`: three months of a learner, by the same code as the commands."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from distillmatch.cli.learn import learn_task
from distillmatch.config import StreamConfig
from distillmatch.errors import explain_disk_errors
from distillmatch.randomness import permutation
from distillmatch.sources import Dataset, load_source
from distillmatch.sources.walk import shown
from distillmatch.terminal import plain_console

SETTINGS: dict[str, Any] = {
    "network": "wrn-10-1",
    "image_size": 16,
    "epochs": 45,
    "batch": 20,
    "unlabeled_batch": 60,
    "learning_rate": 0.03,
    "device": "cpu",
}
PICTURE = "learner.png"

MONTHS = {
    "march": ("daisy", "goldfish"),
    "april": ("pizza", "shuttle"),
    "may": ("cottage", "football"),
}
UNKNOWN_CLASSES = ("palm", "pirate ship", "tower block", "crescent moon", "tea cup", "dice block")
LABELS, SIGHTS, STRANGE_SIGHTS, TESTS = 20, 40, 20, 20
"""Of each class: images with a label, images the camera sees in a month (fewer of unknown classes),
and images to test with."""


@dataclass(frozen=True)
class Month:
    """One month's folders."""

    name: str
    labeled: Path
    camera: Path


def run_own(out: Path) -> None:
    """Write the world, learn its months, and end with the report and what to try next."""
    from distillmatch.learner.saved import HEAD
    from distillmatch.learner.state import read_state
    from distillmatch.report.pictures import draw_learner

    console = plain_console(highlight=False, soft_wrap=True)
    months, test = build_world(out)
    state = out / "learner"
    begun = (state / HEAD).exists()
    known = [record["name"] for record in read_state(state)["history"]] if begun else []
    examples: dict[str, Any] = {}
    for month in months:
        if month.name in known:
            continue
        console.print(f"\n$ {_command(state, month, test, month is months[0])}")
        told = learn_task(
            state,
            labeled=month.labeled,
            unlabeled=[month.camera],
            name=month.name,
            test=test,
            settings=SETTINGS,
        )
        examples[month.name] = told.examples
    if len(examples) == len(months):
        history = read_state(state)["history"]
        tasks = [
            (record, _one_of_each(month), [one.image for one in examples[month.name]])
            for record, month in zip(history, months, strict=True)
        ]
        draw_learner(tasks, out / PICTURE)
    for line in _what_next(out, state, months[-1]):
        console.print(line)


def _command(state: Path, month: Month, test: Path, first: bool) -> str:
    """Return the command that does the same; only a new learner is told its settings."""
    words = ["distillmatch", "learn", str(state), "--labeled", str(month.labeled)]
    words += ["--unlabeled", str(month.camera), "--test", str(test), "--name", month.name]
    for name, value in SETTINGS.items() if first else ():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shown(shlex.join(words))


def _one_of_each(month: Month) -> list[Any]:
    folders = sorted(folder for folder in month.labeled.iterdir() if folder.is_dir())
    return [np.asarray(Image.open(folder / "001.png").convert("RGB")) for folder in folders]


def _what_next(out: Path, state: Path, last: Month) -> list[str]:
    place = shown(state)
    return [
        "\nThree months are learned, and no image of them was kept to learn from. Try next:",
        f"  open {shown(state / 'report.html')}",
        f"  distillmatch predict {place} {shown(last.camera)} --reject --csv",
        f"  distillmatch inspect {place}",
        f"  distillmatch export {place} --onnx {shown(out / 'learner.onnx')}",
        f"  distillmatch learn {place} --labeled YOURS --unlabeled YOUR_CAMERA",
    ]


def build_world(folder: Path) -> tuple[list[Month], Path]:
    """Write the images; return the months in order, and the folder of test images."""
    dataset = load_source(StreamConfig(source="shapes"))
    pool = _Pool(dataset)
    months = []
    known: tuple[str, ...] = ()
    for name, classes in MONTHS.items():
        month = Month(name, folder / name / "labeled", folder / name / "camera")
        known += classes
        for label in classes:
            _write(pool.take(label, LABELS), month.labeled / label)
        sights = [pool.take(label, SIGHTS) for label in known]
        sights += [pool.take(label, STRANGE_SIGHTS) for label in UNKNOWN_CLASSES]
        _write(_shuffled(sights, name), month.camera)
        months.append(month)
    for label in known:
        number = dataset.class_names.index(label)
        tests = dataset.test.images[dataset.test.labels == number]
        _write(tests[:TESTS], folder / "test" / label)
    return months, folder / "test"


class _Pool:
    """Gives every training image away once."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.taken: dict[str, int] = {}

    def take(self, label: str, count: int) -> NDArray[np.uint8]:
        number = self.dataset.class_names.index(label)
        places = np.flatnonzero(self.dataset.train.labels == number)
        start = self.taken.get(label, 0)
        self.taken[label] = start + count
        images: NDArray[np.uint8] = self.dataset.train.images[places[start : start + count]]
        return images


def _shuffled(parts: Sequence[NDArray[np.uint8]], month: str) -> NDArray[np.uint8]:
    images = np.concatenate(parts)
    return images[permutation(len(images), 1, "the camera of", month)]


def _write(images: NDArray[np.uint8], folder: Path) -> None:
    with explain_disk_errors("writing the images of the demo", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for number, pixels in enumerate(images, start=1):
            Image.fromarray(pixels).save(folder / f"{number:03}.png")
