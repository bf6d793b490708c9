"""The report: results find their cells, figures are judged rightly, and text says what they are."""

import csv
import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from xml.etree import ElementTree

import pytest
from made_up import made_up_ledger, made_up_result
from made_up import made_up_run as run

from distillmatch.cli import main
from distillmatch.config import RunConfig
from distillmatch.errors import ResultError
from distillmatch.report.paper_agreement import agreement_file
from distillmatch.report.paper_figures import (
    experiment_figures,
    groups_shown,
    heat,
    matrix_figures,
    quality_figures,
)
from distillmatch.report.paper_layout import grids
from distillmatch.report.paper_report import paper_of, write_report
from distillmatch.report.paper_streams import stream_pictures
from distillmatch.report.paper_svg import looks, ticks
from distillmatch.report.paper_tables import Entry, Paper, gather, read_results
from distillmatch.report.paper_text import latex, latex_escaped, markdown, tidy_csv
from distillmatch.suite.catalogue import Cell, Experiment, Published, at_scale, load_experiment
from distillmatch.suite.ledger import Ledger

CIFAR = {"source": "cifar100", "tasks": 5}


def cell(method: str, published: dict[str, Published], **config: Any) -> Cell:
    given = RunConfig(method=method, **{**CIFAR, **config})
    return Cell(method.upper(), "5 tasks", given, published)


def experiment(*cells: Cell, metrics: tuple[str, ...] = ("A_N", "omega")) -> Experiment:
    rows = tuple(dict.fromkeys(one.row for one in cells))
    columns = tuple(dict.fromkeys(one.column for one in cells))
    return Experiment("made", "A made-up table", "table", "Table 1", metrics, rows, columns, cells)


@pytest.mark.parametrize(
    ("mean", "deviation", "values", "verdict"),
    [
        (37.5, 0.7, (38.9,), "within"),
        (37.5, 0.7, (36.1,), "within"),
        (37.5, 0.7, (39.0,), "above"),
        (37.5, 0.7, (36.0,), "below"),
        (37.5, 0.7, (30.0, 45.0), "within"),
        (37.5, None, (37.5,), "unjudged"),
        (100.0, 0.0, (100.0,), "within"),
        (37.5, 0.7, (), "open"),
    ],
)
def test_two_published_deviations_decide(
    mean: float, deviation: float | None, values: tuple[float, ...], verdict: str
) -> None:
    assert Entry("A_N", Published(mean, deviation), values).verdict == verdict


def test_the_seeds_of_a_cell_are_averaged_and_other_configurations_stay_out() -> None:
    runs = [run("dm", seed) for seed in (3, 1, 2)]
    strange = [run("dm", epochs=20), run("dm", tasks=10), run("dm", coreset=400)]
    paper = gather([experiment(cell("dm", {"A_N": Published(40.0, 1.0)}))], runs + strange)
    record = paper.reproduced[0].records[0]
    assert [result["seed"] for result in record.results] == [1, 2, 3]
    entry = record.entries[0]
    accuracies = [result["metrics"]["A_N"] for result in runs]
    assert entry.mean == pytest.approx(fmean(accuracies))
    assert entry.deviation == pytest.approx(stdev(accuracies))
    assert entry.difference == pytest.approx(fmean(accuracies) - 40.0)
    assert len(paper.others) == 3, "they are shown as other runs"


def test_a_result_that_is_given_twice_counts_once_and_a_part_of_a_run_not_at_all() -> None:
    part = made_up_result(RunConfig(method="dm", seed=2, **CIFAR), complete=False)
    paper = gather([experiment(cell("dm", {}))], [run("dm"), run("dm"), part])
    assert len(paper.reproduced[0].records[0].results) == 1
    assert len(paper.results) == 2, "the unfinished run is listed among the runs"
    assert not paper.others


def test_base_runs_once_for_all_unlabelled_streams() -> None:
    paper = paper_of(
        [
            made_up_result(
                RunConfig(method="base", source="cifar100", order="parent", coreset=400, tasks=None)
            )
        ],
        ["table-2c"],
    )
    table = paper.reproduced[0]
    assert [record.cell.column for record in table.records if record.results] == list(
        table.experiment.columns
    )


def whole_paper() -> Paper:
    names = ["table-2a", "figure-3", "auroc", "ablation-random", "table-8"]
    experiments = [load_experiment(name) for name in names]
    others = [run("dm", source="shapes"), run("offline", source="shapes")]
    return gather(experiments, [*made_up_ledger(experiments, (1, 2)), *others])


