"""A whole report: from results to the page and its companions in a folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from distillmatch.config.run import Preset
from distillmatch.errors import ConfigError
from distillmatch.files import write_atomically
from distillmatch.report.comparison import Result
from distillmatch.report.paper_layout import in_order
from distillmatch.report.paper_page import page
from distillmatch.report.paper_streams import stream_pictures
from distillmatch.report.paper_tables import Paper, gather
from distillmatch.report.paper_text import latex, markdown, tidy_csv
from distillmatch.suite.catalogue import (
    Experiment,
    Scale,
    at_scale,
    experiment_names,
    load_experiment,
)


def paper_of(
    results: Sequence[Result], experiments: Sequence[str] = (), scale: Scale = "paper"
) -> Paper:
    """Put results into the paper's experiments, or into those that are named."""
    names = list(dict.fromkeys(experiments)) or experiment_names()

    def loaded(preset: Preset) -> list[Experiment]:
        known = [at_scale(load_experiment(name, preset), scale) for name in names]
        return known if experiments else in_order(known)

    by_release = [one for one in loaded("release") if not one.beyond_paper]
    return gather(loaded("protocol"), results, by_release)


def check_folder(folder: Path) -> None:
    """Refuse to write a report where a file is, before any work is done."""
    for place in (folder, *folder.parents):
        if place.exists():
            if not place.is_dir():
                raise ConfigError(
                    f"{folder}: expected a folder for the report, but {place} is a file"
                )
            return


def write_report(paper: Paper, folder: Path, data: Mapping[str, Path] | None = None) -> Path:
    """Write report.html, report.md, report.tex and report.csv, and return the page's path."""
    check_folder(folder)
    texts = {
        "report.md": markdown(paper),
        "report.tex": latex(paper),
        "report.csv": tidy_csv(paper),
        "report.html": page(paper, stream_pictures(paper.results, data or {})),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text, "writing the report")
    return folder / "report.html"
