"""The report beside its own readings: what was run with those of the authors' release."""

import csv
import re
from io import StringIO
from pathlib import Path

import pytest
from made_up import made_up_result

from distillmatch.config import RunConfig
from distillmatch.report.paper_page import RELEASE_KEY, page
from distillmatch.report.paper_report import paper_of
from distillmatch.report.paper_state import state
from distillmatch.report.paper_tables import Paper
from distillmatch.report.paper_text import latex, markdown, tidy_csv

DM = RunConfig(method="dm", source="cifar100", tasks=10)
GD = DM.replace(method="gd")


def by_release(config: RunConfig) -> RunConfig:
    return RunConfig(**config.model_dump(include={"method", "source", "tasks"}), preset="release")


OURS = made_up_result(DM)
RELEASE = [made_up_result(by_release(config)) for config in (DM, GD)]


def accuracy(result: dict[str, dict[str, float]]) -> str:
    return f"{result['metrics']['A_N']:.1f}"


@pytest.fixture(name="paper")
def paper_fixture() -> Paper:
    return paper_of([OURS, *RELEASE], ["table-2a"])


@pytest.fixture(name="without")
def without_fixture() -> Paper:
    return paper_of([OURS], ["table-2a"])


def cells_of(text: str) -> list[str]:
    return re.findall(r"<td.*?</td>", text, re.DOTALL)


def test_the_page_says_both_in_one_cell_and_what_that_means(paper: Paper, without: Paper) -> None:
    text = page(paper, [])
    both = [cell for cell in cells_of(text) if 'class="beside"' in cell]
    assert len(both) == 2, "A_N of DM and GD; there is no bound for Ω"
    assert f'"here">{accuracy(OURS)}<' in both[1] and f"release {accuracy(RELEASE[0])} " in both[1]
    assert "not yet run" in both[0] and f"release {accuracy(RELEASE[1])} " in both[0]
    assert RELEASE_KEY in text
    assert "release" not in "".join(cells_of(page(without, [])))
    assert RELEASE_KEY not in page(without, [])


def test_what_stands_beside_is_no_other_run_and_counts_for_no_state(
    paper: Paper, without: Paper
) -> None:
    assert not paper.others
    assert [len(gathered.results) for gathered in (paper, without)] == [3, 1]
    for verdict in ("within", "above", "below", "open"):
        assert paper.reproduced[0].counted(verdict) == without.reproduced[0].counted(verdict)


def test_markdown_has_a_column_more(paper: Paper, without: Paper) -> None:
    line = next(line for line in markdown(paper).splitlines() if "| DM | 10 tasks | A_N" in line)
    assert re.search(rf"\| {accuracy(RELEASE[0])} [●▲▼] \|$", line)
    assert "release" not in markdown(without)


def test_csv_has_each_line_of_the_table_twice(paper: Paper, without: Paper) -> None:
    rows = list(csv.DictReader(StringIO(tidy_csv(paper))))
    alone = list(csv.DictReader(StringIO(tidy_csv(without))))
    assert [row for row in rows if row["readings"] == "protocol"] == alone
    assert len(rows) == 2 * len(alone)
    found = {
        row["method"]: float(row["mean"])
        for row in rows
        if row["readings"] == "release" and row["metric"] == "A_N" and row["seeds"] == "1"
    }
    assert found == {
        result["method"]: pytest.approx(result["metrics"]["A_N"], rel=1e-4) for result in RELEASE
    }


def test_latex_has_a_third_figure_where_there_are_any(paper: Paper, without: Paper) -> None:
    text = latex(paper)
    assert "paper & here & release & paper & here & release" in text
    row = next(line for line in text.splitlines() if line.startswith("DM & "))
    columns = re.search(r"\\begin\{tabular\}\{l(r+)\}", text)
    assert columns is not None and row.count("&") == len(columns[1]) == 3 * 3 * 2
    cells = row.removesuffix(r"\\").split(" & ")
    assert accuracy(OURS) in cells[8] and accuracy(RELEASE[0]) in cells[9], "10 tasks are second"
    assert "release &" not in latex(without)


def test_the_readme_shows_both_and_counts_them_apart(paper: Paper, without: Paper) -> None:
    lines = state(paper).splitlines()
    (figures,) = (line for line in lines if line.startswith("| DM |"))
    assert figures.endswith("| 1, 1 |"), "a seed of each"
    assert figures.index(f"| {accuracy(OURS)} ") < figures.index(f"| {accuracy(RELEASE[0])} ")
    (counts,) = (line for line in lines if line.startswith("| table-2a |"))
    assert counts.startswith("| table-2a | 1 of 18 |") and counts.split(" | ")[6] == "2"
    assert "| release’s readings |" not in state(without)
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert widths == {9, 10}


def test_an_experiment_that_has_these_readings_itself_says_them_once(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "title: own\ncommon: {source: cifar100, tasks: 10, preset: release}\n"
        "columns: {all: {}}\nrows: {DM: {method: dm}}\n"
    )
    paper = paper_of(RELEASE[:1], [str(file)])
    text = page(paper, [])
    assert f'"here">{accuracy(RELEASE[0])}<' in text
    assert 'class="beside"' not in text and RELEASE_KEY not in text
    assert "release’s" not in markdown(paper)
