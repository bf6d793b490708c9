"""YAML that is safe to read: no key twice, no aliases, `1e-3` is a number."""

import re
from pathlib import Path
from typing import Any

import yaml

from distillmatch.errors import ConfigError
from distillmatch.files import read_text

MOST_BITS = 1000
"""The most bits of a whole number."""


def read_yaml(path: Path) -> object:
    """Return what a YAML file holds, or say in one sentence why it cannot be read."""
    try:
        return parse_yaml(read_text(path))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected a text file in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = error.problem if isinstance(error, _Refused) else "not valid YAML"
        raise ConfigError(f"{path}{where}: {problem}") from None


def parse_yaml(text: str) -> object:
    """Return what YAML text says, or raise `yaml.YAMLError`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except ValueError as error:  # of a date that does not exist, such as 2020-13-45
        raise yaml.YAMLError(str(error)) from None
    except RecursionError:
        raise _Refused(problem="nested too deeply") from None


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that is refused all the same."""


class _Loader(yaml.SafeLoader):
    """Refuses keys that are given twice, and aliases, of which a short file can make a huge one.

    Reads `1e-3` as a number, which YAML 1.1 takes for text because it has no point.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _Refused(problem="an alias, which is not read here", problem_mark=mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        if value.bit_length() > MOST_BITS:  # which Python would refuse to print
            raise _Refused(problem="a number of too many digits", problem_mark=node.start_mark)
        return value

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            name = key.tag, str(key.value)
            if name in lines:
                problem = f"key '{key.value}' is given twice, first in line {lines[name]}"
                raise _Refused(problem=problem, problem_mark=key.start_mark)
            lines[name] = key.start_mark.line + 1
        return node


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
