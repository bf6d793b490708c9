"""Experiments as data: every table and figure of the paper, some beyond it, and a user's own.

An experiment is rows against columns. The configuration of a cell is the experiment's common one,
updated by the column's options and then by the row's; beside it stands what was published.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

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

Options = dict[str, Any]
Metric = Literal["A_N", "omega", "bwt", "fgt", "auroc", "equivalent_coreset", "memory_saving"]
"""What a cell can state: figures of a result, the mean AUROC over tasks, and for figures of memory
the images that Base must store to match a method, in all and for each unlabeled image of a task.
"""
Scale = Literal["paper", "quick"]
FOLDER = files("distillmatch.suite") / "experiments"


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


def _figure(value: object) -> Published | None:
    """Read `15.6 ± 0.9`, or a mean alone; null where the paper has no figure."""
    if value is None:
        return None
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?\s*", str(value))
    if match is None:
        raise impossible("published", f"must have figures such as 15.6 ± 0.9, not {value!r}")
    return Published(float(match[1]), None if match[2] is None else float(match[2]))


Name = Annotated[str, BeforeValidator(str)]
"""Of a row or column, which may be a number in YAML, as coreset sizes are."""
OneLine = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
Figures = list[Annotated[Published | None, BeforeValidator(_figure)]]


class _File(Config):
    """What a YAML file of an experiment may hold."""

    title: str
    kind: Literal["table", "figure"] = "table"
    source: str = ""
    note: OneLine = ""
    beyond_paper: Switch = False
    metrics: tuple[Metric, ...] = Field(("A_N", "omega"), min_length=1)
    seeds: tuple[CountOrZero, ...] = Field((0, 1, 2), min_length=1)
    common: Options = Field(default_factory=dict)
    rows: dict[Name, Options] = Field(min_length=1)
    columns: dict[Name, Options] = Field(min_length=1)
    only: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)
    published: dict[Name, dict[str, Figures]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse rows, columns and figures that do not belong to the experiment."""
        named: list[tuple[str, str, Iterable[str], Collection[str]]] = [
            ("only", "row", self.only, self.rows),
            ("published", "row", self.published, self.rows),
            *((f"only, row '{r}',", "column", c, self.columns) for r, c in self.only.items()),
            *(
                (f"published, row '{row}',", "metric", figures, self.metrics)
                for row, figures in self.published.items()
            ),
        ]
        for where, kind, names, known in named:
            for name in names:
                if name not in known:
                    said = f"names {kind} '{name}'; the {kind}s are {', '.join(known)}"
                    raise impossible(where, said)
        for row, figures in self.published.items():
            for metric, line in figures.items():
                if len(line) != len(self.columns):
                    said = f"has {len(line)} figures for {len(self.columns)} columns"
                    raise impossible(f"published, row '{row}', {metric}", said)
        return self

    def made_cells(self, where: str, recipe: RecipeName, allow: Collection[str]) -> Iterable[Cell]:
        """Yield the cells, row by row; a recipe that a row or column names is that of its cells."""
        methods = plugin_names(METHODS)
        for row in self.rows:
            for number, column in enumerate(self.columns):
                if column not in self.only.get(row, self.columns):
                    continue
                place = f"{where}: row '{row}', column '{column}'"
                parts = {"recipe": recipe, **self.common}, self.columns[column], self.rows[row]
                config = RunConfig.from_mapping(_merged(parts, place), place, allow)
                refuse_unknown(config.method, methods, f"{place}: method")
                lines = self.published.get(row, {}).items()
                figures = {metric: one for metric, line in lines if (one := line[number])}
                yield Cell(row, column, config, figures)


class Experiment(_File):
    """A table or figure: its cells, row by row, and where in the paper it is.

    One that is `beyond_paper` asks a question of its own; its first row is what the others are
    compared with.
    """

    name: str
    cells: tuple[Cell, ...]


def _merged(parts: Iterable[Options], place: str) -> Options:
    """Merge options, those of a method too; later ones win."""
    values: Options = {}
    for part in parts:
        named = with_underscores(part, place)
        options = [one.get("options", {}) for one in (values, named)]
        values |= named
        if all(isinstance(one, dict) for one in options) and any(options):
            values["options"] = options[0] | options[1]
    if "seed" in values:
        raise ConfigError(
            f"{place}: seed {values['seed']} is given, but every cell is run with the seeds that "
            "the experiment lists as seeds"
        )
    return values


