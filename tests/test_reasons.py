"""Why figures differ: every one beyond two published deviations has a reason in the ledger."""

import csv
import json
import re
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from made_up import made_up_result
from test_reproduction_beyond import made

from distillmatch.cli import main
from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.metrics import forgetting
from distillmatch.report.paper_page import page
from distillmatch.report.paper_reasons import read_reasons, reason_for, with_reasons
from distillmatch.report.paper_report import paper_of
from distillmatch.report.paper_tables import read_results
from distillmatch.report.paper_text import markdown, tidy_csv
from distillmatch.report.reproduction_beyond import (
    Answer,
    Beyond,
    beyond_part,
    figures_beyond,
)

ROOT = Path(__file__).parent.parent
BY_OWN_FIGURES = ("last-classes", "order-of-tasks")
"""Reasons that are shown by the runs' own figures."""
HOLDS: dict[Answer, tuple[str, ...]] = {
    "within": ("shown", "partly"),
    "nearer": ("partly", "open"),
    "no nearer": ("open",),
    "not yet run": ("likely", "open"),
}
"""How sure a reason may be said to be, by the best that runs with other readings make of it."""


@cache
def figures_of_the_ledger() -> tuple[Beyond, ...]:
    reasons = read_reasons(ROOT / "results" / "reasons.yaml")
    paper = paper_of(read_results([ROOT / "results"]))
    return tuple(figures_beyond(with_reasons(paper, reasons)))


def test_every_figure_beyond_two_deviations_has_a_reason_and_every_reason_a_figure() -> None:
    found = figures_of_the_ledger()
    assert not [f"{one.place} {one.entry.metric}" for one in found if one.entry.why is None]
    used = {one.entry.why.reason.name for one in found if one.entry.why is not None}
    written = yaml.safe_load((ROOT / "results" / "reasons.yaml").read_text("utf-8"))
    assert used == set(written)


def test_every_reason_points_to_a_heading_of_the_page() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
    reasons = read_reasons(ROOT / "results" / "reasons.yaml")
    assert not [one.see for one in reasons if one.see not in anchors]


def test_no_reason_is_said_to_be_surer_than_the_runs_make_it() -> None:
    for one in figures_of_the_ledger():
        why = one.entry.why
        assert why is not None
        answer = next(a for a in HOLDS if a in (one.answer, one.answer_by_reading))
        if why.reason.name not in BY_OWN_FIGURES:
            assert why.state in HOLDS[answer], f"{one.place} {one.entry.metric}: {why}"


def fgt_in_other_orders(result: dict[str, Any]) -> tuple[float, float]:
    """Mean and deviation of FGT over all orders of the same tasks, if nothing past is kept.

    FGT is then a weighted sum of what is learned of each task, whose variance over all
    permutations is that of the weights times that of the accuracies, times N² / (N - 1).
    """
    learned = np.diagonal(np.array(result["R"], dtype=np.float64))
    count = len(learned)
    weights = [forgetting(np.diag(one), [1] * count) for one in np.eye(count)]
    deviation = np.std(weights) * np.std(learned) * count / (count - 1) ** 0.5
    return float(np.sum(weights) * np.mean(learned)), float(deviation)


@pytest.mark.parametrize(
    ("name", "published", "explained"),
    [
        ("random20-uniform-base", (69.4, 0.5), True),
        ("parent-uniform-e2e", (53.0, 0.1), True),
        ("parent-uniform-dr", (56.6, 0.1), True),
        ("parent-uniform-base", (54.3, 0.8), False),
        ("random10-uniform-base", (56.2, 2.0), False),
        ("random5-uniform-base", (43.8, 2.3), False),
    ],
)
def test_where_the_order_of_tasks_is_said_to_be_the_reason_it_explains_the_difference(
    name: str, published: tuple[float, float], explained: bool
) -> None:
    """The published figure is a mean over three orders; the table on the page is made by hand."""
    path = ROOT / "results" / f"cifar100-{name}-seed1.json"
    mean, deviation = fgt_in_other_orders(json.loads(path.read_text("utf-8")))
    assert (abs(published[0] - mean) <= 2 * deviation / 3**0.5) == explained
    page = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    assert f"| {mean:.1f} ± {deviation:.1f} | {published[0]} ± {published[1]} |" in page


def test_where_deviations_are_said_to_be_small_one_seed_may_differ_as_much() -> None:
    """Two deviations of a difference between one seed and a mean of three, by three of ours."""
    found = [one for one in figures_of_the_ledger() if name_of_reason(one) == "small-deviations"]
    assert found
    for one in found:
        name = f"cifar100-random10-uniform-{one.cell.config.method}"
        files = [ROOT / "results" / f"{name}-seed{seed}.json" for seed in (1, 2, 3)]
        results = [json.loads(file.read_text("utf-8")) for file in files]
        ours = [result["metrics"][one.entry.metric] for result in results]
        most = 2 * float(np.std(ours, ddof=1)) * (1 + 1 / 3) ** 0.5
        assert len(one.entry.values) == 1 and abs(one.entry.difference or 0.0) <= most, one.place


def name_of_reason(one: Beyond) -> str | None:
    return None if one.entry.why is None else one.entry.why.reason.name


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
    paper = with_reasons(paper_of(results, ["table-2a"]), read_reasons(path))
    text = beyond_part(paper)
    lines = text.replace("\u00a0", " ").splitlines()
    assert "Their reasons: 1 shown by runs for a part of it, 1 without any." in lines
    assert "| [detector](#there) | – | 1 | – | – | Its head counts. |" in lines
    gd, dm = (line for line in lines if line.startswith("| table-2a"))
    assert gd.endswith("| not yet run | – | – |")
    assert dm.endswith("| not yet run | detector, partly | – |")


