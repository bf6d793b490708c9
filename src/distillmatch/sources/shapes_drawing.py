"""A canvas on which a whole batch of pictures is drawn at once, and the worlds behind the things.

A shape is a field: its distance to the outline in every pixel, negative inside. Fields are joined
with `union`, `overlap` and `without`, and painted with soft edges. Only operations that IEEE 754
rounds exactly are used (no sine, no exponential, no sum whose order is open), and every random
number is hashed from the picture's name, so that not one byte depends on processor or library.
"""

import math
from collections.abc import Callable
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from distillmatch.randomness import random_integers

Field = NDArray[np.floating]
Point = tuple[float, float]

DATA_SEED = 2021

COLORS: dict[str, tuple[float, float, float]] = {
    "white": (0.95, 0.95, 0.92), "cream": (0.95, 0.87, 0.68), "yellow": (0.97, 0.83, 0.18),
    "gold": (0.88, 0.65, 0.20), "orange": (0.95, 0.52, 0.13), "red": (0.85, 0.16, 0.14),
    "pink": (0.94, 0.52, 0.64), "violet": (0.55, 0.30, 0.72), "blue": (0.17, 0.35, 0.80),
    "sky": (0.45, 0.72, 0.92), "teal": (0.13, 0.58, 0.58), "grass": (0.47, 0.72, 0.28),
    "green": (0.20, 0.58, 0.22), "forest": (0.06, 0.33, 0.13), "brown": (0.44, 0.26, 0.12),
    "tan": (0.80, 0.62, 0.40), "gray": (0.56, 0.58, 0.62), "slate": (0.30, 0.34, 0.40),
    "night": (0.06, 0.06, 0.17), "black": (0.08, 0.08, 0.10),
}  # fmt: skip


def union(*fields: Field) -> Field:
    """Return the field of what lies in any of the shapes."""
    return reduce(np.minimum, fields)


def overlap(*fields: Field) -> Field:
    """Return the field of what lies in all of the shapes."""
    return reduce(np.maximum, fields)


def without(field: Field, hole: Field) -> Field:
    """Return the field of the first shape where the second is not."""
    return np.maximum(field, -hole)


def around(count: int, reach: float) -> list[Point]:
    """Return points on a circle, rounded so that every mathematics library agrees."""
    angles = [2 * math.pi * i / count for i in range(count)]
    return [(reach * round(math.cos(a), 6), reach * round(math.sin(a), 6)) for a in angles]


