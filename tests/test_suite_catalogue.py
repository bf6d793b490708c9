"""The experiments: the paper's figures as data, small on demand, and own ones in the same form."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from distillmatch.config import RunConfig
from distillmatch.config.run import RELEASE, Gate
from distillmatch.errors import ConfigError
from distillmatch.sources import load_source
from distillmatch.streams import build_stream
from distillmatch.suite.catalogue import (
    Cell,
    Experiment,
    Published,
    at_scale,
    experiment_names,
    load_experiment,
)
from distillmatch.suite.identity import identity

DOCUMENT = Path(__file__).parent.parent / "docs" / "suite.md"
BEYOND = (
    "additions", "coreset-additions", "coreset-readings", "gates", "many-tasks-readings",
    "memory", "readings", "streams-readings", "strong-baselines", "strong-labels",
)  # fmt: skip
OWN: dict[str, Any] = {
    "title": "thresholds",
    "common": {"source": "shapes", "tasks": 5},
    "columns": {"half": {"true_positive_rate": 0.5}, "most": {"true_positive_rate": 0.9}},
    "rows": {"DM": {"method": "dm"}},
    "published": {"DM": {"A_N": ["40 ± 2", None]}},
}


def everything() -> list[Experiment]:
    return [load_experiment(name) for name in experiment_names()]


def of_paper() -> list[Experiment]:
    return [experiment for experiment in everything() if not experiment.beyond_paper]


def cell_of(name: str, row: str, column: str) -> Cell:
    (found,) = [
        cell for cell in load_experiment(name).cells if (cell.row, cell.column) == (row, column)
    ]
    return found


def write(folder: Path, **changes: Any) -> str:
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({**OWN, **changes}, allow_unicode=True), encoding="utf-8")
    return str(path)


def test_every_table_and_figure_with_figures_is_there() -> None:
    assert set(experiment_names()) == {
        "table-2a", "table-2b", "table-2c", "table-3a", "table-3b", "figure-3", "ablation-random",
        "ablation-parent", "gd-calibration", "auroc", "table-6", "table-7", "table-8",
        *BEYOND,
    }  # fmt: skip


def test_experiments_beyond_the_paper_say_so() -> None:
    beyond = [experiment for experiment in everything() if experiment.beyond_paper]
    assert [experiment.name for experiment in beyond] == list(BEYOND)
    published: dict[str, dict[str, Published]] = {}
    for name in ("table-6", "table-7", "figure-3"):
        for cell in load_experiment(name).cells:
            published.setdefault(repr(identity(cell.config)), {}).update(cell.published)
    for experiment in beyond:
        assert experiment.source.startswith("Ours")
        for cell in experiment.cells:
            assert bool(cell.published) == (cell.row == experiment.rows[0])
            if cell.published:
                assert cell.published.items() <= published[repr(identity(cell.config))].items()


def test_every_gate_has_its_row() -> None:
    configs = [cell.config for cell in load_experiment("gates").cells]
    by_delta = [config for config in configs if config.false_positive_rate is None]
    rows = [config.gate for config in by_delta if config.true_positive_rate_rule == "fixed"]
    assert sorted(rows) == sorted(get_args(Gate))


def differences(config: RunConfig, other: RunConfig) -> set[str]:
    """Return the options that differ, less what follows from one of them."""
    differing = {
        key: value for key, value in config.model_dump().items() if value != getattr(other, key)
    }
    alone = [key for key, value in differing.items() if other.replace(**{key: value}) == config]
    return set(alone or differing)


def test_a_row_of_the_readings_takes_one_of_the_releases_or_another_that_is_documented() -> None:
    changed: list[set[str]] = []
    for name, table, place in (
        ("readings", "table-2a", "10 tasks"),
        ("many-tasks-readings", "table-2a", "20 tasks"),
        ("coreset-readings", "table-2c", "Positive"),
    ):
        experiment = load_experiment(name)
        for column in experiment.columns:
            of_column = {c.row: c.config for c in experiment.cells if c.column == column}
            by_release = [of_column.pop(row) for row in [*of_column] if row.startswith("release, ")]
            nearly = of_column.pop("release but for three points", None)
            in_full = of_column.pop("release in full", None)
            assert (nearly is None) == (name == "many-tasks-readings")
            ours, release, *single = of_column.values()
            assert ours == cell_of(table, column, place).config
            assert release == ours.replace(preset="release")
            points = {"last_batches": "filled", "accepted_statistics": "unlabeled"}
            if nearly is not None:
                assert nearly == release.replace(**points, strong_statistics="together")
            assert all(len(differences(config, release)) == 1 for config in by_release)
            assert in_full in (None, ours.replace(preset="release-in-full"))
            changed += [differences(config, ours) for config in single]
    changed += [
        differences(cell.config, cell_of("table-7", *cell.column.split(", ")).config)
        for cell in load_experiment("streams-readings").cells
        if cell.row not in ("our readings", "release")
    ]
    assert all(len(keys) == 1 for keys in changed)
    usual = RunConfig()
    differing = {key for key, value in RELEASE.items() if value != getattr(usual, key)}
    # One of the release's readings concerns what another leaves open.
    assert differing.difference(*changed) == {"accepted_statistics"}


def test_with_other_streams_each_row_of_the_readings_takes_one_of_them() -> None:
    experiment = load_experiment("streams-readings")
    for column in experiment.columns:
        ours, release, apart, *regrouped = (
            cell.config for cell in experiment.cells if cell.column == column
        )
        method, stream = column.split(", ")
        assert ours == cell_of("table-7", method, stream).config
        assert release == ours.replace(preset="release")
        assert differences(apart, ours) == {"labeled_statistics"}
        assert apart.accepted_statistics == "labeled"
        expected = [{"negative_rule"}] if stream == "Negative" else []
        assert [differences(config, ours) for config in regrouped] == expected


@pytest.mark.parametrize(
    ("name", "row", "column", "metric", "mean", "deviation"),
    [
        ("table-2a", "UB", "20 tasks", "A_N", 56.7, None),
        ("table-2a", "DM", "10 tasks", "omega", 76.9, 2.5),
        ("table-2b", "GD", "coreset 0", "omega", 37.4, 1.8),
        ("table-2c", "DR", "Negative", "A_N", 20.1, 1.9),
        ("table-3a", "without w(k)", "10 tasks", "omega", 69.6, 0.5),
        ("table-3b", "DM", "10 tasks", "A_N", 24.8, 0.7),
        ("figure-3", "DM", "0", "equivalent_coreset", 935, None),
        ("ablation-random", "full method", "10 tasks", "fgt", 6.5, 0.5),
        ("ablation-parent", "without ℓ_ul", "20 tasks", "bwt", -14.0, 0.1),
        (
            "gd-calibration",
            "with calibration",
            "ParentClass, Positive, coreset 400",
            "fgt",
            -2.1,
            2,
        ),
        ("table-6", "Base", "RandomClass, 5 tasks", "bwt", -25.7, 26.2),
        ("table-7", "E2E", "Random", "fgt", 23.7, 0.6),
        ("table-8", "UB", "10 tasks", "bwt", 3.8, 0.5),
    ],
)
def test_figures_are_as_published(
    name: str, row: str, column: str, metric: str, mean: float, deviation: float | None
) -> None:
    assert cell_of(name, row, column).published[metric] == Published(mean, deviation)


def test_experiments_that_share_a_run_agree_on_what_was_published() -> None:
    found: dict[tuple[str, str], dict[Published, list[str]]] = {}
    for experiment in everything():
        for cell in experiment.cells:
            # Base is printed for every stream, and the paper means the same runs.
            config = (
                cell.config if cell.config.method != "offline" else cell.config.replace(coreset=0)
            )
            for metric, figure in cell.published.items():
                key = repr(identity(config)), metric
                found.setdefault(key, {}).setdefault(figure, []).append(experiment.name)
    differing = [places for places in found.values() if len(places) > 1]
    # The paper disagrees with itself once: A_N of DM with 20 tasks.
    full = ["many-tasks-readings", "strong-labels", "table-6"]
    assert differing == [{Published(21.0, 1.0): ["table-2a"], Published(21.1, 1.0): full}]


def test_every_cell_of_a_table_has_every_metric_published() -> None:
    for experiment in of_paper():
        if experiment.kind == "table":
            for cell in experiment.cells:
                assert cell.published.keys() == set(experiment.metrics), (experiment.name, cell)


@pytest.mark.parametrize("name", ["table-3a", "ablation-random", "ablation-parent"])
def test_an_ablation_takes_away_one_part(name: str) -> None:
    experiment = load_experiment(name)
    full = next(cell.config for cell in experiment.cells if cell.row == "full method")
    parts = []
    for cell in experiment.cells:
        changed = {
            key: value
            for key, value in cell.config.model_dump().items()
            if value != getattr(full, key)
        }
        parts += [key for key, value in changed.items() if value is False]
        assert len(changed) == (cell.row != "full method")
    assert parts == ["pseudo_labels", "class_balancing", "consistency", "distillation"]


def test_the_settings_are_the_protocols() -> None:
    for experiment in of_paper():
        for cell in experiment.cells:
            config = cell.config
            assert config.preset == "protocol" and config.network == "wrn-28-2"
            assert config.epochs == 200 and config.learning_rate is None
            tiny = config.source == "tiny-imagenet"
            assert (config.batch, config.unlabeled_batch) == ((32, 64) if tiny else (64, 128))


def test_the_memory_figure_has_base_on_both_sides_of_what_the_paper_found() -> None:
    cells = load_experiment("figure-3").cells
    sizes = [cell.config.coreset for cell in cells if cell.row == "Base"]
    for needed in (338, 935):
        assert min(sizes) < needed < max(sizes)
        assert any(needed - 200 < size < needed for size in sizes)
    assert [(c.row, c.config.coreset) for c in cells if c.row != "Base"] == [("GD", 0), ("DM", 0)]


def test_quick_keeps_the_cells_and_drops_what_was_published() -> None:
    for experiment in everything():
        small = at_scale(experiment, "quick")
        assert [(c.row, c.column) for c in small.cells] == [
            (c.row, c.column) for c in experiment.cells
        ]
        for before, cell in zip(experiment.cells, small.cells, strict=True):
            assert not cell.published
            assert cell.config.source == "shapes" and cell.config.device == "cpu"
            kept = ("method", "order", "unlabeled", "pseudo_labels", "calibration", "consistency")
            assert all(getattr(cell.config, k) == getattr(before.config, k) for k in kept)
            assert bool(cell.config.coreset) == bool(before.config.coreset)
        # What differed before differs still: the columns are not made one.
        for cells in (experiment.cells, small.cells):
            assert len({repr(cell.config) for cell in cells}) == len(cells)


def test_quick_streams_can_be_made_from_the_embedded_data() -> None:
    streams = {
        cell.config.to_yaml(): cell.config.replace(method="dm")
        for experiment in everything()
        for cell in at_scale(experiment, "quick").cells
    }
    dataset = load_source(next(iter(streams.values())))
    kinds = {(c.order, c.tasks, c.unlabeled): c for c in streams.values()}
    assert len(kinds) == 7, "three numbers of tasks, and four streams of parents"
    for (order, tasks, _), config in kinds.items():
        assert len(build_stream(dataset, config)) == (12 if order == "parent" else tasks)


def test_paper_scale_changes_nothing() -> None:
    experiment = load_experiment("table-2b")
    assert at_scale(experiment, "paper") == experiment


def test_an_own_experiment_is_a_file_of_the_same_form(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path))
    assert experiment.name == "own" and experiment.metrics == ("A_N", "omega")
    first, second = experiment.cells
    assert first.config == RunConfig(source="shapes", tasks=5, true_positive_rate=0.5)
    assert first.published == {"A_N": Published(40.0, 2.0)} and second.published == {}


def test_rows_win_over_columns_and_both_over_what_is_common(tmp_path: Path) -> None:
    experiment = load_experiment(
        write(
            tmp_path,
            common={"tasks": 2, "epochs": 2, "batch": 2},
            columns={"half": {"tasks": 3, "epochs": 3}, "most": {}},
            rows={"DM": {"tasks": 4}},
        )
    )
    config = experiment.cells[0].config
    assert (config.tasks, config.epochs, config.batch) == (4, 3, 2)


def test_a_preset_gives_the_readings_that_no_row_names(tmp_path: Path) -> None:
    given = {"ours": {"preset": "protocol"}, "one": {"consistency_threshold": 0.7}, "all": {}}
    file = write(tmp_path, rows=given, columns={"half": {"tasks": 3}}, published={})
    configs = {cell.row: cell.config for cell in load_experiment(file, "release").cells}
    ours, one, whole = (configs[row] for row in given)
    assert ours.preset == "protocol" and ours.initial_weights == "normal"
    assert one.consistency_threshold == 0.7 and one.initial_weights == "uniform"
    assert whole == RunConfig(source="shapes", tasks=3, preset="release")
    assert {cell.config.preset for cell in load_experiment(file).cells} == {"protocol"}


def test_the_example_in_the_document_is_an_experiment(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", DOCUMENT.read_text("utf-8"), re.M | re.S)
    path = tmp_path / "example.yaml"
    path.write_text(text, encoding="utf-8")
    assert len(load_experiment(str(path)).cells) > 1


def test_every_experiment_is_in_the_document() -> None:
    text = DOCUMENT.read_text("utf-8")
    for name in experiment_names():
        assert f"| `{name}` |" in text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"colums": {}}, r"own.yaml: unknown key 'colums' \(did you mean 'columns'\?\)"),
        ({"metrics": ["A_N", "accuracy"]}, "unknown metric 'accuracy'; they are A_N, omega"),
        ({"kind": "picture"}, "kind must be one of 'table', 'figure', not 'picture'"),
        ({"rows": {}}, "rows must not be empty"),
        (
            {"rows": {"DM": {"method": "dn"}}},
            "row 'DM', column 'half': method must be one of base, dm, .*, or your own as "
            "module:name, not 'dn'",
        ),
        ({"rows": {"DM": {"method": "dm", "seed": 4}}}, "row 'DM', column 'half': seed 4 is given"),
        ({"columns": {"half": {"seed": 5}, "most": {}}}, "column 'half': seed 5 is given"),
        (
            {"rows": {"DM": {"weight-decay": 0.1, "weight_decay": 0.2}}},
            "row 'DM', column 'half': weight_decay is given twice, with dashes and with",
        ),
        ({"rows": {"DM": {"metod": "dm"}}}, "row 'DM', column 'half': unknown key 'metod'"),
        ({"rows": {"DM": {"coreset": -1}}}, "row 'DM', column 'half': coreset must be at least 0"),
        ({"published": {"GD": {}}}, "published names row 'GD'; the rows are DM"),
        ({"published": {"DM": {"bwt": [1, 2]}}}, "row 'DM', names metric 'bwt'"),
        ({"published": {"DM": {"A_N": [1]}}}, "A_N has 1 figures for 2 columns"),
        (
            {"published": {"DM": {"A_N": ["1 + 2", 3]}}},
            "a figure such as 15.6 ± 0.9, found '1 [+] 2'",
        ),
        ({"only": {"DM": ["all"]}}, "names column 'all'; the columns are half, most"),
        ({"only": {"GD": ["half"]}}, "only names row 'GD'"),
        ({"seeds": ["one"]}, "seeds must be a whole number"),
        ({"seeds": []}, "seeds must not be empty"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refusal:
        load_experiment(write(tmp_path, **changes))
    assert "own.yaml" in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_part_that_is_missing_is_named_and_nothing_else(tmp_path: Path) -> None:
    for key in ("title", "rows", "columns"):
        path = tmp_path / "own.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in OWN.items() if k != key}))
        with pytest.raises(ConfigError) as refusal:
            load_experiment(str(path))
        assert str(refusal.value) == f"{path}: {key} is missing"


def test_a_row_that_is_given_twice_is_refused_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("title: own\ncolumns: {all: {}}\nrows:\n  DM: {method: dm}\n  DM: {tasks: 2}\n")
    with pytest.raises(ConfigError, match="line 5: key 'DM' is given twice, first in line 4"):
        load_experiment(str(path))


def test_own_methods_and_both_spellings_of_options_are_fine(tmp_path: Path) -> None:
    common = {"source": "shapes", "labels-per-class": 3}
    rows = {"mine": {"method": "mine:Method", "labels_per_class": 4}}
    experiment = load_experiment(write(tmp_path, common=common, rows=rows, published={}))
    assert experiment.cells[0].config.labels_per_class == 4, "the row's wins"


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="expected a mapping of keys to values, found a list"):
        load_experiment(str(tmp_path / "list.yaml"))
    with pytest.raises(ConfigError, match=r"none.yaml: No such file"):
        load_experiment(str(tmp_path / "none.yaml"))


def test_an_unknown_experiment_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"'table-2d' \(did you mean 'table-2[abc]'\?\)"):
        load_experiment("table-2d")
    with pytest.raises(ConfigError, match="unknown experiment '_quick'"):
        load_experiment("_quick")


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="scale must be one of paper, quick, not 'tiny'"):
        at_scale(load_experiment("auroc"), "tiny")  # type: ignore[arg-type]
