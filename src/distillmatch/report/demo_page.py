"""The page that the demo ends in: what was run, the figures, and the pictures."""

from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from distillmatch.files import write_atomically
from distillmatch.report.comparison import NAMES, metrics_shown, stored_shown


def write_demo_page(results: list[dict[str, Any]], folder: Path) -> Path:
    """Write `index.html` beside the pictures and results of a demo, and return its path."""
    first = results[0]
    page = folder / "index.html"
    template = (files("distillmatch.report") / "demo.html").read_text(encoding="utf-8")
    text = Template(template).substitute(
        tasks=len(first["task_sizes"]),
        seed=first["seed"],
        network=escape(first["config"]["network"]),
        epochs=first["config"]["epochs"],
        rows="\n".join(_row(result) for result in results),
        files=", ".join(
            f'<a href="{method}/result.json">{method}/result.json</a>'
            for method in (escape(result["method"]) for result in results)
        ),
    )
    write_atomically(page, text, "writing the page")
    return page


def _row(result: dict[str, Any]) -> str:
    cells = [
        escape(NAMES.get(result["method"], result["method"])),
        *("-" if figure is None else f"{figure:.1f}" for figure in metrics_shown(result).values()),
        stored_shown(result),
        f"{result['seconds']['total']:.0f}",
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
