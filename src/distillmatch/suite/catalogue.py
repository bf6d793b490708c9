"""The experiments: every table and figure of the paper, some beyond it, and a user's own, as data.

An experiment is rows against columns. The run of a cell is the experiment's common configuration,
with the column's over it and the row's over that; beside it stands what was published.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from distillmatch.config import (
    LOCATION_KEYS,
    Config,
    RunConfig,
    parse_yaml,
    read_yaml,
    with_underscores,
)
from distillmatch.config.base import CountOrZero, Switch, impossible
from distillmatch.config.recipe import RecipeName
from distillmatch.errors import ConfigError, did_you_mean
from distillmatch.plugins import METHODS, plugin_names, refuse_unknown

Metric = Literal["A_N", "omega", "bwt", "fgt", "auroc", "equivalent_coreset", "memory_saving"]
"""What a cell can state: figures of a result, the mean AUROC over tasks, and for figures of memory
the images that Base must store to match a method, in all and for each unlabeled image of a task.
"""
Scale = Literal["paper", "quick"]
QUICK_NOTE = (
    "Made small on the embedded data, with fewer tasks, stored images, and steps: to try commands, "
    "not to compare methods. Nothing was published of it."
)
PARENTS = {"cifar100": 20, "shapes": 12}
"""Tasks of a stream with a task for each parent class."""
PAPER_NUMBERS: dict[str, tuple[str, ...]] = {
    "table-2": ("table-2a", "table-2b", "table-2c"),
    "table-3": ("table-3a", "table-3b"),
    "table-4": ("ablation-random", "ablation-parent"),
    "table-4a": ("ablation-random",),
    "table-4b": ("ablation-parent",),
    **{f"table-{number}{part}": (f"table-{number}",) for number in (6, 7) for part in "abcd"},
    **{f"table-9{part}": ("gd-calibration",) for part in ("", "a", "b", "c")},
    "figure-4": ("ablation-random", "ablation-parent"),
    "figure-4a": ("ablation-random",),
    "figure-4b": ("ablation-parent",),
    "figure-5": ("table-6", "table-7"),
    **{f"figure-5{part}": ("table-6" if part < "e" else "table-7",) for part in "abcdefgh"},
    "figure-6": ("table-8",),
    **{f"figure-7{part}": ("auroc",) for part in ("", "a", "b")},
}
"""The paper's numbers of tables and figures that go by other names here."""
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


_FIGURE = re.compile(r"\s*(-?\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?\s*")


def _figure(value: object) -> Published | None:
    """Read `15.6 ± 0.9`, or a mean alone; null where the paper has no figure."""
    if value is None:
        return None
    match = _FIGURE.fullmatch(str(value))
    if match is None:
        raise impossible("published", f"must have figures such as 15.6 ± 0.9, not {value!r}")
    mean, deviation = match.groups()
    return Published(float(mean), None if deviation is None else float(deviation))


Name = Annotated[str, BeforeValidator(str)]
"""Of a row or column, which may be a number in YAML, as coreset sizes are."""
Figure = Annotated[Published | None, BeforeValidator(_figure)]


