"""The experiments: every table and figure of the paper, some beyond it, and a user's own, as data.

An experiment is rows against columns. The run of a cell is the experiment's common configuration,
with the column's over it and the row's over that; beside it stands what was published.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from distillmatch.config import (
    LOCATION_KEYS,
    Config,
    RunConfig,
    parse_yaml,
    read_yaml,
    with_underscores,
)
from distillmatch.config.base import CountOrZero, Switch
from distillmatch.config.recipe import RecipeName
from distillmatch.errors import ConfigError
from distillmatch.plugins import METHODS, plugin_names, refuse_unknown

METRICS = ("A_N", "omega", "bwt", "fgt", "auroc", "equivalent_coreset", "memory_saving")
"""What a cell can state: figures of result.md, the mean AUROC over tasks, and for figures of memory
the images that Base must store to match a method, in all and for each unlabeled image of a task.
"""
Scale = Literal["paper", "quick"]
QUICK_NOTE = (
    "Made small on the embedded data, with fewer tasks and stored images. Nothing was published of "
    "it."
)
PARENTS = {"cifar100": 20, "shapes": 12}
"""Tasks of a stream with a task for each parent class."""
PAPER_NUMBERS = {
    "table-4a": "ablation-random",
    "table-4b": "ablation-parent",
    "table-6a": "table-6",
    "table-6b": "table-6",
    "table-6c": "table-6",
    "table-6d": "table-6",
    "table-7a": "table-7",
    "table-7b": "table-7",
    "table-7c": "table-7",
    "table-7d": "table-7",
    "table-9": "gd-calibration",
    "table-9a": "gd-calibration",
    "table-9b": "gd-calibration",
    "table-9c": "gd-calibration",
    "figure-4a": "ablation-random",
    "figure-4b": "ablation-parent",
    **{f"figure-5{letter}": "table-6" if letter < "e" else "table-7" for letter in "abcdefgh"},
    "figure-6": "table-8",
    "figure-7": "auroc",
    "figure-7a": "auroc",
    "figure-7b": "auroc",
}
"""The paper's numbers of tables and figures that go by another name here."""
Options = dict[str, Any]


@dataclass(frozen=True)
class Published:
    """A figure as the paper prints it."""

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Cell:
    """One configuration of an experiment; `config.replace(seed=s)` is the run with seed s."""

    row: str
    column: str
    config: RunConfig
    published: dict[str, Published]

    @property
    def name(self) -> str:
        """What the cell is called where one is chosen: ROW/COLUMN."""
        return f"{self.row}/{self.column}"


@dataclass(frozen=True)
class Experiment:
    """A table or figure: its cells, row by row, and where in the paper it is.

    One that is `beyond_paper` asks a question of its own; its first row is what the others are
    compared with. The `recipe` is that of all cells that do not name one themselves.
    """

    name: str
    title: str
    kind: Literal["table", "figure"]
    source: str
    metrics: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    note: str = ""
    beyond_paper: bool = False
    recipe: RecipeName = "paper"
    scale: Scale = "paper"


class _File(Config):
    """What a YAML file of an experiment may hold."""

    title: str
    kind: Literal["table", "figure"] = "table"
    source: str = ""
    note: str = ""
    beyond_paper: Switch = False
    metrics: tuple[str, ...] = ("A_N", "omega")
    seeds: tuple[CountOrZero, ...] = (0, 1, 2)
    common: Options = Field(default_factory=dict)
    rows: dict[str, Options]
    columns: dict[str, Options]
    only: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    published: dict[str, dict[str, list[Any]]] = Field(default_factory=dict)


class _Quick(Config):
    """How an experiment is made small: options that are set, and shares that counts are cut to."""

    options: Options
    tasks: float
    coreset: float


def experiment_names() -> tuple[str, ...]:
    """Return the names of all experiments: the paper's, and those beyond it."""
    names = [file.name.removesuffix(".yaml") for file in _folder().iterdir()]
    return tuple(sorted(name for name in names if not name.startswith("_")))


