"""The page that the demo ends in: what was run, the figures, and the pictures."""

from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from distillmatch.files import write_atomically
from distillmatch.report.comparison import NAMES, with_omega


def write_demo_page(results: list[dict[str, Any]], folder: Path) -> Path:
    """Write `index.html` beside the pictures and results of a demo, and return its path."""
    ordered = sorted(with_omega(results), key=lambda result: -result["metrics"]["A_N"])
    first = ordered[0]
    page = folder / "index.html"
    template = (files("distillmatch.report") / "demo.html").read_text(encoding="utf-8")
    text = Template(template).substitute(
        tasks=len(first["task_sizes"]),
        seed=first["seed"],
        network=escape(first["config"]["network"]),
        epochs=first["config"]["epochs"],
        rows="\n".join(_row(result) for result in ordered),
        files=", ".join(
            f'<a href="{method}/result.json">{method}/result.json</a>'
            for method in (escape(result["method"]) for result in ordered)
        ),
    )
    write_atomically(page, text, "writing the page")
    return page


def _row(result: dict[str, Any]) -> str:
    metrics = result["metrics"]
    figures = (metrics["A_N"], metrics["omega"], metrics["bwt"], metrics["fgt"])
    cells = [
        escape(NAMES.get(result["method"], result["method"])),
        *("-" if figure is None else f"{figure:.1f}" for figure in figures),
        f"{result['memory']['stored_images']:,}",
        f"{result['seconds']['total']:.0f}",
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
