"""Why figures differ: every one beyond two published deviations has a reason in the ledger."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from test_reproduction_beyond import made

from distillmatch.cli import main
from distillmatch.errors import ConfigError
from distillmatch.report.paper_report import paper_of
from distillmatch.report.paper_tables import read_results
from distillmatch.report.reproduction_beyond import Beyond, beyond_part, figures_beyond
from distillmatch.report.reproduction_reasons import Given, read_reasons, reason_for

ROOT = Path(__file__).parent.parent
BY_OTHER_RUNS = ("last-classes", "short-batches")
"""Reasons that are shown by the runs' own figures, or by one reading of the release alone."""
HOLDS = {
    "within": ("shown", "partly"),
    "nearer": ("partly", "open"),
    "no nearer": ("open",),
    "not yet run": ("likely", "open"),
}
"""How sure a reason may be said to be, by what the release's readings make of the figure."""


def reasons_of_the_ledger() -> list[tuple[Beyond, Given | None]]:
    reasons = read_reasons(ROOT / "results" / "reasons.yaml")
    paper = paper_of(read_results([ROOT / "results"]))
    return [
        (one, reason_for(reasons, one.experiment, one.cell.row, one.cell.column, one.entry.metric))
        for one in figures_beyond(paper)
    ]


def test_every_figure_beyond_two_deviations_has_a_reason_and_every_reason_a_figure() -> None:
    found = reasons_of_the_ledger()
    assert not [f"{one.place} {one.entry.metric}" for one, given in found if given is None]
    used = {given.reason.name for _, given in found if given is not None}
    written = yaml.safe_load((ROOT / "results" / "reasons.yaml").read_text("utf-8"))
    assert used == set(written)


def test_no_reason_is_said_to_be_surer_than_the_runs_make_it() -> None:
    for one, given in reasons_of_the_ledger():
        assert given is not None
        if given.reason.name not in BY_OTHER_RUNS:
            said = f"{one.place} {one.entry.metric}: {given.reason.name}, {given.state}"
            assert given.state in HOLDS[one.answer], said


def write(folder: Path, **reasons: Any) -> Path:
    path = folder / "reasons.yaml"
    path.write_text(yaml.safe_dump(reasons, sort_keys=False), encoding="utf-8")
    return path


def reason(*of: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"says": "So it is.", "see": "there", "of": list(of), **changes}


OF_DM = {"state": "likely", "experiments": ["table-2a"], "rows": ["DM"]}


def test_the_first_reason_that_names_a_figure_counts(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        special=reason({**OF_DM, "state": "open", "columns": ["5 tasks"], "metrics": ["omega"]}),
        usual=reason({**OF_DM, "columns": ["5 tasks"], "state": "shown"}, OF_DM),
        later=reason(OF_DM),
    )
    reasons = read_reasons(path)
    expected = {
        ("DM", "5 tasks", "omega"): ("special", "open"),
        ("DM", "5 tasks", "A_N"): ("usual", "shown"),
        ("DM", "10 tasks", "omega"): ("usual", "likely"),
        ("GD", "5 tasks", "omega"): None,
    }
    for place, answer in expected.items():
        given = reason_for(reasons, "table-2a", *place)
        assert (given and (given.reason.name, given.state)) == answer
    assert reason_for(reasons, "table-2b", "DM", "5 tasks", "omega") is None


def test_the_part_counts_reasons_and_names_one_beside_each_figure(tmp_path: Path) -> None:
    path = write(
        tmp_path, detector=reason({**OF_DM, "state": "partly"}, says="Its head\n  counts.")
    )
    results = [made("dm", 40.0), made("gd", 30.0)]
    text = beyond_part(paper_of(results, ["table-2a"]), read_reasons(path))
    lines = text.replace("\u00a0", " ").splitlines()
    assert "Their reasons: 1 shown by runs for a part of it, 1 without any." in lines
    assert "| [detector](#there) | – | 1 | – | – | Its head counts. |" in lines
    gd, dm = (line for line in lines if line.startswith("| table-2a"))
    assert gd.endswith("| not yet run | – |")
    assert dm.endswith("| not yet run | detector, partly |")


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (reason({**OF_DM, "rows": ["DX"]}), "unknown row 'DX'; expected one of Base, DM, "),
        (reason({**OF_DM, "columns": ["6 tasks"]}), "unknown column '6 tasks'; expected one of"),
        (reason({**OF_DM, "metrics": ["accuracy"]}), "unknown metric 'accuracy'; expected one of"),
        (reason({**OF_DM, "experiments": ["table-9"]}), "unknown experiment 'table-9'"),
        (reason({**OF_DM, "state": "sure"}), "state must be one of 'shown', 'partly', "),
        (reason({"state": "open"}), "experiments"),
        ({"says": "So it is.", "of": []}, "see"),
        (["So it is."], "expected a mapping of keys to values, found a list"),
    ],
)
def test_what_is_wrong_with_a_reason_is_said_in_a_sentence(
    written: Any, sentence: str, tmp_path: Path
) -> None:
    path = write(tmp_path, detector=written)
    with pytest.raises(ConfigError) as refusal:
        read_reasons(path)
    assert str(refusal.value).startswith(f"{path}: detector: ")
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_ledger_with_wrong_reasons_leaves_the_page_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reasons.yaml").write_text("- no mapping\n", encoding="utf-8")
    result = next((ROOT / "results").glob("*-base-seed1.json"))
    (tmp_path / result.name).write_bytes(result.read_bytes())
    page = tmp_path / "page.md"
    page.write_text("as it was", encoding="utf-8")
    assert main(["report", "--ledger", str(tmp_path), "--reproduction", str(page)]) == 2
    assert "expected reasons by their names" in capsys.readouterr().err
    assert page.read_text("utf-8") == "as it was"
