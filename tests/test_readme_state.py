"""The README's state of reproduction is that of the ledger."""

from pathlib import Path

import pytest
from made_up import made_up_result

from distillmatch.config import RunConfig
from distillmatch.report.paper_agreement import agreement_file
from distillmatch.report.paper_report import paper_of
from distillmatch.report.paper_state import BEGIN, END, FIGURE, readme_with, update_readme
from distillmatch.report.paper_tables import Paper, read_results

ROOT = Path(__file__).parent.parent
STALE = "out of date: run `distillmatch report --readme README.md`"


@pytest.fixture(name="paper", scope="module")
def paper_fixture() -> Paper:
    return paper_of(read_results([ROOT / "results"]))


def test_the_table_of_the_readme_is_up_to_date(paper: Paper) -> None:
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    assert readme_with(text, paper, readme) == text, f"README.md is {STALE}"


def test_the_figure_of_the_readme_is_up_to_date(paper: Paper) -> None:
    assert (ROOT / FIGURE).read_text("utf-8") == agreement_file(paper), f"{FIGURE} is {STALE}"


def test_a_new_result_changes_both(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    config = RunConfig(method="dm", source="cifar100", tasks=10)
    texts = []
    for seeds in ((1,), (1, 2)):
        results = [made_up_result(config.replace(seed=seed)) for seed in seeds]
        update_readme(readme, paper_of(results, ["table-2a"]))
        texts.append((readme.read_text("utf-8"), (tmp_path / FIGURE).read_text("utf-8")))
    assert texts[0][0] != texts[1][0] and texts[0][1] != texts[1][1]
    assert texts[1][0].startswith("before\n") and texts[1][0].endswith("\nafter\n")
    assert "| table-2a | 1 of 18 |" in texts[1][0] and "old" not in texts[1][0]
