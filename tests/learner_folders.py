"""Folders of colored squares for the tests of the learner's commands."""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

from distillmatch.cli import main

SIDE = 8
SMALL = [
    "--method",
    "dm",
    "--network",
    "wrn-10-1",
    "--epochs",
    "2",
    "--batch",
    "8",
    "--unlabeled-batch",
    "8",
]
SMALL += ["--image-size", str(SIDE), "--device", "cpu"]
ODD = "<b>[red]&amp;"
COLORS = {"red": (220, 30, 30), "green": (30, 200, 40), ODD: (30, 40, 220), "white": (240,) * 3}


def picture(color: tuple[int, ...], number: int) -> Image.Image:
    """Return a noisy square of one color."""
    noise = np.random.default_rng(number).integers(-25, 26, (SIDE, SIDE, 3))
    return Image.fromarray(np.clip(np.array(color) + noise, 0, 255).astype(np.uint8))


def write_class(folder: Path, name: str, count: int, first: int = 0) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        picture(COLORS[name], number).save(folder / name / f"{number}.png")


def content_of(folder: Path) -> dict[str, str]:
    """Return a hash of each file of a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.lock"
    }


def make_world(world: Path) -> Path:
    """Write folders of two months and a test folder, and a learner of the first month."""
    for name in ("red", "green"):
        write_class(world / "march", name, 6)
    write_class(world / "april", ODD, 6)
    for name in COLORS:
        write_class(world / "test", name, 4, first=100)
    for name in COLORS:
        write_class(world / "camera", name, 6, first=200)
    words = ["learn", str(world / "state"), "--labeled", str(world / "march"), "--name", "march"]
    words += ["--unlabeled", str(world / "camera"), "--test", str(world / "test"), *SMALL]
    assert main([*words, "--quiet"]) == 0
    return world
