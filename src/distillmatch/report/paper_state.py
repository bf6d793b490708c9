"""The state of reproduction as the README shows it: a table and one figure, made from a ledger."""

from pathlib import Path

from distillmatch.errors import ConfigError, explain_disk_errors
from distillmatch.files import write_atomically
from distillmatch.report.paper_agreement import agreement_file
from distillmatch.report.paper_page import lead
from distillmatch.report.paper_tables import Paper, Reproduced

BEGIN = "<!-- reproduction: made by distillmatch report --readme -->"
END = "<!-- reproduction: end -->"
FIGURE = Path("docs") / "reproduction.svg"


def state(paper: Paper) -> str:
    """Return the table and the line that shows the figure, as Markdown."""
    rows = [_row(one) for one in paper.reproduced]
    return "\n".join(
        [
            lead(paper),
            "",
            "| | cells run | figures within 2 σ | beyond | not judged | not yet run |",
            "|---|---:|---:|---:|---:|---:|",
            *rows,
            "",
            f"![Reproduced against published figures]({FIGURE.as_posix()})",
            "",
            "σ is the published deviation over seeds; a figure without one is not judged. "
            "Tables share runs, and each counts them.",
        ]
    )


def readme_with(text: str, paper: Paper, where: Path) -> str:
    """Return a README with the part between its two marks made anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"{where}: expected the lines '{BEGIN}' and '{END}', found no such part")
    return f"{before}{BEGIN}\n{state(paper)}\n{END}{after}"


def update_readme(readme: Path, paper: Paper) -> None:
    """Write the state into a README, and its figure beside it."""
    with explain_disk_errors("reading it", readme):
        text = readme.read_text(encoding="utf-8")
    new = readme_with(text, paper, readme)
    write_atomically(readme.parent / FIGURE, agreement_file(paper), "drawing the state")
    write_atomically(readme, new, "writing the state")


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
