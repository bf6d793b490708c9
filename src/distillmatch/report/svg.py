"""Figures as SVG text: lines over tasks, in colors that have names.

Colors are CSS variables, so that one figure reads in light and dark and on paper; `STYLE` gives
them their values, in the page and in a file of its own alike.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH = 360
LEFT, RIGHT, TOP, PLOT_HEIGHT = 44, 14, 62, 190
LINE_HEIGHT = 19

# After Okabe and Ito, apart for color-blind readers, each with a lighter twin for dark pages.
COLORS = {
    "ink": ("#1b1f24", "#f0f3f6"),
    "vermilion": ("#D55E00", "#ff8a47"),
    "blue": ("#0072B2", "#4fa8e6"),
    "green": ("#008a64", "#33c99c"),
    "gray": ("#6e7681", "#9aa4af"),
    "muted": ("#59636e", "#a3adb8"),
    "paper": ("#ffffff", "#161b22"),
    "rule": ("#d1d9e0", "#39424c"),
    "page": ("#f6f8fa", "#0d1117"),
}
LIGHT, DARK = (
    " ".join(f"--{name}: {pair[number]};" for name, pair in COLORS.items()) for number in (0, 1)
)
LOOKS = {
    "offline": ("ink", "square", "6 4"),
    "dm": ("vermilion", "circle", ""),
    "gd": ("blue", "triangle", ""),
    "base": ("gray", "cross", ""),
    "e2e": ("green", "triangle down", ""),
}
"""The color, the marker and the dashes of a method's line."""

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
.plot .mark {{ fill: currentColor; stroke: currentColor; stroke-width: 1.6; }}
.plot .ground {{ fill: var(--paper); }}
"""
STYLE += "\n".join(
    f".plot .{name} {{ color: var(--{name}); }}" for name, _, _ in sorted(LOOKS.values())
)


@dataclass(frozen=True)
class Series:
    """One line of a figure, which looks as the lines of the method `look` do."""

    name: str
    look: str
    points: Sequence[tuple[float, float]]


def line_figure(
    title: str,
    place: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    highest: float,
) -> str:
    """Return lines over tasks, from 0 to `highest`, and a legend that names the colors."""
    xs = [x for one in series for x, _ in one.points]
    first, last = (min(xs), max(xs)) if min(xs) < max(xs) else (xs[0] - 1, xs[0] + 1)
    right, bottom = WIDTH - RIGHT, TOP + PLOT_HEIGHT

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - first) / (last - first) * (right - LEFT)
        return across, bottom - y / highest * PLOT_HEIGHT

    parts = [
        f'<text x="12" y="20" class="title">{with_indices(shortened(title, 42))}</text>',
        words(12, 37, shortened(place, 62), "small"),
        words(LEFT - 30, TOP - 9, y_label, "small"),
        words((LEFT + right) / 2, bottom + 33, x_label, "small", "middle"),
    ]
    for tick in ticks(0, highest):
        _, y = at(first, tick)
        parts.append(f'<path class="rule" d="M{LEFT} {y:.1f}H{right}"/>')
        parts.append(words(LEFT - 6, y + 4, f"{tick:g}", "small", "end"))
    for tick in [tick for tick in ticks(min(xs), max(xs), 8) if tick == int(tick)] or [xs[0]]:
        parts.append(words(at(tick, 0)[0], bottom + 16, f"{tick:g}", "small", "middle"))
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    spoken = [", ".join(LOOKS[one.look][:2]).replace("ink", "black or white") for one in series]
    longest = max(len(f"{one.name} ({look})") for one, look in zip(series, spoken, strict=True))
    columns = 2 if longest <= 27 else 1
    for number, one in enumerate(series):
        color, shape, dashes = LOOKS[one.look]
        places = [at(x, y) for x, y in one.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(f'<g class="{color}"><path class="line"{dashed} d="M{path}"/>')
        for place_of, (x, y) in zip(places, one.points, strict=True):
            parts.append(marker(*place_of, shape, f"{one.name}, {x:g}: {y:.1f}"))
        x, y = 16 + number % columns * 180, bottom + 54 + number // columns * LINE_HEIGHT
        name = with_indices(shortened(one.name, 22 if columns == 2 else 34))
        said = f'{name} <tspan class="small">({spoken[number]})</tspan>'
        parts.append(marker(x, y - 4, shape) + f'<text x="{x + 12}" y="{y}">{said}</text></g>')
    height = bottom + 54 + ceil(len(series) / columns) * LINE_HEIGHT
    return svg("".join(parts), height, f"{title}, {place}: {y_label} over {x_label}")


def marker(x: float, y: float, shape: str, title: str = "") -> str:
    """Return one marker; its title is what a pointer over it shows."""
    r = 3.6
    path = {
        "square": f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z",
        "circle": f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",
        "triangle": f"M{x:.1f} {y - r:.1f}l{r} {2 * r}h{-2 * r}z",
        "triangle down": f"M{x:.1f} {y + r:.1f}l{r} {-2 * r}h{-2 * r}z",
        "cross": f"M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}",
    }[shape]
    said = f"<title>{escape(title)}</title>" if title else ""
    return f'<path class="mark" d="{path}">{said}</path>'


def words(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    named = f' class="{kind}"' if kind else ""
    placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}{placed}>{escape(text)}</text>'


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


def shortened(text: str, count: int) -> str:
    """Cut text with an ellipsis to at most `count` characters."""
    return text if len(text) <= count else text[: count - 1].rstrip() + "…"
