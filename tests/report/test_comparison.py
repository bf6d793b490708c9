"""Tables of results: published beside ours, seeds put together, and Ω by each run's bound."""

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml
from made_up import made_up_result
from made_up import made_up_run as run
from PIL import Image
from rich.console import Console
from small_runs import TESTS

from distillmatch.cli.report import update
from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.report.charts import draw_comparison, glance, svg_of
from distillmatch.report.comparison import (
    Figure,
    Results,
    TableModel,
    comparison_table,
    grouped,
    table_of,
    with_omega,
)
from distillmatch.report.renderers import headline
from distillmatch.runs import read_result
from distillmatch.sources import load_source
from distillmatch.streams import build_stream
from distillmatch.suite.catalogue import Experiment, Published, load_experiment
from distillmatch.suite.ledger import Ledger
from distillmatch.suite.names import bound_config, run_name

Result = dict[str, Any]

COMMON = {"source": "cifar100", "splits": "authors", "tasks": 5}
OWN: dict[str, Any] = {
    "title": "own",
    "metrics": ["A_N", "omega", "bwt"],
    "common": COMMON,
    "columns": {"all": {}},
    "rows": {
        "Base": {"method": "base", "unlabeled": "none"},
        "DM": {"method": "dm"},
        "UB": {"method": "offline", "unlabeled": "none"},
    },
    "published": {
        "Base": {"A_N": ["20 ± 1"], "bwt": ["-20 ± 0.1"]},
        "DM": {"A_N": ["30 ± 1"]},
        "UB": {"A_N": ["56.7"]},
    },
}


def own(folder: Path, **changes: Any) -> Experiment:
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({**OWN, **changes}, allow_unicode=True), encoding="utf-8")
    return load_experiment(str(path))


def config_of(method: str, **changes: Any) -> RunConfig:
    unlabeled = "none" if method in ("base", "offline") else "uniform"
    return RunConfig(**{**COMMON, "method": method, "unlabeled": unlabeled, **changes})


def added(ledger: Ledger, config: RunConfig, **metrics: Any) -> dict[str, Any]:
    """Add a made-up result to a ledger, with some of its figures as they are given."""
    result = made_up_result(config)
    result["metrics"] |= metrics
    ledger.add(result)
    return result


def figure(model: TableModel, row: str, metric: str) -> Figure:
    found = model.row(row, "all")
    assert found is not None
    return found.figures[metric]


PUBLISHED = Published(20.0, 1.0)


@pytest.mark.parametrize(
    ("made", "text", "verdict"),
    [
        (Figure("A_N", PUBLISHED, (22.04,)), "22.0", "agrees"),
        (Figure("A_N", PUBLISHED, (40.0,)), "40.0", "higher"),
        (Figure("A_N", PUBLISHED, (1.0, 1.5, 0.5)), "1.0 ± 0.5", "lower"),
        (Figure("A_N", PUBLISHED), "–", None),
        (Figure("bwt", None, (-2.0, -4.0)), "−3.0 ± 1.4", None),
        (Figure("memory_saving", Published(0.2, None), (0.3,)), "0.30", None),
        (Figure("A_N", PUBLISHED, (40.0,), archived="release"), "40.0 †", None),
        (Figure("equivalent_coreset", PUBLISHED, (1200.0,), at_least=True), "> 1200", None),
        (Figure("A_N", PUBLISHED, (40.0,), is_target=False), "40.0", None),
    ],
)
def test_a_figure_is_judged_where_both_sides_can_be_compared(
    made: Figure, text: str, verdict: str | None
) -> None:
    assert (made.text, made.verdict) == (text, verdict)