def test_a_reading_that_a_reason_names_is_shown_beside_the_figure_where_it_was_run(
    tmp_path: Path,
) -> None:
    """37.5 ± 0.7 is published of DM; of GD nothing was run with the reading that is named."""
    path = write(
        tmp_path,
        detector=reason(OF_DM, reading={"similarity": "scaled-cosine"}),
        teacher=reason({**OF_DM, "rows": ["GD"]}, reading={"teacher_start": "past"}),
    )
    results = [made("dm", 40.0), made("dm", 38.0, similarity="scaled-cosine"), made("gd", 30.0)]
    paper = with_reasons(paper_of(results, ["table-2a"]), read_reasons(path))
    gd, dm = figures_beyond(paper)
    assert (dm.answer_by_reading, gd.answer_by_reading) == ("within", "not yet run")
    assert dm.by_reading is not None and dm.by_reading.values == (38.0,)
    lines = beyond_part(paper).replace("\u00a0", " ").splitlines()
    said = "Of 2 the reason names a reading; with it: "
    assert f"{said}1 within them, 1 not yet run." in lines
    of_gd, of_dm = (line for line in lines if line.startswith("| table-2a"))
    assert of_gd.endswith("| teacher, likely | – |")
    assert of_dm.endswith("| detector, likely | 38.0 ● |")
    assert ">detector 38.0 <" in page(paper, [])
    rows = list(csv.DictReader(StringIO(tidy_csv(paper))))
    assert {r["by_reading"] for r in rows if r["method"] == "dm"} == {"38", ""}


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (reason({**OF_DM, "rows": ["DX"]}), "unknown row 'DX'; expected one of Base, DM, "),
        (reason({**OF_DM, "columns": ["6 tasks"]}), "unknown column '6 tasks'; expected one of"),
        (reason({**OF_DM, "metrics": ["accuracy"]}), "unknown metric 'accuracy'; expected one of"),
        (reason({**OF_DM, "experiments": ["table-9"]}), "unknown experiment 'table-9'"),
        (reason({**OF_DM, "state": "sure"}), "state must be one of 'shown', 'partly', "),
        (reason({"state": "open"}), "detector: experiments is missing"),
        (reason({"experiments": ["table-2a"]}), "detector: state is missing"),
        ({"says": "So it is.", "of": []}, "detector: see is missing"),
        (["So it is."], "expected a mapping of keys to values, found a list"),
        (reason(OF_DM, reading={"gates": "all"}), "unknown key 'gates' (did you mean 'gate'?)"),
        (reason(OF_DM, reading={"gate": "all"}), "gate must be one of 'detector', "),
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


def test_a_figure_has_its_reason_in_every_table_that_prints_it(tmp_path: Path) -> None:
    path = write(tmp_path, detector=reason({**OF_DM, "experiments": ["table-6"]}))
    results = [made("dm", 40.0), made("base", 8.2)]
    paper = with_reasons(paper_of(results, ["table-2a", "table-3a", "table-6"]), read_reasons(path))
    found = {
        one.experiment.name: [str(e.why) for r in one.records for e in r.entries if e.why]
        for one in paper.reproduced
    }
    assert found == {name: ["detector, likely"] for name in ("table-2a", "table-3a", "table-6")}


def test_reports_name_the_reason_beside_the_figure_and_count_it_once(tmp_path: Path) -> None:
    says = "Its head <counts> & more."
    path = write(tmp_path, detector=reason({**OF_DM, "state": "partly"}, says=says))
    results = [made("dm", 40.0), made("gd", 30.0)]
    paper = with_reasons(paper_of(results, ["table-2a", "table-6"]), read_reasons(path))
    html = page(paper, [])
    assert html.count('title="Its head &lt;counts&gt; &amp; more.">detector, partly</span>') == 2
    section = html.split('<section id="reasons">')[1].split("</section>")[0]
    assert "Reasons: 1 shown by runs for a part of it, 1 without any." in section
    assert '<td data-value="1">1</td>' in section and says not in section
    assert markdown(paper).count("higher: detector, partly |") == 2
    rows = list(csv.DictReader(StringIO(tidy_csv(paper))))
    given = {(r["method"], r["reason"], r["reason_state"]) for r in rows if r["mean"]}
    assert given == {("dm", "detector", "partly"), ("gd", "", "")}
    assert '<section id="reasons">' not in page(paper_of(results, ["table-2a"]), [])


def test_reasons_of_a_ledger_are_not_those_of_other_results(tmp_path: Path) -> None:
    for name in ("ledger", "mine"):
        (tmp_path / name).mkdir()
        result = made_up_result(RunConfig(method="dm", source="cifar100", tasks=10))
        result["metrics"]["A_N"] = 70.0
        (tmp_path / name / "dm.json").write_text(json.dumps(result), encoding="utf-8")
    write(tmp_path / "ledger", detector=reason(OF_DM))
    ledger, mine = str(tmp_path / "ledger"), str(tmp_path / "mine")
    cases = [
        (["--ledger", ledger], True),
        ([ledger], True),
        ([mine, ledger], True),
        ([mine], False),
    ]
    for number, (words, found) in enumerate(cases):
        out = tmp_path / f"out-{number}"
        assert main(["report", *words, "--experiments", "table-2a", "--out", str(out)]) == 0
        assert ("detector, likely" in (out / "report.html").read_text("utf-8")) == found
