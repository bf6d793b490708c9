"""The base of all configurations: frozen, typed, wrong values refused in one sentence."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from distillmatch.config.yaml_files import read_yaml
from distillmatch.errors import ConfigError, did_you_mean, kind_of
from distillmatch.plugins import refuse_code


def _refuse_impossible(path: Any) -> Any:
    """Refuse what no file is called, and an empty text, which would be the current folder."""
    try:
        if path == "" or b"\0" in os.fsencode(str(path)):
            raise UnicodeError
    except UnicodeError:
        raise PydanticCustomError("path_type", "not a path") from None
    return path


Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
ZeroToOne = Annotated[float, Field(strict=True, ge=0, le=1)]
Decay = Annotated[float, Field(strict=True, gt=0, lt=1)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1e38, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, le=1e38, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True)]
Place = Annotated[Path, BeforeValidator(_refuse_impossible)]


def impossible(key: str, sentence: str) -> PydanticCustomError:
    """Make the error for a combination that cannot be run; `key` is the one to change."""
    writable = sentence.encode("utf-8", "backslashreplace").decode()  # pydantic takes no other
    return PydanticCustomError(
        "impossible", "{key}: {sentence}", {"key": key, "sentence": writable}
    )


class Config(BaseModel):
    """A frozen set of typed options that refuses unknown keys and wrong values."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_sentence(error.errors()[0], type(self))) from None

    @classmethod
    def from_mapping(cls, values: object, where: str, allow_import: Collection[str] = ()) -> Self:
        """Build the configuration from the content of a file, which messages call `where`.

        Your own code that the file names, as `module:name`, must be in `allow_import`.
        """
        named = with_underscores(values, where)
        refuse_code(named, where, allow_import)
        try:
            return cls(**named)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    @classmethod
    def from_yaml(cls, path: Path | str, allow_import: Collection[str] = ()) -> Self:
        """Read the configuration from a YAML file; keys may have dashes or underscores."""
        return cls.from_mapping(read_yaml(Path(path)), str(path), allow_import)

    def to_yaml(self) -> str:
        """Return the whole configuration as YAML that `from_yaml` reads."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some values changed, checked as a whole."""
        return type(self)(**{**self.model_dump(), **changes})


def with_underscores(values: object, where: str) -> dict[str, Any]:
    """Return the keys and values of a file with underscores for dashes in its keys."""
    if not isinstance(values, dict):
        came = "nothing" if values is None else kind_of(values)
        raise ConfigError(f"{where}: expected a mapping of keys to values, found {came}")
    named: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name in named:
            raise ConfigError(f"{where}: {name} is given twice, with dashes and with underscores")
        named[name] = value
    return named


def allowed_values(annotation: object) -> tuple[object, ...]:
    """Return the values of a field that is a choice from a list, else nothing."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(value for part in get_args(annotation) for value in allowed_values(part))


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "dict_type": "names with values",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
}


def complaint(error: ErrorDetails) -> str:
    """Return what a value must be, and what came, as the end of a sentence about its key."""
    expected, came = _EXPECTED.get(error["type"]), f"{error['input']!r:.200}"
    if expected is None:
        return f"cannot be {came}: {error['msg']}"
    return f"must be {expected.format(**error.get('ctx', {}))}, not {came}"


def _sentence(error: ErrorDetails, config: type[Config]) -> str:
    """Name the key of a validation error, the wrong value and the right ones."""
    if error["type"] == "impossible":
        return "{key} {sentence}".format(**error["ctx"])
    key = str(error["loc"][0]) if error["loc"] else "the configuration"
    if error["type"] == "extra_forbidden":
        hint = did_you_mean(key, config.model_fields)
        return f"unknown key '{key}'{hint}; the keys are {', '.join(config.model_fields)}"
    if error["type"] == "missing":
        return f"{key} is missing"
    field = config.model_fields.get(key)
    if choices := allowed_values(field.annotation) if field else ():
        return f"{key} must be one of {str([*choices])[1:-1]}, not {error['input']!r:.200}"
    return f"{key} {complaint(error)}"
