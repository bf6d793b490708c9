"""What all configuration objects share: frozen, typed, wrong values refused in one sentence."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from distillmatch.errors import ConfigError, kind_of
from distillmatch.files import read_text
from distillmatch.plugins import refuse_code

Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Decay = Annotated[float, Field(strict=True, gt=0, lt=1)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True)]


def impossible(key: str, sentence: str) -> PydanticCustomError:
    """Make the error for a combination that cannot be run; `key` is the one to change."""
    return PydanticCustomError(
        "impossible", "{key}: {sentence}", {"key": key, "sentence": sentence}
    )


class Config(BaseModel):
    """What all configuration objects share: frozen, no unknown keys, errors in one sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_sentence(error.errors()[0], type(self))) from None

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_impossible_paths(cls, value: Any, info: ValidationInfo) -> Any:
        """An empty text would be the current folder, which nobody means by it."""
        key = str(info.field_name)
        given = value if isinstance(value, list | tuple) else (value,)
        if _takes_path(cls.model_fields[key].annotation):
            for path in given:
                if path == "" or "\0" in str(path):
                    raise impossible(key, f"must be a path, not {path!r}")
        return value

    @classmethod
    def from_mapping(cls, values: object, where: str, allow_import: Collection[str] = ()) -> Self:
        """Build the object from what a file held; `where` names the file in error messages.

        Code of one's own that the file names, as `module:name`, must be in `allow_import`.
        """
        if not isinstance(values, dict):
            came = "nothing" if values is None else kind_of(values)
            raise ConfigError(f"{where}: expected a mapping of keys to values, found {came}")
        refuse_code(values, where, allow_import)
        try:
            return cls(**with_underscores(values))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    @classmethod
    def from_yaml(cls, path: Path | str, allow_import: Collection[str] = ()) -> Self:
        """Read the object from a YAML file; keys may be written with dashes or underscores."""
        return cls.from_mapping(read_yaml(Path(path)), str(path), allow_import)

    def to_yaml(self) -> str:
        """Return the whole configuration as YAML that `from_yaml` reads back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some values changed, checked as a whole."""
        return type(self)(**{**self._kept(changes), **changes})

    def _kept(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return the values that stay as they are when others change."""
        return self.model_dump()


def with_underscores(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what a file held, its keys with underscores for dashes; both at once are refused."""
    named: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name in named:
            raise ConfigError(f"{name} is given twice, with dashes and with underscores")
        named[name] = value
    return named


def read_yaml(path: Path) -> object:
    """Return what a YAML file holds, or say in one sentence why it cannot be read."""
    try:
        text = read_text(path)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected a text file in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = error.problem if isinstance(error, _Refused) else "not valid YAML"
        raise ConfigError(f"{path}{where}: {problem}") from None


MOST_VALUES = 100_000
"""Values of a YAML file with all its aliases written out; more are meant to harm."""


class _Refused(yaml.MarkedYAMLError):
    """A key that is given twice, of which Python would keep the last, or far too many values."""


class _Loader(yaml.SafeLoader):
    """Refuses keys that are given twice, and reads `1e-3` as a number.

    YAML 1.1 takes that for text because it has no point.
    """

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _written_out(node, {}) > MOST_VALUES:
            raise _Refused(problem="far too many values", problem_mark=node.start_mark)
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            first = lines.get((key.tag, key.value))
            if first is not None:
                raise _Refused(
                    problem=f"key '{key.value}' is given twice, first in line {first}",
                    problem_mark=key.start_mark,
                )
            lines[key.tag, key.value] = key.start_mark.line + 1
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values below a node, those of an alias each time."""
    if id(node) not in known:
        known[id(node)] = MOST_VALUES + 1  # of a node that contains itself
        below: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            below = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            below = node.value
        known[id(node)] = 1 + sum(_written_out(one, known) for one in below)
    return known[id(node)]


def parse_yaml(text: str) -> object:
    """Return what YAML text says."""
    try:
        return yaml.load(text, Loader=_Loader)
    except ValueError as error:  # of a date that there is none of, 2020-13-45
        raise yaml.YAMLError(str(error)) from None
    except RecursionError:
        raise _Refused(problem="nested too deeply") from None


def allowed_values(annotation: object) -> tuple[object, ...]:
    """Return the values of a field that is a choice from a list, else nothing."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(value for part in get_args(annotation) for value in allowed_values(part))


def _takes_path(annotation: object) -> bool:
    """Tell whether a field's values are paths, alone or in a list."""
    return annotation is Path or any(map(_takes_path, get_args(annotation)))


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "dict_type": "names with values",
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
    if error["type"] == "missing":
        return f"{key} is missing"
    came = error["input"]
    field = config.model_fields.get(key)
    choices = allowed_values(field.annotation) if field else ()
    if choices:
        return f"{key} must be one of {', '.join(map(repr, choices))}, not {came!r}"
    expected = _EXPECTED.get(error["type"])
    if expected is None:
        return f"{key}: {error['msg']}, not {came!r}"
    return f"{key} must be {expected.format(**context)}, not {came!r}"
