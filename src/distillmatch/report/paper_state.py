"""The state of reproduction as the README shows it: tables and one figure, made from a ledger."""

from pathlib import Path

from distillmatch.errors import ConfigError, explain_disk_errors
from distillmatch.files import write_atomically
from distillmatch.report.paper_agreement import agreement_file
from distillmatch.report.paper_page import lead
from distillmatch.report.paper_tables import (
    METRICS,
    Paper,
    Record,
    Reproduced,
    shown_here,
    shown_published,
)
from distillmatch.report.paper_text import RELEASE, markdown_row

BEGIN = "<!-- reproduction: made by distillmatch report --readme -->"
END = "<!-- reproduction: end -->"
FIGURE = Path("docs") / "reproduction.svg"
MAIN_TABLE, MAIN_COLUMN = "table-2a", "10 tasks"
"""The paper's first setting."""
SHOWN = ((MAIN_TABLE, MAIN_COLUMN), ("table-2c", "Positive"))
"""The first settings without and with a coreset, which the README shows in figures."""


def state(paper: Paper) -> str:
    """Return the table and the line that shows the figure, as Markdown."""
    rows = [_row(one, paper.beside(one)) for one in paper.of_paper]
    return "\n".join(
        [
            lead(paper),
            "",
            *_main_figures(paper),
            "| | cells run | figures within 2 σ | beyond | not judged | not yet run "
            f"| {RELEASE}: cells run | within | beyond |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
            *rows,
            "",
            f"![Reproduced against published figures]({FIGURE.as_posix()})",
            "",
            "● within two published deviations σ, ▲ higher, ▼ lower, ◇ published without a "
            "deviation and so not judged. Tables share runs, and each counts them. Release’s "
            "readings: `--preset release`.",
        ]
    )


def readme_with(text: str, paper: Paper, where: Path) -> str:
    """Return a README with the part between its two marks made anew."""
    return replaced_part(text, (BEGIN, END), state(paper), where)


def replaced_part(text: str, marks: tuple[str, str], content: str, where: Path) -> str:
    """Return a document with what stands between two marks made anew; the rest is its author's."""
    before, begin, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        raise ConfigError(
            f"{where}: expected the lines '{marks[0]}' and '{marks[1]}', found no such part"
        )
    return f"{before}{begin}\n{content}\n{end}{after}"


def update_readme(readme: Path, paper: Paper) -> None:
    """Write the state into a README, and its figure beside it."""
    with explain_disk_errors("reading it", readme):
        text = readme.read_text(encoding="utf-8")
    new = readme_with(text, paper, readme)
    write_atomically(readme.parent / FIGURE, agreement_file(paper), "drawing the state")
    write_atomically(readme, new, "writing the state")


def _main_figures(paper: Paper) -> list[str]:
    """Return the main settings' figures: published, here, and by the release's readings."""
    known = {one.experiment.name: one for one in paper.reproduced}
    lines = []
    for name, column in SHOWN:
        if name not in known:
            continue
        one, beside = known[name], paper.beside(known[name])
        heads = [""]
        for metric in one.experiment.metrics:
            heads += [f"{METRICS[metric]} published", "here"]
            heads += [] if beside is None else [RELEASE]
        heads.append("seeds" if beside is None else "seeds, release’s")
        lines += [f"{one.experiment.title}, {column}, in percent:", "", markdown_row(heads)]
        lines.append(markdown_row(["---", *["---:"] * (len(heads) - 1)]).replace(" ", ""))
        for record in one.records:
            if record.cell.column == column:
                other = None if beside is None else beside.record(record.cell.row, column)
                lines.append(_figures(record, other))
        lines.append("")
    return lines


def _figures(record: Record, other: Record | None) -> str:
    cells = [record.cell.row]
    for number, entry in enumerate(record.entries):
        cells.append(shown_published(entry))
        both = (of.entries[number] for of in (record, other) if of is not None)
        cells += [shown_here(one, mark=True) for one in both]
    seeds = ", ".join(str(len(of.results)) for of in (record, other) if of is not None)
    return markdown_row([*cells, seeds])


def _row(one: Reproduced, beside: Reproduced | None) -> str:
    others = (0, 0, 0) if beside is None else (beside.cells_run, *beside.counts[:2])
    cells = [one.experiment.name, f"{one.cells_run} of {len(one.records)}"]
    return markdown_row([*cells, *map(_count, (*one.counts, *others))])


def _count(number: int) -> str:
    return str(number) if number else "–"