class Canvas:
    """A batch of square pictures, and the place, size and turn of the thing drawn in each.

    Shapes are given in the thing's own frame: x to the right and y down, the thing reaching from
    about -0.8 to 0.8. Nothing depends on `side` but sharpness and grain.
    """

    def __init__(self, name: str, count: int, side: int) -> None:
        self.name, self.count, self.side = name, count, side
        centers = (np.arange(side, dtype=np.float32) + 0.5) * np.float32(2 / side) - 1
        self.column = np.broadcast_to(centers, (count, side, side))
        self.row = np.broadcast_to(centers[:, None], (count, side, side))
        self.planes = np.zeros((3, count, side, side), np.float32)
        self.paints = 0
        self.x, self.y = self.column, self.row
        self.sharpness = np.full((count, 1, 1), side / 2, np.float32)

    def uniform(self, purpose: str, low: float, high: float) -> Field:
        """Return one random number for each picture, shaped to meet a field."""
        integers = random_integers(DATA_SEED, self.name, purpose, count=self.count)
        numbers = (integers >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        return (low + (high - low) * numbers).reshape(-1, 1, 1)

    def _sign(self, purpose: str) -> Field:
        return np.where(self.uniform(purpose, -1, 1) < 0, np.float32(-1), np.float32(1))

    def grain(self, purpose: str, planes: int) -> Field:
        """Return a random number from 0 to 1 for each pixel of each plane."""
        count = planes * self.count * self.side**2
        integers = random_integers(DATA_SEED, self.name, purpose, self.side, count=-(-count // 8))
        numbers = integers.astype("<u8").view(np.uint8)[:count].astype(np.float32)
        return (numbers / np.float32(255)).reshape(planes, self.count, self.side, self.side)

    def place_things(self, turn: float) -> None:
        """Give each thing its place, size, mirror image and turn.

        `turn` is the tangent of half the largest angle, so that no sine is needed; 1 means that
        things have no upright position, and half of them are then put upside down as well.
        """
        half = self.uniform("turn", -turn, turn)
        cosine, sine = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
        down_scale = self.uniform("size", 0.75, 1.1)
        across_scale = down_scale * self.uniform("aspect", 0.88, 1.14)
        across = (self.column - self.uniform("column", -0.22, 0.22)) / across_scale
        down = (self.row - self.uniform("row", -0.22, 0.22)) / down_scale
        mirror = self._sign("mirror")
        upside = self._sign("upside") if turn == 1 else np.float32(1)
        self.x = across * (cosine * mirror) + down * (sine * mirror)
        self.y = down * (cosine * upside) - across * (sine * upside)
        self.sharpness = down_scale * np.float32(self.side / 2)

    def disc(self, x: float, y: float, radius: float) -> Field:
        """Return the field of a disc."""
        across, down = self.x - x, self.y - y
        return np.sqrt(across * across + down * down) - radius

    def ellipse(self, x: float, y: float, width: float, height: float) -> Field:
        """Return the field of an ellipse of the given half axes, exact only on its outline."""
        across, down = (self.x - x) / width, (self.y - y) / height
        return (np.sqrt(across * across + down * down) - 1) * min(width, height)

    def box(self, x: float, y: float, width: float, height: float) -> Field:
        """Return the field of a rectangle of the given half sides."""
        return np.maximum(np.abs(self.x - x) - width, np.abs(self.y - y) - height)

    def ring(self, x: float, y: float, radius: float, thickness: float) -> Field:
        """Return the field of a ring."""
        return np.abs(self.disc(x, y, radius)) - thickness / 2

    def line(self, start: Point, end: Point, thickness: float) -> Field:
        """Return the field of a line with round ends."""
        (x, y), (dx, dy) = start, (end[0] - start[0], end[1] - start[1])
        across, down = self.x - x, self.y - y
        along = np.clip((across * dx + down * dy) / (dx * dx + dy * dy), 0, 1)
        across, down = across - along * dx, down - along * dy
        return np.sqrt(across * across + down * down) - thickness / 2

    def polygon(self, *corners: Point) -> Field:
        """Return the field of a convex polygon whose corners are listed clockwise."""
        edges = []
        for (x, y), (to_x, to_y) in zip(corners, (*corners[1:], corners[0]), strict=True):
            dx, dy = to_x - x, to_y - y
            length = math.sqrt(dx * dx + dy * dy)
            edges.append((self.x - x) * (dy / length) - (self.y - y) * (dx / length))
        return overlap(*edges)

    def discs(self, radius: float, *centers: Point) -> Field:
        """Return the field of several discs of one size."""
        return union(*(self.disc(x, y, radius) for x, y in centers))

    def stripes(
        self, along: Field, period: float, share: float = 0.5, center: float | Field = 0.0
    ) -> Field:
        """Return the field of stripes that repeat along a coordinate, one of them at `center`."""
        steps = (along - center) / period + 0.5
        from_middle: Field = np.abs(steps - np.floor(steps) - 0.5)
        return (from_middle - share / 2) * period

    def color(self, *names: str, spread: float) -> Field:
        """Return for each picture one of the named colors, varied in each channel."""
        purpose = f"colour {self.paints}"  # spelled so since the first pictures
        choice = self.uniform(f"choice {self.paints}", 0, len(names)).astype(np.int64)
        palette = np.array([COLORS[name] for name in names], np.float32)
        channels = [self.uniform(f"{purpose} {i}", -spread, spread) for i in range(3)]
        light = self.uniform(f"{purpose} light", -spread, spread)
        self.paints += 1
        return np.stack([palette[choice, i] + channels[i] + light for i in range(3)])

    def fill(self, name: str) -> None:
        """Cover everything with a color."""
        self.planes[:] = self.color(name, spread=0.07)

    def paint(self, field: Field, *names: str, spread: float = 0.09) -> None:
        """Cover the inside of a shape with one of the named colors."""
        cover = np.clip(0.5 - field * self.sharpness, 0, 1)
        for i, level in enumerate(self.color(*names, spread=spread)):
            self.planes[i] += cover * (level - self.planes[i])  # alone, it stays in the CPU's cache

    def rarely_large(self, purpose: str) -> Field:
        """Return a number for each picture that is near 0 for most and up to 1 for a few."""
        number = self.uniform(purpose, 0, 1)
        square = number * number
        return square * square * square

    def drop_blot(self, purpose: str, reach: float, largest: float) -> None:
        """Drop a round blot of any color within `reach` of the middle of most pictures."""
        across = self.column - self.uniform(f"{purpose} column", -reach, reach)
        down = self.row - self.uniform(f"{purpose} row", -reach, reach)
        radius = self.uniform(f"{purpose} radius", -0.15, 0.25)
        radius = np.where(radius > 0, radius, np.float32(-1))
        radius = np.maximum(radius, largest * self.rarely_large(f"{purpose} large") - 0.2)
        self.paint(np.sqrt(across * across + down * down) - radius, *COLORS)

    def add_light_and_grain(self) -> None:
        """Light each picture from a random side, then disturb every pixel: most a little."""
        slope = self.column * self.uniform("light column", -0.16, 0.16)
        slope = slope + self.row * self.uniform("light row", -0.16, 0.16)
        self.planes *= slope + self.uniform("light", 0.85, 1.1)
        strength = self.uniform("grain size", 0.02, 0.2) + 0.4 * self.rarely_large("coarse grain")
        self.planes += (self.grain("grain", 3) - 0.5) * strength

    def pictures(self) -> NDArray[np.uint8]:
        """Return the pictures as bytes, (count, side, side, 3)."""
        levels = np.rint(np.clip(self.planes, 0, 1) * 255).astype(np.uint8)
        return np.ascontiguousarray(levels.transpose(1, 2, 3, 0))


def _sea(c: Canvas) -> None:
    wave = c.x * 2 + c.uniform("wave", 0, 2)
    ripple = np.abs(wave - 2 * np.floor(wave / 2) - 1) * 0.14
    c.paint(c.stripes(c.y + ripple, 0.5, 0.4, c.uniform("tide", 0, 1)), "sky")


def _meadow(c: Canvas) -> None:
    c.planes += (c.grain("grass", 1) - 0.5) * 0.3


def _space(c: Canvas) -> None:
    c.planes += (c.grain("stars", 1) > 0.975) * np.float32(0.8)


def _street(c: Canvas) -> None:
    courses = c.stripes(c.y, 0.5, 0.25, c.uniform("wall", 0, 1))
    joints = c.stripes(c.x, 0.66, 0.2, c.uniform("brick", 0, 1))
    c.paint(union(courses, joints), "gray")


def _kitchen(c: Canvas) -> None:
    columns = c.stripes(c.x, 0.5, center=c.uniform("column shift", 0, 1))
    rows = c.stripes(c.y, 0.5, center=c.uniform("row shift", 0, 1))
    c.paint(union(overlap(columns, rows), -union(columns, rows)), "pink", spread=0.05)


def _playroom(c: Canvas) -> None:
    c.paint(c.stripes(c.x, 0.45, 0.2, c.uniform("plank", 0, 1)), "brown", spread=0.05)


WORLDS: dict[str, tuple[str, Callable[[Canvas], None]]] = {
    "sea": ("blue", _sea),
    "meadow": ("grass", _meadow),
    "space": ("night", _space),
    "street": ("slate", _street),
    "kitchen": ("cream", _kitchen),
    "playroom": ("tan", _playroom),
}
"""Each super-class with the color and the texture of its background."""