def load_experiment(
    name_or_file: str, recipe: RecipeName = "paper", allow_import: Collection[str] = ()
) -> Experiment:
    """Return an experiment by its name, or a user's own from a YAML file.

    A recipe that a row or column names is that of its cells. The paper's own numbers of tables and
    figures are names as well, such as `table-4a`.
    """
    names = experiment_names()
    name_or_file = PAPER_NUMBERS.get(name_or_file, name_or_file)
    if name_or_file in names:
        text = (_folder() / f"{name_or_file}.yaml").read_text(encoding="utf-8")
        return _experiment(name_or_file, parse_yaml(text), name_or_file, recipe)
    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml") and not path.is_file():
        close = get_close_matches(name_or_file, names, n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise ConfigError(
            f"unknown experiment '{name_or_file}'{hint}; there are {', '.join(names)}, and your "
            "own as a YAML file"
        )
    experiment = _experiment(path.stem, read_yaml(path), str(path), recipe, allow_import)
    return replace(experiment, cells=tuple(_with_options(cell, path) for cell in experiment.cells))


def _with_options(cell: Cell, path: Path) -> Cell:
    """Return a cell of a user's file with the options of its method checked."""
    from distillmatch.methods import with_options  # noqa: PLC0415  torch takes its time

    try:
        return replace(cell, config=with_options(cell.config))
    except ConfigError as error:
        place = f"{path}: row '{cell.row}', column '{cell.column}'"
        raise ConfigError(f"{place}: {error}") from None


def at_scale(experiment: Experiment, scale: Scale) -> Experiment:
    """Return the experiment as the paper has it, or made small on the embedded data.

    A small one has the same cells, but no published figures: they are of other data.
    """
    if scale not in get_args(Scale):
        raise ConfigError(f"scale must be one of {', '.join(get_args(Scale))}, not {scale!r}")
    if scale == "paper":
        return experiment
    names = {}  # the bound stores nothing, whatever its column says
    for cell in sorted(experiment.cells, key=lambda cell: cell.config.coreset):
        counts = cell.config, _made_small(cell.config)
        names[cell.column] = _with_small_counts(cell.column, *counts)
    if len(set(names.values())) < len(names):  # as for 1 and 2 tasks, which both become 1
        names = {column: column for column in names}
    cells = tuple(
        replace(cell, column=names[cell.column], config=_made_small(cell.config), published={})
        for cell in experiment.cells
    )
    return replace(
        experiment,
        title=_with_small_counts(experiment.title, *counts),
        columns=tuple(names[column] for column in experiment.columns),
        cells=cells,
        note=QUICK_NOTE,
        scale=scale,
    )


def _with_small_counts(text: str, paper: RunConfig, small: RunConfig) -> str:
    """Return a title or the name of a column with the counts that small runs really have."""
    tasks = [_task_count(config) for config in (paper, small)]
    if all(tasks):
        text = re.sub(rf"\b{tasks[0]} tasks", f"{tasks[1]} tasks", text)
    stored = f"{paper.coreset}\\b"
    return re.sub(
        f"^{stored}$|(?<=coreset ){stored}|(?<=coreset of ){stored}", str(small.coreset), text
    )


def _task_count(config: RunConfig) -> int | None:
    if config.task_sizes is not None:
        return len(config.task_sizes)
    return config.tasks or (10 if config.order == "random" else PARENTS.get(config.source))


def at_all_scales(experiment: Experiment) -> list[Experiment]:
    """Return the experiment once for each scale."""
    return [at_scale(experiment, scale) for scale in get_args(Scale)]


def _made_small(config: RunConfig) -> RunConfig:
    quick = _quick()
    tasks = len(config.task_sizes) if config.task_sizes is not None else config.tasks
    changes: Options = {
        **{key: RunConfig.model_fields[key].default for key in LOCATION_KEYS},
        "task_sizes": None,
        "class_order": None,
        "label_fraction": None,
        "splits": "hashed",
        "tasks": tasks and max(1, round(quick.tasks * tasks)),
        "coreset": round(quick.coreset * config.coreset),
    }
    options = dict(quick.options)
    if config.unlabeled == "none":  # a method that sees no stream has no length of one
        del options["unlabeled_per_task"]
    small = config.replace(**{**changes, **options})
    # A row may be about its rate.
    rate = config.learning_rate
    return small if rate is None else small.replace(learning_rate=rate)


@cache
def _quick() -> _Quick:
    text = (_folder() / "_quick.yaml").read_text(encoding="utf-8")
    return _Quick.from_mapping(parse_yaml(text), "_quick.yaml")


def _folder() -> Any:
    return files("distillmatch.suite") / "experiments"


def _experiment(
    name: str,
    values: object,
    where: str,
    recipe: RecipeName,
    allow_import: Collection[str] = (),
) -> Experiment:
    """Build an experiment from what its file holds."""
    file = _File.from_mapping(_with_text_names(values), where)
    for metric in file.metrics:
        if metric not in METRICS:
            raise ConfigError(f"{where}: unknown metric '{metric}'; they are {', '.join(METRICS)}")
    _check_names(file, where)
    file = file.replace(common={"recipe": recipe, **file.common})
    cells = tuple(
        Cell(
            row,
            column,
            _config(file, row, column, where, allow_import),
            _published(file, row, number, where),
        )
        for row in file.rows
        for number, column in enumerate(file.columns)
        if column in file.only.get(row, file.columns)
    )
    _check_methods(cells, where)
    return Experiment(
        name=name,
        title=file.title,
        kind=file.kind,
        source=file.source,
        metrics=file.metrics,
        rows=tuple(file.rows),
        columns=tuple(file.columns),
        cells=cells,
        seeds=file.seeds,
        note=" ".join(file.note.split()),
        beyond_paper=file.beyond_paper,
        recipe=recipe,
    )


def _with_text_names(values: object) -> object:
    """Let names of rows and columns be numbers in YAML, as coreset sizes are."""
    if not isinstance(values, dict):
        return values
    named = dict(values)
    for key in ("rows", "columns", "only", "published"):
        if isinstance(named.get(key), dict):
            named[key] = {str(name): value for name, value in named[key].items()}
    if isinstance(named.get("only"), dict):
        named["only"] = {
            row: [str(one) for one in columns] if isinstance(columns, list) else columns
            for row, columns in named["only"].items()
        }
    return named


def _check_names(file: _File, where: str) -> None:
    """Refuse rows, columns and figures that do not belong to the experiment."""
    for key in ("rows", "columns", "metrics", "seeds"):
        if not getattr(file, key):
            raise ConfigError(f"{where}: {key} must not be empty")
    for key, named in (("published", file.published), ("only", file.only)):
        for row in named:
            if row not in file.rows:
                raise ConfigError(
                    f"{where}: {key} names row '{row}'; the rows are {', '.join(file.rows)}"
                )
    for row, columns in file.only.items():
        for column in columns:
            if column not in file.columns:
                raise ConfigError(
                    f"{where}: only, row '{row}', names column '{column}'; the columns are "
                    f"{', '.join(file.columns)}"
                )
    for row, figures in file.published.items():
        for metric, line in figures.items():
            if metric not in file.metrics:
                raise ConfigError(
                    f"{where}: published, row '{row}', names metric '{metric}'; the experiment's "
                    f"are {', '.join(file.metrics)}"
                )
            if len(line) != len(file.columns):
                raise ConfigError(
                    f"{where}: published, row '{row}', {metric} has {len(line)} figures for "
                    f"{len(file.columns)} columns"
                )


def _config(
    file: _File, row: str, column: str, where: str, allow_import: Collection[str]
) -> RunConfig:
    place = f"{where}: row '{row}', column '{column}'"
    values: Options = {}
    for options in (file.common, file.columns[column], file.rows[row]):
        try:
            named = with_underscores(options)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None
        before, own = values.get("options"), named.get("options")
        values |= named
        if isinstance(before, dict) and isinstance(own, dict):
            values["options"] = {**before, **own}
    if "seed" in values:
        raise ConfigError(
            f"{place}: seed {values['seed']} is given, but every cell is run with the seeds that "
            "the experiment lists as seeds"
        )
    return RunConfig.from_mapping(values, place, allow_import)


def _check_methods(cells: Iterable[Cell], where: str) -> None:
    """Refuse methods that are not installed; those given as module:name are found when run."""
    names = plugin_names(METHODS)
    for cell in cells:
        kind = f"{where}: row '{cell.row}', column '{cell.column}': method"
        refuse_unknown(cell.config.method, names, kind)


def _published(file: _File, row: str, number: int, where: str) -> dict[str, Published]:
    """Return the published figures of a cell; null where the paper has none."""
    found = {}
    for metric, line in file.published.get(row, {}).items():
        if line[number] is not None:
            found[metric] = _figure(line[number], f"{where}: published, row '{row}', {metric}")
    return found


_FIGURE = re.compile(r"\s*(-?\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?\s*")


def _figure(value: object, where: str) -> Published:
    """Read `15.6 ± 0.9`, or a mean alone."""
    match = _FIGURE.fullmatch(str(value))
    if match is None:
        raise ConfigError(f"{where}: expected a figure such as 15.6 ± 0.9, found {value!r}")
    mean, deviation = match.groups()
    return Published(float(mean), None if deviation is None else float(deviation))
