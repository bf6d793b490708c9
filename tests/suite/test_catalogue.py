"""The experiments: the paper's figures as data, small on demand, and own ones in the same form."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.suite.catalogue import Published, at_scale, experiment_names, load_experiment
from distillmatch.suite.names import run_name

OWN: dict[str, Any] = {
    "title": "thresholds",
    "common": {"source": "shapes", "tasks": 5},
    "columns": {
        "few": {"options": {"true_positive_rate": 0.2}},
        "most": {"options": {"true_positive_rate": 0.9}},
    },
    "rows": {"DM": {"method": "dm"}},
    "published": {"DM": {"A_N": ["40 ± 2", None]}},
}


EVERYTHING = [load_experiment(name) for name in experiment_names()]


def write(folder: Path, **changes: Any) -> str:
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({**OWN, **changes}, allow_unicode=True), encoding="utf-8")
    return str(path)


def test_experiments_that_share_a_run_agree_on_what_was_published() -> None:
    found: dict[tuple[str, str], set[Published]] = {}
    for experiment in EVERYTHING:
        for cell in experiment.cells:
            for metric, figure in cell.published.items():
                key = run_name(cell.config), metric
                found.setdefault(key, set()).add(figure)
    # The paper disagrees with itself once: A_N of DM with 20 tasks.
    differing = [figures for figures in found.values() if len(figures) > 1]
    assert differing == [{Published(21.0, 1.0), Published(21.1, 1.0)}]


def test_quick_keeps_the_cells_and_drops_what_was_published() -> None:
    for experiment in EVERYTHING:
        small = at_scale(experiment, "quick")
        assert [c.row for c in small.cells] == [c.row for c in experiment.cells]
        assert len({c.name for c in small.cells}) == len({c.name for c in experiment.cells})
        for full, cell in zip(experiment.cells, small.cells, strict=True):
            assert not cell.published
            assert cell.config.source == "shapes" and cell.config.device == "cpu"
            kept = ("method", "order", "unlabeled", "options", "recipe")
            assert cell.config.splits == "hashed"
            assert all(getattr(cell.config, k) == getattr(full.config, k) for k in kept)
            assert bool(cell.config.coreset) == bool(full.config.coreset)
        # What differed in more than its images differs still: the columns are not made one.
        images = ("source", "splits", "batch", "unlabeled_batch")
        same = {key: getattr(small.cells[0].config, key) for key in images}
        before = {run_name(cell.config.replace(**same)) for cell in experiment.cells}
        assert len({run_name(cell.config) for cell in small.cells}) == len(before)


def test_names_at_quick_scale_say_how_many_tasks_and_images_there_are() -> None:
    for name, columns in (("table-2a", ["3 tasks", "6 tasks"]), ("figure-3", ["0", "15"])):
        cells = at_scale(load_experiment(name), "quick").cells
        assert list(dict.fromkeys(cell.column for cell in cells))[:2] == columns
    assert "coreset of 60" in at_scale(load_experiment("table-2c"), "quick").title


def test_rows_win_over_columns_and_both_over_what_is_common(tmp_path: Path) -> None:
    options: Any = {"consistency_weight": 2.0, "distillation_weight": 2.0}
    common = {"source": "shapes", "tasks": 2, "epochs": 2, "batch": 2, "options": options}
    changed: Any = {"distillation_weight": 3.0, "pseudo_labels": False}
    columns = {"few": {"tasks": 3, "epochs": 3, "options": changed}, "most": {}}
    row: Any = {"method": "dm", "tasks": 4, "options": {"class_balancing": False}}
    experiment = load_experiment(write(tmp_path, common=common, columns=columns, rows={"DM": row}))
    assert experiment.name == "own" and experiment.metrics == ("A_N", "omega")
    first, second = experiment.cells
    merged = {**options, **changed, **row["options"]}
    assert first.config == RunConfig(source="shapes", tasks=4, epochs=3, batch=2, options=merged)
    assert first.published == {"A_N": Published(40.0, 2.0)} and second.published == {}
    # An option at its default makes no other run: by another name it would never be found.
    usual = {"DM": {"options": {"consistency_weight": 1.0}}}
    cells = load_experiment(write(tmp_path, rows=usual, columns=columns)).cells
    assert cells[1].config.options == {}


def test_an_experiment_is_of_one_recipe_but_for_rows_that_name_one(tmp_path: Path) -> None:
    rows = {"words": {"recipe": "as-written"}, "all": {}}
    file = write(tmp_path, rows=rows, columns={"few": {}}, published={})
    for recipe in ("paper", "as-written"):
        recipes = {cell.row: cell.config.recipe for cell in load_experiment(file, recipe).cells}
        assert recipes == {"words": "as-written", "all": recipe}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"colums": {}}, r"own.yaml: unknown key 'colums' \(did you mean 'columns'\?\)"),
        ({"metrics": ["A_N", "accuracy"]}, "metrics must be one of 'A_N', .*, not 'accuracy'"),
        ({"rows": {"DM": {"method": "dn"}}}, "row 'DM', column 'few': method must be one of base"),
        ({"rows": {"DM": {"method": "dm", "seed": 4}}}, "row 'DM', column 'few': seed 4 is given"),
        ({"published": {"GD": {}}}, "published names row 'GD'; the rows are DM"),
        ({"published": {"DM": {"bwt": [1, 2]}}}, "row 'DM', names metric 'bwt'"),
        ({"published": {"DM": {"A_N": [1]}}}, "A_N has 1 figures for 2 columns"),
        ({"published": {"DM": {"A_N": ["1 + 2", 3]}}}, "figures such as 15.6 ± 0.9, not '1 [+] 2'"),
        ({"only": {"DM": ["all"]}}, "names column 'all'; the columns are few, most"),
        ({"seeds": []}, r"seeds cannot be \[\]: .* at least 1 item"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refusal:
        load_experiment(write(tmp_path, **changes))
    assert "own.yaml" in str(refusal.value) and "\n" not in str(refusal.value)


def test_own_code_is_named_by_a_file_and_allowed_by_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "from distillmatch.methods.dm import DistillMatch as Method\n"
    (tmp_path / "mine.py").write_text(own)
    monkeypatch.syspath_prepend(tmp_path)
    rows = {"mine": {"method": "mine:Method", "labels_per_class": 4}}
    common = {"source": "shapes", "labels-per-class": 3}
    file = write(tmp_path, common=common, rows=rows, published={})
    with pytest.raises(ConfigError, match=r"row 'mine', .* --allow-import mine:Method"):
        load_experiment(file)
    experiment = load_experiment(file, allow_import={"mine:Method"})
    assert experiment.cells[0].config.labels_per_class == 4, "the row's wins"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("none.yaml", r"none.yaml: No such file"),
        ("table-2d", r"'table-2d' \(did you mean 'table-2[abc]?'\?\)"),
        ("_quick", "unknown experiment '_quick'"),
    ],
)
def test_what_is_no_experiment_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_experiment(name)