def test_a_table_has_the_seeds_that_were_run_and_says_whether_they_agree(tmp_path: Path) -> None:
    ledger, experiment = Ledger(tmp_path / "ledger"), own(tmp_path)
    reached = {0: 29.0, 1: 30.5, 2: 31.5}
    for seed, value in reached.items():
        added(ledger, config_of("dm", seed=seed), A_N=value)
    added(ledger, config_of("base", seed=0), A_N=1.0, bwt=-40.0)
    model = table_of(experiment, Results(ledger))
    found = figure(model, "DM", "A_N")
    assert found.values == tuple(reached.values()) and found.verdict == "agrees"
    assert (found.mean, found.deviation) == (fmean(reached.values()), stdev(reached.values()))
    assert found.published_text == "30.0 ± 1.0"
    assert figure(model, "Base", "A_N").verdict == "lower"
    # Base's published BWT mixes runs that distill and one that does not.
    assert figure(model, "Base", "bwt").values and figure(model, "Base", "bwt").verdict is None
    assert figure(model, "UB", "A_N").values == ()
    assert headline([model], "paper") == (
        "2 of 3 cells have a run by the recipe `paper`; 1 of 2 figures of A_N and Ω agree, the "
        "mean absolute difference is 9.7 points of A_N."
    )
    one = table_of(experiment, Results(ledger), [1])
    assert figure(one, "DM", "A_N").values == (30.5,)
    as_written = load_experiment(str(tmp_path / "own.yaml"), "as-written")
    other = table_of(as_written, Results(ledger))
    assert not any(row.runs for row in other.rows), "runs by another recipe"


def test_omega_comes_from_the_bound_of_the_same_recipe_and_seed_alone(tmp_path: Path) -> None:
    ledger, experiment = Ledger(tmp_path / "ledger"), own(tmp_path)
    accuracies = [
        added(ledger, config_of("dm", seed=seed))["metrics"]["accuracies"] for seed in (0, 1)
    ]
    for other in ({"recipe": "as-written"}, {"splits": "hashed"}, {"epochs": 20}):
        added(ledger, bound_config(config_of("dm", seed=0, **other)))
    assert figure(table_of(experiment, Results(ledger)), "DM", "omega").values == ()
    finer = added(ledger, bound_config(config_of("dm", seed=0, tasks=10)))
    bound = added(ledger, bound_config(config_of("dm", seed=1)))
    offline = finer["metrics"]["accuracies"][1::2], bound["metrics"]["accuracies"]
    expected = [
        fmean(100 * a / b for a, b in zip(*pair, strict=True))
        for pair in zip(accuracies, offline, strict=True)
    ]
    values = figure(table_of(experiment, Results(ledger)), "DM", "omega").values
    assert values == pytest.approx(expected)


def archive(ledger: Ledger, preset: str, runs: dict[int, float]) -> None:
    """Write the archive of a ledger: results of version 1 that stand in for DM, by seed."""
    folder, entries = ledger.folder / "archive", {}
    folder.mkdir(parents=True)
    for seed, a_n in runs.items():
        old = json.loads((TESTS / "fixtures" / "version1.json").read_text())
        old["metrics"]["A_N"] = a_n
        name = run_name(config_of("dm", seed=seed, splits="hashed"))
        (folder / f"{name}.json").write_text(json.dumps(old))
        entries[name] = [{"file": name, "preset": preset}]
    index = {"format": "distillmatch archive", "version": 1, "runs": entries}
    (folder / "index.json").write_text(json.dumps(index))


def test_an_archived_run_is_shown_where_there_is_no_other_and_is_never_judged(
    tmp_path: Path,
) -> None:
    ledger, experiment = Ledger(tmp_path / "ledger"), own(tmp_path)
    archive(ledger, "release", {1: 60.0, 2: 62.0})
    model = table_of(experiment, Results(ledger))
    row = model.row("DM", "all")
    assert row is not None and len(row.archived) == 2
    found = figure(model, "DM", "A_N")
    assert found.values == (60.0, 62.0) and found.archived == "release"
    assert found.verdict is None and found.text == "61.0 ± 1.4 †"
    assert not row.runs
    added(ledger, config_of("dm", seed=0), A_N=30.0)
    now = figure(table_of(experiment, Results(ledger)), "DM", "A_N")
    assert now.values == (30.0,) and now.archived is None and now.verdict == "agrees"


