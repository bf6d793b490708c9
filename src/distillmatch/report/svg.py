"""Figures as SVG text: lines over tasks, in colors that have names.

Colors are CSS variables, so that one figure reads in light and dark and on paper; `STYLE` gives
them their values, in the page and in a file of its own alike. Whatever belongs to one method is a
group that carries its name, so that the method can be switched off.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from distillmatch.report.comparison import FALLBACK, STYLES

WIDTH = 360
LEFT, RIGHT, TOP, PLOT_HEIGHT = 44, 14, 62, 190
LINE_HEIGHT = 19
LEGEND_LETTERS = 34

# After Okabe and Ito, each with a lighter twin for dark pages: variable, name, light, dark.
COLORS = {
    "#000000": ("ink", "black or white", "#1b1f24", "#f0f3f6"),
    "#D55E00": ("vermilion", "vermilion", "#D55E00", "#ff8a47"),
    "#0072B2": ("blue", "blue", "#0072B2", "#4fa8e6"),
    "#CC79A7": ("pink", "pink", "#c2679a", "#eaa0c8"),
    "#009E73": ("green", "green", "#008a64", "#33c99c"),
    "#777777": ("gray", "gray", "#6e7681", "#9aa4af"),
    "#56B4E9": ("sky", "sky blue", "#3d9fd6", "#a5dcff"),
    "#E69F00": ("orange", "orange", "#c98a00", "#ffc44d"),
}
SHAPES = {
    "s": "square",
    "o": "circle",
    "^": "triangle",
    "D": "diamond",
    "v": "triangle down",
    "x": "cross",
    "P": "plus",
    "*": "star",
}
DASHES = {"-": "", "--": "6 4", ":": "2 4", "-.": "7 3 2 3"}


LIGHT = " ".join(f"--{color[0]}: {color[2]};" for color in COLORS.values())
LIGHT += " --paper: #ffffff; --muted: #59636e; --rule: #d1d9e0; --page: #f6f8fa;"
DARK = " ".join(f"--{color[0]}: {color[3]};" for color in COLORS.values())
DARK += " --paper: #161b22; --muted: #a3adb8; --rule: #39424c; --page: #0d1117;"

STYLE = f"""
.plot {{ {LIGHT} color: var(--ink); }}
@media (prefers-color-scheme: dark) {{ .plot {{ {DARK} }} }}
@media print {{ .plot {{ {LIGHT} }} }}
.plot text {{ font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); }}
.plot .title {{ font-size: 14px; font-weight: 600; }}
.plot .small {{ font-size: 11px; fill: var(--muted); }}
.plot .rule {{ stroke: var(--rule); stroke-width: 1; fill: none; }}
.plot .axis {{ stroke: var(--muted); stroke-width: 1; fill: none; }}
.plot .line {{ fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }}
.plot .band {{ fill: currentColor; opacity: .16; stroke: none; }}
.plot .mark {{ fill: currentColor; stroke: currentColor; stroke-width: 1.6; }}
.plot .bar {{ stroke: currentColor; stroke-width: 1.4; }}
.plot .ground {{ fill: var(--paper); }}
"""
STYLE += "\n".join(
    f".plot .{color[0]} {{ color: var(--{color[0]}); }}" for color in COLORS.values()
)


@dataclass(frozen=True)
class Look:
    """The color, the marker and the dashes of one line."""

    color: str
    marker: str
    dashes: str

    @property
    def name(self) -> str:
        """The color and the marker in words."""
        color = next(c[1] for c in COLORS.values() if c[0] == self.color)
        return f"{color}, {SHAPES[self.marker]}"


@dataclass(frozen=True)
class Series:
    """One line of a figure; a point may have the lowest and the highest of its seeds.

    It looks as its method's lines do, or as those of another method that `look` names.
    """

    name: str
    method: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[tuple[float, float]] = ()
    look: str = ""


def looks(methods: Sequence[str]) -> list[Look]:
    """Give each line its method's look, and further lines of a method one that is still free."""
    # Looks of methods that most figures have come last, so that they keep their meaning.
    every = [FALLBACK, *reversed(STYLES.values())]
    wanted = [STYLES.get(method, FALLBACK) for method in methods]
    free = [style for style in every if style not in wanted]
    taken: set[tuple[str, str, str]] = set()
    given = []
    for number, style in enumerate(wanted):
        color, marker, line = style
        if style in taken and free:
            color, marker, line = free.pop(0)
        elif style in taken:
            color, marker, _ = every[number % len(every)]
            line = (":", "-.")[number // len(every) % 2]
        taken.add((color, marker, line))
        given.append(Look(COLORS[color][0], marker, DASHES[line]))
    return given


class Axes:
    """The rectangle of a figure in which values have places."""

    def __init__(
        self, x: tuple[float, float], y: tuple[float, float], top: float = TOP, left: float = LEFT
    ) -> None:
        self.x_range, self.y_range = x, y
        self.left, self.right = left, WIDTH - RIGHT
        self.top, self.bottom = top, top + PLOT_HEIGHT

    def x(self, value: float) -> float:
        """Return how far from the left a value lies."""
        low, high = self.x_range
        return self.left + (value - low) / ((high - low) or 1) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return how far from the top a value lies."""
        low, high = self.y_range
        return self.bottom - (value - low) / ((high - low) or 1) * (self.bottom - self.top)

    def drawn(self, x_label: str, y_label: str, x_ticks: Sequence[float]) -> str:
        """Return the grid, the ticks and the labels."""
        parts = []
        for tick in ticks(*self.y_range):
            y = self.y(tick)
            parts.append(f'<path class="rule" d="M{self.left} {y:.1f}H{self.right}"/>')
            parts.append(words(self.left - 6, y + 4, f"{tick:g}", "small", "end"))
        for tick in x_ticks:
            parts.append(words(self.x(tick), self.bottom + 16, f"{tick:g}", "small", "middle"))
        parts.append(f'<path class="axis" d="M{self.left} {self.bottom}H{self.right}"/>')
        middle = (self.left + self.right) / 2
        parts.append(words(middle, self.bottom + 33, x_label, "small", "middle"))
        parts.append(words(self.left - 30, self.top - 9, y_label, "small"))
        return "".join(parts)


def line_figure(
    title: str,
    place: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    y_range: tuple[float, float] | None = None,
) -> str:
    """Return lines over tasks, with the spread over seeds and a legend that names the colors."""
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points] + [
        y for one in series for pair in one.spread for y in pair
    ]
    low, high = y_range or padded(min(ys), max(ys))
    axes = Axes((min(xs), max(xs)), (low, high))
    if min(xs) == max(xs):
        axes.x_range = (xs[0] - 1, xs[0] + 1)
    parts = [heading(title, place)]
    parts.append(axes.drawn(x_label, y_label, whole_ticks(min(xs), max(xs))))
    given = looks([one.look or one.method for one in series])
    entries = [(one.method, one.name, look) for one, look in zip(series, given, strict=True)]
    placed, height = legend(entries, axes.bottom + 46)
    for one, look, entry in zip(series, given, placed, strict=True):
        drawn = _line(axes, one, look) + entry
        parts.append(f'<g data-method="{escape(one.method)}" class="{look.color}">{drawn}</g>')
    return svg(
        "".join(parts), axes.bottom + 46 + height, f"{title}, {place}: {y_label} over {x_label}"
    )


def _line(axes: Axes, series: Series, look: Look) -> str:
    places = [(axes.x(x), axes.y(y)) for x, y in series.points]
    parts = []
    if series.spread and any(low != high for low, high in series.spread):
        xs = [place[0] for place in places]
        up = [f"{x:.1f} {axes.y(high):.1f}" for x, (_, high) in zip(xs, series.spread, strict=True)]
        low = [f"{x:.1f} {axes.y(low):.1f}" for x, (low, _) in zip(xs, series.spread, strict=True)]
        parts.append(f'<path class="band" d="M{"L".join([*up, *reversed(low)])}Z"/>')
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dashes = f' stroke-dasharray="{look.dashes}"' if look.dashes else ""
    parts.append(f'<path class="line"{dashes} d="M{path}"/>')
    for (x, y), (value_x, value_y) in zip(places, series.points, strict=True):
        said = f"{series.name}, {value_x:g}: {value_y:.1f}"
        parts.append(marker(x, y, look.marker, said))
    return "".join(parts)


def legend(entries: Sequence[tuple[str, str, Look]], top: float) -> tuple[list[str], float]:
    """Return the entries of a legend, each with its color and marker in words, and its height."""
    longest = max(len(f"{name} ({look.name})") for _, name, look in entries)
    columns = 2 if longest <= 27 else 1
    drawn = []
    for number, (_, name, look) in enumerate(entries):
        x = 16 + (number % columns) * 180
        y = top + number // columns * LINE_HEIGHT + 8
        text = shortened(name, 22 if columns == 2 else LEGEND_LETTERS)
        said = f'{with_indices(text)} <tspan class="small">({look.name})</tspan>'
        drawn.append(marker(x, y - 4, look.marker) + f'<text x="{x + 12}" y="{y}">{said}</text>')
    return drawn, ceil(len(entries) / columns) * LINE_HEIGHT + 8


def marker(x: float, y: float, shape: str, title: str = "", size: float = 3.6) -> str:
    """Return one marker; its title is what a pointer over it shows."""
    r = size
    paths = {
        "s": f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z",
        "o": f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",
        "^": f"M{x:.1f} {y - r:.1f}l{r} {2 * r}h{-2 * r}z",
        "v": f"M{x:.1f} {y + r:.1f}l{r} {-2 * r}h{-2 * r}z",
        "D": f"M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
        "x": f"M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}",
        "P": f"M{x - r - 1:.1f} {y:.1f}h{2 * r + 2}m{-r - 1} {-r - 1}v{2 * r + 2}",
        "*": f"M{x - r:.1f} {y:.1f}h{2 * r}m{-1.5 * r} {-r}l{r} {2 * r}m0 {-2 * r}l{-r} {2 * r}",
    }
    said = f"<title>{escape(title)}</title>" if title else ""
    return f'<path class="mark" d="{paths[shape]}">{said}</path>'


def words(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    named = f' class="{kind}"' if kind else ""
    placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}{placed}>{escape(text)}</text>'


def heading(title: str, place: str) -> str:
    """Return the title of a figure, and below it what it is of."""
    said = with_indices(shortened(title, 42))
    below = words(12, 37, shortened(place, 62), "small")
    return f'<text x="12" y="20" class="title">{said}</text>{below}'


def with_indices(text: str) -> str:
    """Return text in which what follows an underscore is set as an index."""
    lowered = r'<tspan dy="3" font-size="9">\1</tspan><tspan dy="-3">&#8203;</tspan>'
    return re.sub(r"_(\w+)", lowered, escape(text))


def svg(content: str, height: float, label: str, width: float = WIDTH, style: str = "") -> str:
    """Return the whole figure; `style` is put into a figure that is a file of its own."""
    inner = f"<style>{style}</style>" if style else ""
    ground = f'<rect class="ground" width="{width:g}" height="{height:g}" rx="6"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'aria-label="{escape(label)}">{inner}{ground}{content}</svg>'
    )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers that divide the range into about `count` parts."""
    raw = (high - low or 1) / count
    power = 10 ** floor(log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, floor(high / step + 1e-9) + 1)]


def whole_ticks(low: float, high: float) -> list[float]:
    """Return whole numbers along an axis that counts something."""
    return [tick for tick in ticks(low, high, 8) if tick == int(tick)] or [low]


def padded(low: float, high: float) -> tuple[float, float]:
    """Return a range of percentages around the values, ending on multiples of five."""
    top = 5.0 * ceil((high + 1) / 5)
    return max(0.0, 5.0 * floor((low - 1) / 5)), min(100.0, top) if high <= 100 else top


def shortened(text: str, count: int) -> str:
    """Cut text with an ellipsis to at most `count` characters."""
    return text if len(text) <= count else text[: count - 1].rstrip() + "…"
