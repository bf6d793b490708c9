"""The state of reproduction as the README shows it: tables and one figure, made from a ledger."""

from pathlib import Path

from distillmatch.errors import ConfigError, explain_disk_errors
from distillmatch.files import write_atomically
from distillmatch.report.paper_agreement import agreement_file
from distillmatch.report.paper_page import lead
from distillmatch.report.paper_tables import VERDICTS, Paper, Record, Reproduced

BEGIN = "<!-- reproduction: made by distillmatch report --readme -->"
END = "<!-- reproduction: end -->"
FIGURE = Path("docs") / "reproduction.svg"
MAIN_TABLE, MAIN_COLUMN = "table-2a", "10 tasks"
"""The paper's first setting, which the README shows in figures."""


def state(paper: Paper) -> str:
    """Return the table and the line that shows the figure, as Markdown."""
    rows = [_row(one) for one in paper.of_paper]
    return "\n".join(
        [
            lead(paper),
            "",
            *_main_figures(paper),
            "| | cells run | figures within 2 σ | beyond | not judged | not yet run |",
            "|---|---:|---:|---:|---:|---:|",
            *rows,
            "",
            f"![Reproduced against published figures]({FIGURE.as_posix()})",
            "",
            "● within two published deviations σ, ▲ higher, ▼ lower, ◇ published without a "
            "deviation and so not judged. Tables share runs, and each counts them.",
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
    """Return the main setting's figures: published, and here with the number of seeds."""
    one = next((one for one in paper.reproduced if one.experiment.name == MAIN_TABLE), None)
    if one is None:
        return []
    records = [record for record in one.records if record.cell.column == MAIN_COLUMN]
    return [
        f"{one.experiment.title}, {MAIN_COLUMN}, in percent:",
        "",
        "| | A_N published | here | Ω published | here | seeds |",
        "|---|---:|---:|---:|---:|---:|",
        *(_figures(record) for record in records),
        "",
    ]


def _figures(record: Record) -> str:
    cells = []
    for entry in record.entries:
        published = entry.published
        cells.append("–" if published is None else _spread(published.mean, published.deviation))
        mean, mark = entry.mean, VERDICTS[entry.verdict][0]
        cells.append("–" if mean is None else f"{_spread(mean, entry.deviation)} {mark}")
    return f"| {record.cell.row} | {' | '.join(cells)} | {len(record.results)} |"


def _spread(mean: float, deviation: float | None) -> str:
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


def _row(one: Reproduced) -> str:
    counts = [
        one.counted("within"),
        one.counted("above", "below"),
        one.counted("unjudged"),
        one.counted("open"),
    ]
    shown = " | ".join(str(count) if count else "–" for count in counts)
    cells = f"{one.cells_run} of {len(one.records)}"
    return f"| {one.experiment.name} | {cells} | {shown} |"