def test_memory_is_measured_by_the_coresets_with_which_base_reaches_as_much(tmp_path: Path) -> None:
    experiment = own(
        tmp_path,
        metrics=["equivalent_coreset", "memory_saving"],
        columns={"0": {"coreset": 0}, "400": {"coreset": 400}, "800": {"coreset": 800}},
        rows={
            "Base": {"method": "base", "unlabeled": "none"},
            "DM": {"method": "dm"},
            "GD": {"method": "gd"},
        },
        only={"DM": ["0"], "GD": ["0"]},
        published={"DM": {"equivalent_coreset": [600, None, None]}},
    )
    ledger = Ledger(tmp_path / "ledger")
    added(ledger, bound_config(config_of("dm", seed=0)), accuracies=[50.0] * 5)
    for coreset, reached in ((0, 10.0), (400, 20.0), (800, 30.0)):
        added(ledger, config_of("base", seed=0, coreset=coreset), accuracies=[reached] * 5)
    added(ledger, config_of("dm", seed=0), accuracies=[25.0] * 5)
    added(ledger, config_of("gd", seed=0), accuracies=[45.0] * 5)
    model = table_of(experiment, Results(ledger))
    rows = {name: model.row(name, "0") for name in ("DM", "GD", "Base")}
    assert rows["DM"] is not None and rows["GD"] is not None and rows["Base"] is not None
    images, saved = rows["DM"].figures.values()
    assert images.values == pytest.approx((600.0,)) and saved.values == pytest.approx((0.15,))
    assert images.verdict is None, "published without a deviation"
    beyond = rows["GD"].figures["equivalent_coreset"]
    assert beyond.values == (800.0,) and beyond.at_least and beyond.text == "> 800"
    assert rows["Base"].figures["equivalent_coreset"].values == ()


BEGIN, END = "<!-- {}: made by distillmatch report -->", "<!-- {}: end -->"


