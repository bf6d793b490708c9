"""The configuration: one frozen, typed object that describes a run completely.

The command line, a YAML file and Python build the same object from the same flat names. What is
wrong with a value is said in one sentence that names the key and what it may be.
"""

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from distillmatch.errors import ConfigError

TaskOrder = Literal["random", "parent"]
UnlabeledKind = Literal["uniform", "positive", "negative", "random", "task"]
BadImages = Literal["skip", "stop"]

Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]


def impossible(key: str, sentence: str) -> PydanticCustomError:
    """Make the error for a combination that cannot be run; `key` is the one to change."""
    return PydanticCustomError(
        "impossible", "{key}: {sentence}", {"key": key, "sentence": sentence}
    )


class Config(BaseModel):
    """What all configuration objects share: frozen, no unknown keys, errors in one sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_sentence(error.errors()[0], type(self))) from None

    @classmethod
    def from_mapping(cls, values: object, where: str) -> Self:
        """Build the object from what a file held; `where` names the file in error messages."""
        if not isinstance(values, dict):
            came = "nothing" if values is None else f"a {type(values).__name__}"
            raise ConfigError(f"{where}: expected a mapping of keys to values, found {came}")
        try:
            return cls(**{str(key).replace("-", "_"): value for key, value in values.items()})
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    @classmethod
    def from_yaml(cls, path: Path | str) -> Self:
        """Read the object from a YAML file; keys may be written with dashes or underscores."""
        return cls.from_mapping(read_yaml(Path(path)), str(path))

    def to_yaml(self) -> str:
        """Return the whole configuration as YAML that `from_yaml` reads back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some values changed, checked as a whole."""
        return type(self)(**{**self.model_dump(), **changes})


class StreamConfig(Config):
    """Everything that determines a semi-supervised continual stream: the images and the setting."""

    source: str = Field(
        "shapes", description="where the images come from: a source's name, or your own module:name"
    )
    data_dir: Path | None = Field(None, description="folder of the source's files")
    test_dir: Path | None = Field(None, description="own images: folder of labelled test images")
    unlabeled_dirs: tuple[Path, ...] = Field(
        (), description="own images: folders of unlabelled images, nested as they come"
    )
    tree: Path | None = Field(
        None, description="own images: YAML file, super-class to parent to list of classes"
    )
    image_size: Annotated[int, Field(strict=True, ge=8, le=512)] | None = Field(
        None, description="side in pixels for sources that can choose it"
    )
    bad_images: BadImages = Field(
        "stop", description="own images: what to do about files that are no usable image"
    )
    cache_dir: Path | None = Field(
        None, description="where decoded images are kept for later starts"
    )
    order: TaskOrder = Field(
        "random",
        description="classes shuffled and cut into tasks, or one task per parent class "
        "(default: random; parent where the unlabelled stream follows super-classes)",
    )
    tasks: Count | None = Field(
        None, description="number of tasks (default: 10; with order parent, one per parent class)"
    )
    task_sizes: tuple[Count, ...] | None = Field(
        None, description="classes in each task, where they are not to be equal"
    )
    class_order: tuple[str, ...] | None = Field(
        None, description="class names in the order they are learned, instead of a shuffle"
    )
    unlabeled: UnlabeledKind = Field("uniform", description="classes in a task's unlabelled stream")
    random_classes: Count | None = Field(
        None, description="classes in a task's stream with unlabeled random (default: 20)"
    )
    unlabeled_per_task: CountOrZero | None = Field(
        None, description="at most so many unlabelled images a task"
    )
    labels_per_class: Count | None = Field(
        None, description="labelled images of each class (default: a fifth of the class)"
    )
    label_fraction: Share | None = Field(
        None, description="labelled share of each class, instead of labels per class"
    )
    coreset: CountOrZero = Field(0, description="images the learner may store over all tasks")
    seed: CountOrZero = Field(1, description="decides everything that is random")

    @model_validator(mode="before")
    @classmethod
    def _follow_super_classes(cls, values: Any) -> Any:
        """Positive and negative streams are defined by a task's parent: they imply that order."""
        if isinstance(values, dict) and values.get("unlabeled") in ("positive", "negative"):
            return {"order": "parent", **values}
        return values

    @model_validator(mode="after")
    def _refuse_impossible_combinations(self) -> Self:
        if self.unlabeled in ("positive", "negative") and self.order != "parent":
            raise impossible(
                "order", f"must be 'parent' with unlabeled '{self.unlabeled}', not '{self.order}'"
            )
        if self.labels_per_class is not None and self.label_fraction is not None:
            raise impossible("label_fraction", "cannot be given together with labels_per_class")
        if self.random_classes is not None and self.unlabeled != "random":
            raise impossible(
                "random_classes", f"goes with unlabeled 'random' only, not '{self.unlabeled}'"
            )
        if self.order == "parent" and self.task_sizes is not None:
            raise impossible("task_sizes", "goes with order 'random' only, not 'parent'")
        if self.order == "parent" and self.class_order is not None:
            raise impossible("class_order", "goes with order 'random' only, not 'parent'")
        sizes = self.task_sizes
        if sizes is not None and self.tasks not in (None, len(sizes)):
            raise impossible("task_sizes", f"lists {len(sizes)} tasks but tasks is {self.tasks}")
        if self.source != "folder" and ":" not in self.source:
            for key in ("test_dir", "tree"):
                if getattr(self, key) is not None:
                    raise impossible(key, f"goes with source 'folder' only, not '{self.source}'")
            if self.unlabeled_dirs:
                raise impossible(
                    "unlabeled_dirs", f"goes with source 'folder' only, not '{self.source}'"
                )
        return self


def read_yaml(path: Path) -> object:
    """Return what a YAML file holds, or say in one sentence why it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected a text file in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: not valid YAML") from None


def allowed_values(annotation: object) -> tuple[object, ...]:
    """Return the values of a field that is a choice from a list, else nothing."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(value for part in get_args(annotation) for value in allowed_values(part))


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}


def _sentence(error: ErrorDetails, config: type[Config]) -> str:
    """Say one validation error so that its key, the wrong value and the right ones are named."""
    context = error.get("ctx", {})
    if error["type"] == "impossible":
        return f"{context['key']} {context['sentence']}"
    key = str(error["loc"][0]) if error["loc"] else "the configuration"
    if error["type"] == "extra_forbidden":
        close = get_close_matches(key, config.model_fields, n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        return f"unknown key '{key}'{hint}; the keys are {', '.join(config.model_fields)}"
    came = error["input"]
    field = config.model_fields.get(key)
    choices = allowed_values(field.annotation) if field else ()
    if choices:
        return f"{key} must be one of {', '.join(map(repr, choices))}, not {came!r}"
    expected = _EXPECTED.get(error["type"])
    if expected is None:
        return f"{key}: {error['msg']}, not {came!r}"
    return f"{key} must be {expected.format(**context)}, not {came!r}"
