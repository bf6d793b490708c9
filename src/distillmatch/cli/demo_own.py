"""`distillmatch demo own`: three months of a learner, by the same code as the commands."""

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from distillmatch.cli.learn import learn_task
from distillmatch.config import StreamConfig
from distillmatch.errors import explain_disk_errors
from distillmatch.randomness import permutation
from distillmatch.sources import load_source
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


def run_own(out: Path) -> None:
    """Write the world, learn its months, and end with the report and what to try next."""
    from distillmatch.learner.saved import HEAD
    from distillmatch.learner.state import read_state
    from distillmatch.report.pictures import draw_learner

    console = plain_console(highlight=False, soft_wrap=True)
    build_world(out)
    state = out / "learner"
    begun = (state / HEAD).exists()
    known = [record["name"] for record in read_state(state)["history"]] if begun else []
    examples: dict[str, Any] = {}
    for month in MONTHS:
        if month in known:
            continue
        labeled, camera, test = out / month / "labeled", out / month / "camera", out / "test"
        words = ["distillmatch", "learn", str(state), "--labeled", str(labeled)]
        words += ["--unlabeled", str(camera), "--test", str(test), "--name", month]
        for name, value in {} if known or examples else SETTINGS.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        console.print(f"\n$ {shown(shlex.join(words))}")
        examples[month] = learn_task(
            state, labeled=labeled, unlabeled=[camera], name=month, test=test, settings=SETTINGS
        ).examples
    if len(examples) == len(MONTHS):
        tasks = [
            (record, _one_of_each(out / month / "labeled"), [one.image for one in examples[month]])
            for record, month in zip(read_state(state)["history"], MONTHS, strict=True)
        ]
        draw_learner(tasks, out / PICTURE)
    place = shown(state)
    console.print(
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


def build_world(folder: Path) -> None:
    """Write each month's labeled images and what its camera sees, and the images to test with."""
    dataset = load_source(StreamConfig(source="shapes"))
    taken: Counter[str] = Counter()

    def take(label: str, count: int) -> NDArray[np.uint8]:
        """Return training images of a class; each is given away once."""
        places = np.flatnonzero(dataset.train.labels == dataset.class_names.index(label))
        taken[label] += count
        chosen = places[taken[label] - count : taken[label]]
        return np.asarray(dataset.train.images[chosen])

    known: tuple[str, ...] = ()
    for month, classes in MONTHS.items():
        known += classes
        for label in classes:
            _write(take(label, LABELS), folder / month / "labeled" / label)
        sights = [take(label, SIGHTS) for label in known]
        sights += [take(label, STRANGE_SIGHTS) for label in UNKNOWN_CLASSES]
        images = np.concatenate(sights)
        order = permutation(len(images), 1, "the camera of", month)
        _write(images[order], folder / month / "camera")
    for label in known:
        tests = dataset.test.labels == dataset.class_names.index(label)
        _write(dataset.test.images[tests][:TESTS], folder / "test" / label)


def _write(images: NDArray[np.uint8], folder: Path) -> None:
    with explain_disk_errors("writing the images of the demo", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for number, pixels in enumerate(images, start=1):
            Image.fromarray(pixels).save(folder / f"{number:03}.png")