class _File(Config):
    """What a YAML file of an experiment may hold."""

    title: str
    kind: Literal["table", "figure"] = "table"
    source: str = ""
    note: str = ""
    beyond_paper: Switch = False
    metrics: tuple[Metric, ...] = ("A_N", "omega")
    seeds: tuple[CountOrZero, ...] = (0, 1, 2)
    common: Options = Field(default_factory=dict)
    rows: dict[Name, Options]
    columns: dict[Name, Options]
    only: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)
    published: dict[Name, dict[str, list[Figure]]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse rows, columns and figures that do not belong to the experiment."""
        for key in ("rows", "columns", "metrics", "seeds"):
            if not getattr(self, key):
                raise impossible(key, "must not be empty")
        for key, rows in (("published", self.published), ("only", self.only)):
            _refuse_other(key, "row", rows, self.rows)
        for row, columns in self.only.items():
            _refuse_other(f"only, row '{row}',", "column", columns, self.columns)
        for row, figures in self.published.items():
            _refuse_other(f"published, row '{row}',", "metric", figures, self.metrics)
            for metric, line in figures.items():
                if len(line) != len(self.columns):
                    raise impossible(
                        f"published, row '{row}', {metric}",
                        f"has {len(line)} figures for {len(self.columns)} columns",
                    )
        return self


def _refuse_other(where: str, kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise impossible(where, f"names {kind} '{name}'; the {kind}s are {', '.join(known)}")


class _Quick(Config):
    """How an experiment is made small: options that are set, and shares that counts are cut to."""

    options: Options
    tasks: float
    coreset: float


def experiment_names() -> tuple[str, ...]:
    """Return the names of all experiments: the paper's, and those beyond it."""
    names = [file.name.removesuffix(".yaml") for file in _folder().iterdir()]
    return tuple(sorted(name for name in names if not name.startswith("_")))


def experiments_called(name_or_file: str) -> tuple[str, ...]:
    """Return the experiments that a name means: itself, or those of the paper's number."""
    return PAPER_NUMBERS.get(name_or_file, (name_or_file,))


def load_experiment(
    name_or_file: str, recipe: RecipeName = "paper", allow_import: Collection[str] = ()
) -> Experiment:
    """Return an experiment by its name, or a user's own from a YAML file.

    A recipe that a row or column names is that of its cells. The paper's own numbers of tables and
    figures are names as well, such as `table-4a`.
    """
    names, named = experiment_names(), experiments_called(name_or_file)
    if len(named) > 1:
        raise ConfigError(f"'{name_or_file}' is several experiments: {', '.join(named)}")
    if named[0] in names:
        text = (_folder() / f"{named[0]}.yaml").read_text(encoding="utf-8")
        return _experiment(named[0], parse_yaml(text), named[0], recipe)
    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml") and not path.is_file():
        hint = did_you_mean(name_or_file, [*names, *PAPER_NUMBERS])
        raise ConfigError(
            f"unknown experiment '{name_or_file}'{hint}; there are {', '.join(names)}, the paper's "
            "numbers of tables and figures, and your own as a YAML file"
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
        "splits": "hashed",
        "tasks": tasks and max(1, round(quick.tasks * tasks)),
        "coreset": round(quick.coreset * config.coreset),
    }
    options = dict(quick.options)
    if config.unlabeled == "none":  # a method that sees no stream has no length of one
        del options["unlabeled_per_task"]
    if config.label_fraction is not None:  # a column may be about the share of labels
        del options["labels_per_class"]
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
    file = _File.from_mapping(values, where)
    common, methods, cells = {"recipe": recipe, **file.common}, plugin_names(METHODS), []
    for row in file.rows:
        for number, column in enumerate(file.columns):
            if column not in file.only.get(row, file.columns):
                continue
            place = f"{where}: row '{row}', column '{column}'"
            options = (common, file.columns[column], file.rows[row])
            config = _config(options, place, allow_import)
            # One that is given as module:name is found when it is run.
            refuse_unknown(config.method, methods, f"{place}: method")
            lines = file.published.get(row, {}).items()
            figures = {metric: line[number] for metric, line in lines}
            published = {metric: one for metric, one in figures.items() if one is not None}
            cells.append(Cell(row, column, config, published))
    return Experiment(
        name=name,
        title=file.title,
        kind=file.kind,
        source=file.source,
        metrics=file.metrics,
        rows=tuple(file.rows),
        columns=tuple(file.columns),
        cells=tuple(cells),
        seeds=file.seeds,
        note=" ".join(file.note.split()),
        beyond_paper=file.beyond_paper,
        recipe=recipe,
    )


def _config(parts: Iterable[Options], place: str, allow_import: Collection[str]) -> RunConfig:
    """Put together what is common, the column's and the row's options; later ones win."""
    values: Options = {}
    for options in parts:
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