@pytest.fixture(name="paper", scope="module")
def paper_fixture() -> Paper:
    return whole_paper()


def test_every_figure_is_well_formed_and_names_its_colours(paper: Paper) -> None:
    by_experiment = experiment_figures(paper)
    assert [len(by_experiment[name]) for name in by_experiment] == [3, 1, 2, 1, 1]
    groups = groups_shown(paper)
    every = [figure for figures in by_experiment.values() for figure in figures]
    every += [*quality_figures(groups), *matrix_figures(groups)]
    for figure in every:
        root = ElementTree.fromstring(figure.drawing)
        assert root.get("role") == "img" and root.get("aria-label")
        text = "".join(root.itertext())
        assert "nan" not in text
        if not figure.name.startswith("matrix"):
            assert re.search(r"\((vermilion|blue|grey|green|orange)", text), figure.name
    assert len({figure.name for figure in every}) == len(every)


def test_lines_of_one_figure_look_different() -> None:
    given = looks(["dm"] * 5 + ["base", "gd", "my:method"])
    assert len({(look.color, look.marker) for look in given}) == 8
    assert looks(["dm", "gd"])[0] == looks(["gd", "dm"])[1], "a method keeps its look"


def test_axes_are_divided_by_round_numbers() -> None:
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(55, 70) == [55, 60, 65, 70]
    assert heat(0) == "#00224e" and heat(100) == "#fee838"


def test_the_matrix_of_a_group_is_the_mean_of_its_seeds() -> None:
    runs = [run("dm", seed) for seed in (1, 2)]
    figures = matrix_figures(groups_shown(gather([experiment(cell("dm", {}))], runs)))
    value = fmean(result["R"][3][1] for result in runs)
    assert f"task 2 after task 4: {value:.1f}<" in figures[0].drawing


def test_a_wide_table_becomes_one_for_each_column(paper: Paper) -> None:
    assert [len(grids(one)) for one in paper.reproduced] == [1, 1, 1, 1, 1]
    wide = gather([load_experiment("table-6")], []).reproduced[0]
    assert [grid.caption for grid in grids(wide)] == list(wide.experiment.columns)


def test_csv_has_a_line_for_each_cell_and_metric(paper: Paper) -> None:
    rows = list(csv.DictReader(StringIO(tidy_csv(paper))))
    of_table = [row for row in rows if row["experiment"] == "table-2a"]
    assert len(of_table) == 6 * 3 * 2
    row = next(
        r for r in of_table if (r["row"], r["column"], r["metric"]) == ("DM", "10 tasks", "A_N")
    )
    assert (row["published_mean"], row["published_deviation"], row["seeds"]) == ("37.5", "0.7", "2")
    assert float(row["difference"]) == pytest.approx(float(row["mean"]) - 37.5, abs=1e-3)
    assert sum(row["experiment"] == "other runs" for row in rows) == 2 * 4


def test_markdown_has_the_same_figures(paper: Paper) -> None:
    text = markdown(paper)
    entry = next(r for r in paper.reproduced[0].records if r.method == "dm").entries[0]
    line = next(line for line in text.splitlines() if line.startswith("| DM | 5 tasks | A_N"))
    assert f"| 44.8 ± 1.4 | {entry.mean:.1f} ± {entry.deviation:.1f} | 2 |" in line
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line[:1] == "|"]
    assert set(widths) == {8, 9}


def test_latex_is_balanced_and_every_row_fills_its_columns(paper: Paper) -> None:
    text = latex(paper)
    assert not re.search(r"[^\x00-\x7f]", text), "letters that inputenc may not know"
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    plain = re.sub(r"\\[{}]", "", text)
    assert plain.count("{") == plain.count("}")
    for body in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        columns = len(re.match(r"\{l(r*)\}", body)[1]) + 1  # type: ignore[index]
        for line in body.splitlines():
            if line.endswith(r"\\"):
                spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
                cells = len(re.findall(r"(?<!\\)&", line)) + 1
                assert cells + sum(spans) - len(spans) == columns


def test_latex_escapes_what_it_would_read_as_commands() -> None:
    assert latex_escaped(r"50% of A_N & ℓ_pl #1 \x my_name") == (
        r"50\% of $A_N$ \& $\ell_{\mathrm{pl}}$ \#1 \textbackslash{}x my\_name"
    )


