"""Tables between marks in Markdown files: replaced by what the ledger has, and nothing else is."""

from pathlib import Path

import pytest
from made_up import made_up_result

from distillmatch.cli.report import update
from distillmatch.errors import ConfigError
from distillmatch.report.cells import Results, table_of
from distillmatch.suite.catalogue import load_experiment
from distillmatch.suite.ledger import Ledger

BEGIN, END = "<!-- {}: made by distillmatch report -->", "<!-- {}: end -->"


def test_marks_are_filled_and_the_rest_is_kept(tmp_path: Path) -> None:
    experiment, ledger = load_experiment("table-2a"), Ledger(tmp_path / "results")
    for cell in experiment.cells:
        if cell.name in ("Base/10 tasks", "DM/10 tasks"):
            result = made_up_result(cell.config.replace(seed=0))
            result["metrics"]["A_N"] = 8.2 if cell.row == "Base" else 50.0
            ledger.add(result)
    page = tmp_path / "page.md"
    marks = "\n".join(f"{BEGIN.format(n)}\nold\n{END.format(n)}" for n in ("summary", "table-2a"))
    page.write_text(f"before\n{marks}\nafter\n", encoding="utf-8")
    model = table_of(experiment, Results(ledger))
    update(page, [model])
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| Base | 8.2 ± 0.1 | 8.2 | yes |" in text
    assert "| DM | 37.5 ± 0.7 | 50.0 | no, higher |" in text
    assert "| GD | 21.4 ± 0.6 | – | not judged |" in text
    update(page, [model])
    assert page.read_text("utf-8") == text


def test_a_file_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="expected marks"):
        update(page, [])