@cache
def experiment_names() -> tuple[str, ...]:
    """Return the names of all experiments: the paper's, and those beyond it."""
    names = [file.name.removesuffix(".yaml") for file in FOLDER.iterdir()]
    return tuple(sorted(name for name in names if not name.startswith("_")))


@cache
def _content(name: str) -> Any:
    """Return what a YAML file of the package holds."""
    return parse_yaml((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


def experiments_called(name_or_file: str) -> tuple[str, ...]:
    """Return the experiments that a name means: itself, or those of the paper's number."""
    return tuple(_content("_paper_numbers").get(name_or_file, [name_or_file]))


def load_experiment(
    name_or_file: str, recipe: RecipeName = "paper", allow_import: Collection[str] = ()
) -> Experiment:
    """Return an experiment by its name, or a user's own from a YAML file.

    The paper's own numbers of tables and figures are names as well, such as `table-4a`.
    """
    names, named = experiment_names(), experiments_called(name_or_file)
    if len(named) > 1:
        raise ConfigError(f"'{name_or_file}' is several experiments: {', '.join(named)}")
    if named[0] in names:
        return _experiment(named[0], _content(named[0]), named[0], recipe, ())
    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml") and not path.is_file():
        hint = did_you_mean(name_or_file, [*names, *_content("_paper_numbers")])
        raise ConfigError(
            f"unknown experiment '{name_or_file}'{hint}; there are {', '.join(names)}, the paper's "
            "numbers of tables and figures, and your own as a YAML file"
        )
    experiment = _experiment(path.stem, read_yaml(path), str(path), recipe, allow_import)
    cells = tuple(_with_options(cell, path) for cell in experiment.cells)
    return experiment.model_copy(update={"cells": cells})


def _experiment(
    name: str, content: object, where: str, recipe: RecipeName, allow: Collection[str]
) -> Experiment:
    file = _File.from_mapping(content, where)
    cells = tuple(file.made_cells(where, recipe, allow))
    return Experiment.model_construct(**dict(file), name=name, cells=cells)


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

    A small one has the same cells, but no published figures: they are of other data. Its names say
    how many tasks and stored images there really are.
    """
    if scale not in get_args(Scale):
        raise ConfigError(f"scale must be one of {', '.join(get_args(Scale))}, not {scale!r}")
    if scale == "paper":
        return experiment
    quick = _content("_quick")
    columns = {cell.column: _with_small_counts(cell.column, quick) for cell in experiment.cells}
    if len(set(columns.values())) < len(columns):  # as for 1 and 2 tasks, which both become 1
        columns = {column: column for column in columns}
    cells = tuple(
        Cell(cell.row, columns[cell.column], _made_small(cell.config, quick), {})
        for cell in experiment.cells
    )
    title, note = _with_small_counts(experiment.title, quick), " ".join(quick["note"].split())
    return experiment.model_copy(update={"title": title, "note": note, "cells": cells})


def at_all_scales(experiment: Experiment) -> list[Experiment]:
    """Return the experiment once for each scale."""
    return [at_scale(experiment, scale) for scale in get_args(Scale)]


def _made_small(config: RunConfig, quick: Options) -> RunConfig:
    tasks = len(config.task_sizes) if config.task_sizes is not None else config.tasks
    changes: Options = {
        **{key: RunConfig.model_fields[key].default for key in LOCATION_KEYS},
        "task_sizes": None,
        "class_order": None,
        "splits": "hashed",
        "tasks": tasks and _small_tasks(tasks, quick),
        "coreset": round(quick["coreset"] * config.coreset),
        **quick["options"],
    }
    if config.unlabeled == "none":  # a method that sees no stream has no length of one
        del changes["unlabeled_per_task"]
    if config.label_fraction is not None:  # a column may be about the share of labels
        del changes["labels_per_class"]
    if config.learning_rate is not None:  # a row may be about its rate
        del changes["learning_rate"]
    return config.replace(**changes)


def _small_tasks(tasks: int, quick: Options) -> int:
    return max(1, round(float(quick["tasks"]) * tasks))


def _with_small_counts(text: str, quick: Options) -> str:
    """Return a title or the name of a column with the counts that small runs have."""
    text = re.sub(r"\d+(?= tasks)", lambda found: str(_small_tasks(int(found[0]), quick)), text)
    stored = r"^\d+$|(?<=coreset )\d+|(?<=coreset of )\d+"
    return re.sub(stored, lambda found: str(round(quick["coreset"] * int(found[0]))), text)