def test_the_page_needs_nothing_else_and_escapes_what_users_wrote(tmp_path: Path) -> None:
    made = experiment(cell("dm", {"A_N": Published(1.0, None)}))
    made = replace(made, title="<script>alert(1)</script>", note="a < b & c")
    text = write_report(gather([made], [run("dm")]), tmp_path).read_text("utf-8")
    assert "<script>alert" not in text and "a &lt; b &amp; c" in text
    assert not re.search(r"""(src|href)=["'](https?:)?//""", text)
    assert "@import" not in text and "url(" not in text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report.csv",
        "report.html",
        "report.md",
        "report.tex",
    ]


def test_streams_are_drawn_where_their_images_are_at_hand() -> None:
    results = [run("dm", source="shapes", image_size=16), run("dm"), run("gd")]
    drawn, absent = stream_pictures(results, {})
    assert drawn.picture is not None and drawn.picture.startswith(b"\x89PNG")
    assert absent.picture is None and "--data cifar100=DIR" in absent.reason


def test_the_command_reads_a_ledger_and_single_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.add(run("dm", tasks=10))
    other = Ledger(tmp_path / "more").add(run("base", tasks=10))
    words = ["report", str(other), "--ledger", str(ledger.folder), "--out", str(tmp_path / "out")]
    assert main([*words, "--experiments", "table-2a"]) == 0
    assert "report.html" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "out" / "report.csv").open(encoding="utf-8")))
    assert {row["method"] for row in rows if row["seeds"] != "0"} == {"dm", "base"}


def test_a_small_report_reads_the_small_ledger_and_claims_no_published_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = at_scale(load_experiment("table-2a"), "quick")
    for result in made_up_ledger([small], [1])[:4]:
        Ledger(Path("runs/quick/results")).add(result)
    words = ["report", "--scale", "quick", "--out", "out", "--experiments", "table-2a"]
    assert main(words) == 0
    rows = csv.DictReader(StringIO(Path("out/report.csv").read_text("utf-8")))
    run_cells = {(row["row"], row["column"]) for row in rows if row["seeds"] != "0"}
    page = Path("out/report.html").read_text("utf-8")
    assert "beside the published figures" not in page and "two deviations" not in page
    assert "<h1>The paper’s experiments, made small</h1>" in page
    assert f": {len(run_cells)} of {len(small.cells)} cells of the paper’s tables" in page
    counts = re.findall(r"<li><b>(\d+)</b>", page)
    assert counts == [str(len(run_cells)), str(len(small.cells) - len(run_cells))]
    overview = page.partition('<section id="overview">')[2].partition("</section>")[0]
    assert "published figures" not in overview and "within" not in overview
    assert "two deviations" not in Path("out/report.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ledger", "empty", "--out", "out"], "found none in this folder"),
        (["--ledger", "absent", "--out", "out"], "absent: "),
        (["other.json", "--out", "out"], "expected a result of a run, found other JSON"),
        (["half.json", "--out", "out"], "but config is missing"),
        (["--out", "other.json"], "expected a folder for the report"),
        (["--out", "other.json/deep"], "other.json is a file"),
        ([], "nothing to write"),
        (["--out", "out", "--data", "cifar100"], "--data takes SOURCE=DIR"),
        (["--out", "out", "--data", "moon=empty"], "one of cifar100, folder, shapes"),
        (["good.json", "--out", "out", "--experiments", "table-2z"], "unknown experiment"),
        (["good.json", "--readme", "README.md"], "found no such part"),
    ],
)
def test_bad_input_gets_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "half.json").write_text('{"format": "distillmatch result", "version": 1}')
    (tmp_path / "README.md").write_text("# nothing here\n")
    Ledger(tmp_path / "ledger").add(run("dm")).rename(tmp_path / "good.json")
    assert main(["report", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_field_of_a_later_version_is_no_obstacle_but_a_wrong_one_is(tmp_path: Path) -> None:
    later = tmp_path / "later.json"
    later.write_text(json.dumps(run("dm") | {"novelty": 1}))
    assert read_results([later])[0]["novelty"] == 1
    later.write_text(json.dumps(run("dm") | {"seed": "one"}))
    with pytest.raises(ResultError, match="seed must be whole number, not 'one'"):
        read_results([later])


def test_results_are_read_from_run_folders_and_ledgers(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    file = ledger.add(run("dm"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_bytes(file.read_bytes())
    assert len(read_results([ledger.folder, tmp_path / "run", file])) == 3


def test_the_figure_of_the_readme_stands_alone_in_light_and_dark(paper: Paper) -> None:
    drawing = agreement_file(paper)
    assert "prefers-color-scheme: dark" in drawing and 'class="ground"' in drawing
    ElementTree.fromstring(drawing)
