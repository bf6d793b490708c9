"""The embedded images: small drawings in a tree of 6 worlds, 12 kinds of thing, and 60 classes.

A super-class is a world with its own background and palette, a parent is a kind of thing with its
own outline, and a class differs from its four siblings in a detail. The pictures are drawn from a
fixed seed in about a second and need no file, so that everything can be tried at once.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError
from distillmatch.sources.dataset import ClassTree, Dataset, Part
from distillmatch.sources.shapes_drawing import WORLDS, Canvas, around, overlap, union, without

SIDES = (16, 32)
TRAIN_PER_CLASS = 150
TEST_PER_CLASS = 30


def _fish(c: Canvas, name: str) -> None:
    height = {"angelfish": 0.5, "shark": 0.26}.get(name, 0.4)
    body = c.ellipse(-0.12, 0, 0.62, height)
    tail = c.polygon((0.3, 0), (0.78, -0.38), (0.78, 0.38))
    skins = {"shark": ("gray", "slate"), "angelfish": ("yellow", "gold"), "trout": ("pink", "tan")}
    if name == "shark":
        tail = union(tail, c.polygon((-0.3, -0.15), (0.2, -0.75), (0.25, -0.1)))
    if name == "angelfish":
        tail = union(tail, c.polygon((-0.15, 0), (0.25, -0.85), (0.4, 0), (0.25, 0.85)))
    c.paint(union(body, tail), *skins.get(name, ("orange", "gold")))
    if name == "clownfish":
        c.paint(overlap(body, c.stripes(c.x, 0.5, 0.4, center=-0.3)), "white")
    if name == "trout":
        c.paint(c.discs(0.1, (-0.3, -0.15), (0, 0.12), (0.05, -0.2), (0.28, 0.05)), "brown")
    c.paint(c.disc(-0.5, -0.08, 0.1), "black")


def _boat(c: Canvas, name: str) -> None:
    hull = c.polygon((-0.8, 0.2), (0.8, 0.2), (0.5, 0.7), (-0.5, 0.7))
    if name == "sailing boat":
        c.paint(c.polygon((-0.1, -0.85), (0.6, 0.1), (-0.1, 0.1)), "white")
    elif name == "two-sail boat":
        c.paint(c.polygon((0.1, -0.7), (0.65, 0.1), (0.1, 0.1)), "white")
        c.paint(c.polygon((-0.1, -0.7), (-0.1, 0.1), (-0.65, 0.1)), "white")
    elif name == "steamer":
        c.paint(c.box(0.1, 0, 0.45, 0.22), "white")
        c.paint(c.box(0.15, -0.5, 0.17, 0.3), "red", "black")
    elif name == "pirate ship":
        c.paint(c.box(0, -0.35, 0.05, 0.6), "brown")
        c.paint(c.box(0, -0.4, 0.5, 0.33), "black")
    else:
        c.paint(c.line((-0.1, 0.3), (0.55, -0.55), 0.14), "cream")
        c.paint(c.line((0.1, 0.3), (-0.55, -0.55), 0.14), "cream")
    c.paint(hull, "red", "brown", "orange")


def _flower(c: Canvas, name: str) -> None:
    petals, reach, radius, tints, heart, size = {
        "daisy": (8, 0.55, 0.2, ("white", "pink"), "yellow", 0.25),
        "poppy": (4, 0.4, 0.36, ("red", "orange"), "black", 0.22),
        "violet": (3, 0.4, 0.36, ("violet", "blue"), "yellow", 0.18),
        "sunflower": (10, 0.6, 0.18, ("yellow", "orange"), "brown", 0.42),
        "rose": (5, 0.3, 0.42, ("pink", "white"), "red", 0.16),
    }[name]
    c.paint(union(c.discs(radius, *around(petals, reach)), c.disc(0, 0, reach)), *tints)
    if name == "rose":
        c.paint(c.ring(0, 0, 0.42, 0.13), "red")
    c.paint(c.disc(0, 0, size), heart)


def _tree(c: Canvas, name: str) -> None:
    c.paint(c.box(0, 0.45, 0.12, 0.4), "brown")
    if name == "fir":
        c.paint(c.polygon((0, -0.9), (0.6, 0.45), (-0.6, 0.45)), "forest")
    elif name == "poplar":
        c.paint(c.ellipse(0, -0.2, 0.32, 0.75), "forest")
    elif name == "palm":
        c.paint(c.line((0, 0.3), (0, -0.3), 0.2), "brown")
        tips = [(0.75, -0.3), (-0.75, -0.3), (0.5, -0.8), (-0.5, -0.8)]
        c.paint(union(*(c.line((0, -0.4), tip, 0.22) for tip in tips)), "forest")
    else:
        c.paint(c.disc(0, -0.2, 0.6), "forest")
    if name == "apple tree":
        c.paint(c.discs(0.13, (-0.28, -0.4), (0.25, -0.45), (-0.1, -0.02), (0.32, 0)), "red")


def _planet(c: Canvas, name: str) -> None:
    tints = ("gold", "tan", "sky", "pink")
    if name == "crescent moon":
        c.paint(without(c.disc(0, 0, 0.7), c.disc(0.35, 0, 0.58)), *tints)
        return
    c.paint(c.disc(0, 0, 0.48 if name == "ringed planet" else 0.65), *tints)
    if name == "ringed planet":
        c.paint(overlap(c.ellipse(0, 0, 0.9, 0.24), -c.ellipse(0, 0, 0.65, 0.1)), "white")
    if name == "banded planet":
        c.paint(overlap(c.disc(0, 0, 0.65), c.stripes(c.y, 0.45)), "brown", "red")
    if name == "cratered planet":
        c.paint(c.discs(0.17, (-0.25, -0.2), (0.25, -0.15), (0, 0.32)), "slate")
    if name == "eclipsed sun":
        c.paint(c.disc(0, 0, 0.42), "night")


def _rocket(c: Canvas, name: str) -> None:
    fins = c.polygon((0, 0), (0.5, 0.6), (-0.5, 0.6))
    body = c.ellipse(0, -0.1, 0.26, 0.75)
    if name == "shuttle":
        fins = c.polygon((0, -0.7), (0.85, 0.6), (-0.85, 0.6))
    if name == "booster rocket":
        fins = union(c.box(-0.44, 0.15, 0.17, 0.45), c.box(0.44, 0.15, 0.17, 0.45))
    c.paint(c.polygon((-0.16, 0.5), (0.16, 0.5), (0, 0.98)), "orange", "yellow")
    c.paint(fins, "red", "violet", "teal")
    c.paint(body, "white", "gray")
    if name == "porthole rocket":
        c.paint(c.disc(0, -0.2, 0.2), "blue", "black")
    if name == "striped rocket":
        c.paint(overlap(body, c.stripes(c.y, 0.42, 0.45, center=-0.1)), "red", "violet")


def _sign(c: Canvas, name: str) -> None:
    c.paint(c.box(0, 0.6, 0.07, 0.4), "slate")
    plate = c.disc(0, -0.15, 0.6)
    if name == "warning sign":
        c.paint(c.polygon((0, -0.85), (0.7, 0.4), (-0.7, 0.4)), "red")
        c.paint(c.polygon((0, -0.4), (0.38, 0.25), (-0.38, 0.25)), "white", "yellow")
    elif name == "speed sign":
        c.paint(plate, "red")
        c.paint(c.disc(0, -0.15, 0.36), "white", "yellow")
    elif name == "no-entry sign":
        c.paint(plate, "red")
        c.paint(c.box(0, -0.15, 0.42, 0.13), "white")
    elif name == "crossroads sign":
        c.paint(plate, "blue")
        c.paint(union(c.box(0, -0.15, 0.1, 0.4), c.box(0, -0.15, 0.4, 0.1)), "white")
    else:
        c.paint(plate, "blue")
        c.paint(c.polygon((0, -0.6), (0.34, -0.1), (-0.34, -0.1)), "white")
        c.paint(c.box(0, 0.02, 0.1, 0.2), "white")


def _house(c: Canvas, name: str) -> None:
    walls = ("cream", "pink", "sky", "yellow")
    if name == "tower block":
        c.paint(c.box(0, 0, 0.45, 0.8), *walls)
        c.paint(
            overlap(c.box(0, 0, 0.4, 0.75), c.stripes(c.x, 0.4, center=0.2), c.stripes(c.y, 0.4)),
            "slate",
        )
        return
    c.paint(c.box(0, 0.25, 0.6, 0.5), *walls)
    if name == "cottage":
        c.paint(c.polygon((0, -0.85), (0.8, -0.15), (-0.8, -0.15)), "red", "brown")
    if name == "shop":
        awning = c.box(0, -0.25, 0.75, 0.24)
        c.paint(awning, "white")
        c.paint(overlap(awning, c.stripes(c.x, 0.44)), "red", "green")
    if name == "factory":
        c.paint(c.discs(0.17, (0.15, -0.75), (-0.2, -0.8)), "white")
        c.paint(c.box(0.38, -0.45, 0.16, 0.45), "red", "brown")
    if name == "church":
        c.paint(c.box(0, -0.2, 0.24, 0.4), *walls)
        c.paint(c.polygon((0, -0.98), (0.3, -0.4), (-0.3, -0.4)), "slate", "brown")
    c.paint(c.box(0, 0.5, 0.15, 0.26), "brown", "black")


def _cup(c: Canvas, name: str) -> None:
    glaze = ("blue", "green", "teal", "violet")
    body = c.box(-0.12, 0.1, 0.45, 0.52)
    if name == "tea cup":
        body = overlap(c.ellipse(-0.1, -0.2, 0.62, 0.75), c.box(-0.1, 0.3, 0.7, 0.5))
        c.paint(c.ellipse(-0.1, 0.55, 0.75, 0.14), "white")
    if name != "glass":
        c.paint(c.ring(0.42, 0.08, 0.26, 0.14), *glaze)
    c.paint(body, *(("sky",) if name == "glass" else glaze))
    if name == "striped mug":
        c.paint(overlap(body, c.stripes(c.y, 0.45, center=0.1)), "white")
    if name == "dotted mug":
        spots = c.discs(0.12, (-0.32, -0.18), (0.08, -0.18), (-0.32, 0.3), (0.08, 0.3))
        c.paint(spots, "yellow", "white")
    if name == "glass":
        c.paint(c.box(-0.12, 0.25, 0.34, 0.3), "orange", "red")


def _round_food(c: Canvas, name: str) -> None:
    plate = c.disc(0, 0, 0.7)
    if name == "doughnut":
        c.paint(without(plate, c.disc(0, 0, 0.24)), "brown", "violet")
        return
    c.paint(plate, "white" if name == "fried egg" else "gold")
    if name == "fried egg":
        c.paint(c.disc(0.05, 0.05, 0.3), "yellow", "orange")
    if name == "pizza":
        c.paint(c.disc(0, 0, 0.56), "yellow")
        c.paint(c.discs(0.16, *around(4, 0.34)), "red")
    if name == "biscuit":
        c.paint(c.discs(0.11, *around(5, 0.4)), "brown")
    if name == "pie":
        cuts = union(c.box(0, 0, 0.06, 0.5), c.box(0, 0, 0.5, 0.06))
        c.paint(union(c.ring(0, 0, 0.62, 0.16), cuts), "brown")


def _ball(c: Canvas, name: str) -> None:
    bright = ("red", "blue", "green", "violet")
    ball = c.disc(0, 0, 0.7)
    if name == "football":
        c.paint(ball, "white")
        c.paint(overlap(ball, c.discs(0.2, (0, 0), *around(5, 0.62))), "black")
        return
    c.paint(ball, *bright)
    if name == "striped ball":
        c.paint(overlap(ball, c.stripes(c.y, 0.5)), "white")
    if name == "two-tone ball":
        c.paint(overlap(ball, c.y), "yellow", "white")
    if name == "beach ball":
        c.paint(overlap(ball, np.maximum(np.minimum(c.x, c.y), -np.maximum(c.x, c.y))), "white")
    if name == "target ball":
        c.paint(c.ring(0, 0, 0.38, 0.2), "white", "yellow")


def _block(c: Canvas, name: str) -> None:
    block = c.box(0, 0, 0.6, 0.6)
    c.paint(block, "red", "blue", "green", "violet")
    if name == "framed block":
        c.paint(c.box(0, 0, 0.36, 0.36), "yellow", "white")
    if name == "cross block":
        arms = union(c.box(0, 0, 0.6, 0.14), c.box(0, 0, 0.14, 0.6))
        c.paint(arms, "yellow", "white")
    if name == "dice block":
        spots = c.discs(0.16, (-0.3, -0.3), (-0.3, 0.3), (0.3, -0.3), (0.3, 0.3))
        c.paint(spots, "white", "yellow")
    if name == "striped block":
        c.paint(overlap(block, c.stripes(c.y, 0.48)), "yellow", "white")


class Kind(NamedTuple):
    """A parent: its super-class, its drawing, how far it is turned, and its classes."""

    world: str
    draw: Callable[[Canvas, str], None]
    turn: float
    classes: str


KINDS = {
    "fish": Kind("sea", _fish, 0.2,
        "goldfish, clownfish, trout, angelfish, shark"),
    "boats": Kind("sea", _boat, 0.12,
        "rowing boat, sailing boat, two-sail boat, steamer, pirate ship"),
    "flowers": Kind("meadow", _flower, 1,
        "daisy, poppy, violet, sunflower, rose"),
    "trees": Kind("meadow", _tree, 0.12,
        "round tree, apple tree, fir, poplar, palm"),
    "planets": Kind("space", _planet, 1,
        "ringed planet, banded planet, cratered planet, crescent moon, eclipsed sun"),
    "rockets": Kind("space", _rocket, 0.35,
        "plain rocket, striped rocket, porthole rocket, booster rocket, shuttle"),
    "signs": Kind("street", _sign, 0.12,
        "warning sign, speed sign, no-entry sign, crossroads sign, one-way sign"),
    "houses": Kind("street", _house, 0.12,
        "cottage, tower block, shop, factory, church"),
    "cups": Kind("kitchen", _cup, 0.15,
        "plain mug, striped mug, dotted mug, tea cup, glass"),
    "round food": Kind("kitchen", _round_food, 1,
        "fried egg, pizza, doughnut, biscuit, pie"),
    "balls": Kind("playroom", _ball, 1,
        "football, striped ball, two-tone ball, beach ball, target ball"),
    "blocks": Kind("playroom", _block, 1,
        "plain block, framed block, cross block, dice block, striped block"),
}  # fmt: skip


def load(config: StreamConfig) -> Dataset:
    """Draw the embedded images; they do not depend on the stream's seed."""
    side = SIDES[0] if config.image_size is None else config.image_size
    if side not in SIDES:
        sides = " or ".join(map(str, SIDES))
        raise SourceError(f"image_size must be {sides} for the source 'shapes', not {side}")
    classes = [(kind, name) for kind in KINDS.values() for name in kind.classes.split(", ")]
    pictures = np.stack([_draw(kind, name, side) for kind, name in classes])
    parents = [parent for parent, kind in KINDS.items() for _ in kind.classes.split(", ")]
    worlds = {parent: kind.world for parent, kind in KINDS.items()}
    return Dataset(
        name="shapes",
        train=_part(pictures[:, :TRAIN_PER_CLASS]),
        test=_part(pictures[:, TRAIN_PER_CLASS:]),
        class_names=tuple(name for _, name in classes),
        tree=ClassTree.of_names(parents, worlds),
    )


def _part(pictures: NDArray[np.uint8]) -> Part:
    """Flatten pictures that are arranged by class."""
    labels = np.repeat(np.arange(len(pictures), dtype=np.int64), pictures.shape[1])
    return Part(pictures.reshape(-1, *pictures.shape[2:]), labels)


def _draw(kind: Kind, name: str, side: int) -> NDArray[np.uint8]:
    """Draw all pictures of one class, those for training first."""
    ground, texture = WORLDS[kind.world]
    canvas = Canvas(name, TRAIN_PER_CLASS + TEST_PER_CLASS, side)
    canvas.fill(ground)
    texture(canvas)
    canvas.drop_blot("behind", reach=1, largest=0.2)
    canvas.place_things(kind.turn)
    kind.draw(canvas, name)
    canvas.drop_blot("before", reach=0.8, largest=0.8)
    canvas.add_light_and_grain()
    return canvas.pictures()
