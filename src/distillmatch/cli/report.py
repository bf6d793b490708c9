"""`distillmatch report`: published beside reproduced, as a page, Markdown, LaTeX and CSV."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from distillmatch.cli.options import add_common
from distillmatch.cli.parser import Commands, Parser, add_command, option
from distillmatch.cli.suite import NAMES, RECIPES, chosen_experiments, ledger_of
from distillmatch.config.base import Place
from distillmatch.config.recipe import RecipeName
from distillmatch.errors import ConfigError
from distillmatch.files import check_writable, write_atomically
from distillmatch.terminal import say

if TYPE_CHECKING:
    from distillmatch.report.comparison import TableModel

BEGIN, END = "<!-- {name}: made by distillmatch report -->", "<!-- {name}: end -->"


def add_parser(commands: Commands) -> Parser:
    """Describe the command."""
    parser = add_command(commands, "report", run)
    option(parser, "names NAME ...", f"{NAMES} (default: the paper's)", nargs="*")
    option(parser, "--out DIR", "folder of the report", Place, Path("report"))
    said = "Markdown files in which to update the tables between the marks"
    option(parser, "--update FILE ...", said, Place)
    add_common(parser, "seeds", "allow_import", "scale", "ledger")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Write a report that compares results with the paper's.

    distillmatch report
    distillmatch report table-2a table-4b --out report
    distillmatch report --update docs/reproduction.md
    distillmatch report --scale quick
    """
    from distillmatch.report.charts import glance, svg_of
    from distillmatch.report.comparison import Results, table_of
    from distillmatch.report.renderers import csv_text, html, latex, markdown

    usual, names, groups = RECIPES[arguments.scale], arguments.names, []
    results = Results(ledger_of(arguments))
    for recipe in sorted(get_args(RecipeName), key=lambda recipe: recipe != usual):
        chosen = chosen_experiments(names, arguments.scale, recipe, arguments.allow_import)
        models = [
            table_of(experiment, results, arguments.seeds or ())
            for experiment in chosen
            if names or not experiment.beyond_paper
        ]
        if recipe == usual or any(row.runs for model in models for row in model.rows):
            groups.append((recipe, models))
    out: Path = arguments.out
    check_writable(out, "writing the report")
    small = arguments.scale == "quick"
    heading = "The paper's experiments, made small" if small else "The paper, reproduced"
    written = {
        "index.html": html(groups, heading),
        "tables.md": markdown(groups),
        "tables.tex": latex(groups),
        "figures.csv": csv_text(groups),
    }
    if any(model.is_compared for model in groups[0][1]):
        written["glance.svg"] = svg_of(glance(groups[0][1]))
    for name, text in written.items():
        write_atomically(out / name, text, "writing the report")
    say(f"report: {out / 'index.html'}")
    for file in arguments.update:
        update(file, groups[0][1])
        say(f"updated: {file}")


def update(file: Path, models: "Sequence[TableModel]") -> None:
    """Replace what stands between marks in a file: of headline, legend, summary, experiments."""
    from distillmatch.report.renderers import LEGEND, headline, markdown_summary, markdown_table

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: expected a Markdown file, {error}") from None
    parts = {"headline": headline(models, "paper") + "\n", "legend": LEGEND + "\n"}
    parts["summary"] = markdown_summary(models)
    parts |= {model.experiment.name: markdown_table(model.text()) for model in models}
    found = False
    for name, made in parts.items():
        begin, end = BEGIN.format(name=name), END.format(name=name)
        before, mark, rest = text.partition(begin)
        _, close, after = rest.partition(end)
        if mark and close:
            text, found = f"{before}{begin}\n\n{made}\n{end}{after}", True
    if not found:
        mark = BEGIN.format(name="table-2a")
        raise ConfigError(f"{file}: expected marks such as '{mark}' to write between, found none")
    write_atomically(file, text, "updating the tables")