def test_marks_are_filled_and_the_rest_is_kept(tmp_path: Path) -> None:
    experiment, ledger = load_experiment("table-2a"), Ledger(tmp_path / "results")
    for cell in experiment.cells:
        if cell.name in ("Base/10 tasks", "DM/10 tasks"):
            result = made_up_result(cell.config.replace(seed=0))
            result["metrics"]["A_N"] = 8.2 if cell.row == "Base" else 50.0
            ledger.add(result)
    whole = table_of(experiment, Results(ledger))
    drawn = svg_of(glance([whole]))
    assert drawn == svg_of(glance([whole])) and "DM, 10 tasks" in drawn
    page = tmp_path / "page.md"
    marks = "\n".join(f"{BEGIN.format(n)}\nold\n{END.format(n)}" for n in ("summary", "table-2a"))
    page.write_text(f"before\n{marks}\nafter\n", encoding="utf-8")
    update(page, [whole])
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| Base | 8.2 ± 0.1 | 8.2 | yes |" in text
    assert "| DM | 37.5 ± 0.7 | 50.0 | no, higher |" in text
    assert "| GD | 21.4 ± 0.6 | – | not judged |" in text
    update(page, [whole])
    assert page.read_text("utf-8") == text
    page.write_text("no marks\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="expected marks"):
        update(page, [whole])


# Results side by side


def made_up(method: str, accuracies: list[float], **config: Any) -> Result:
    result = run(method, **{"unlabeled": "uniform", "tasks": len(accuracies), **config})
    result["metrics"] |= {"A_N": accuracies[-1], "accuracies": accuracies}
    return result


RUNS = [
    made_up("offline", [80.0, 60.0]),
    made_up("worldmatch", [80.0, 40.0], options={"accept": "newness"}),
    made_up("worldmatch", [70.0, 50.0], options={"accept": "newness"}, seed=2, device="cuda"),
    made_up("worldmatch", [80.0, 20.0], options={"accept": "truth"}),
]
DM, AGAIN = made_up("dm", [80.0, 40.0]), made_up("dm", [80.0, 41.0], device="cuda")
ONE, TWO = "WorldMatch (accept newness)", "WorldMatch (accept truth) (oracle)"


def shown(results: list[Result]) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(comparison_table(results))
    return captured.get()


@pytest.mark.parametrize(
    ("results", "groups"),
    [
        (RUNS, {"UB": 1, ONE: 2, TWO: 1}),
        (
            [DM, made_up("dm", [50.0, 35.0], recipe="as-written")],
            {"DM (recipe paper)": 1, "DM (recipe as-written)": 1},
        ),
        ([DM, made_up("dm", [50.0, 35.0], seed=2)], {"DM": 2}),
        ([DM, DM], {"DM": 1}),
        (
            [
                made_up("dm", [50.0, 35.0], unlabeled_per_task=7),
                made_up("base", [50.0, 35.0], unlabeled="none"),
            ],
            {"DM": 1, "Base": 1},
        ),
        ([DM, {**DM, "metrics": {**DM["metrics"], "omega": 75.0}}], {"DM": 1}),
        ([DM, AGAIN], {"DM": 1, "DM (run 2 of the same seed)": 1}),
        ([DM, {**AGAIN, "stream": {**DM["stream"], "fingerprint": "another fold"}}], {"DM": 2}),
    ],
)
def test_runs_that_differ_in_more_than_the_seed_are_kept_apart(
    results: list[Result], groups: dict[str, int]
) -> None:
    assert {group.name: len(group.results) for group in grouped(results)} == groups


def test_the_table_gives_mean_and_deviation_over_seeds_of_finished_runs(tmp_path: Path) -> None:
    text = shown(RUNS)
    assert "45.0 ± 7.1" in text, "the sample deviation of 40 and 50"
    finished, begun = made_up("gd", [60.0, 20.0, 16.0]), made_up("gd", [54.0], seed=2, tasks=3)
    begun |= {"complete": False, "tasks": [{}]}
    text = shown([begun, finished])
    assert text.count("±") == 1, "in the title alone"
    assert "16.0" in text
    (line,) = [line for line in text.splitlines() if "unfinished" in line]
    assert "GD (unfinished: 1 of 3 tasks)" in line and "54.0" in line
    old = shown([read_result(TESTS / "fixtures" / "version1.json"), DM])
    assert "UB" in old and "DM" in old
    draw_comparison(RUNS, tmp_path / "all.png")
    draw_comparison(RUNS[:1], tmp_path / "one.png")
    assert Image.open(tmp_path / "all.png").size == Image.open(tmp_path / "one.png").size
    assert (tmp_path / "all.png").read_bytes() != (tmp_path / "one.png").read_bytes()


def test_a_bound_that_was_trained_otherwise_does_not_serve() -> None:
    others: list[dict[str, Any]] = [
        {"epochs": 20}, {"recipe": "as-written"}, {"network": "wrn-16-2"}
    ]  # fmt: skip
    for changed in others:
        bound = run("offline", **changed)
        assert with_omega([bound, run("dm")])[1]["metrics"]["omega"] is None
        assert with_omega([bound, run("dm", **changed)])[1]["metrics"]["omega"] is not None
    usual, strong = run("offline"), run("offline", strong_labels=True)
    for learner in (run("dm"), run("dm", strong_labels=True)):
        alone = with_omega([usual, learner])[1]["metrics"]["omega"]
        for bounds in ([usual, strong], [strong, usual]):
            assert with_omega([*bounds, learner])[2]["metrics"]["omega"] == alone
        assert with_omega([strong, learner])[1]["metrics"]["omega"] is None


def test_a_bound_serves_where_it_learned_the_same_labels() -> None:
    """It may have seen another unlabeled stream, and cut the classes into more tasks."""
    fine, finer, learner = run("offline", tasks=10), run("offline", tasks=20), run("dm")
    _, filled = with_omega([fine, run("dm", unlabeled="task", coreset=400)])
    assert filled["metrics"]["omega"] is not None
    pairs = zip(learner["metrics"]["accuracies"], fine["metrics"]["accuracies"][1::2], strict=True)
    expected = fmean(100 * a / b for a, b in pairs)
    metrics = with_omega([finer, fine, learner])[-1]["metrics"]
    assert metrics["omega"] == metrics["omega_curve"][-1] == pytest.approx(expected)
    again = [run(name, tasks=n, repetition=0.5) for name, n in (("offline", 10), ("dm", 5))]
    without = [
        [run("offline"), run("dm", tasks=10)],
        [run("offline"), run("dm", seed=2)],
        again,  # labels are divided over the tasks
        [run("offline", repetition=0.5), learner],
        [fine, {**learner, "classes": learner["classes"][::-1]}],
    ]
    for results in without:
        assert with_omega(results)[-1]["metrics"]["omega"] is None


def test_a_stage_of_a_bound_learns_the_same_images_however_its_classes_are_cut() -> None:
    config = RunConfig(source="shapes", method="offline", seed=3)
    dataset = load_source(config)
    coarse, fine = (build_stream(dataset, config.replace(tasks=tasks)) for tasks in (5, 10))
    for stage in range(5):
        of_coarse = [i for task in coarse.tasks[: stage + 1] for i in task.labeled.tolist()]
        of_fine = [i for task in fine.tasks[: 2 * stage + 2] for i in task.labeled.tolist()]
        assert sorted(of_coarse) == sorted(of_fine)
