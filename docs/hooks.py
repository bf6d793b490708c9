"""Tables of options, made from their types while the site is built."""

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from distillmatch.config import RunConfig, StreamConfig
from distillmatch.methods.registry import find_method, method_names

PLACE = "<!-- options of {name} -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put a table in each place for one."""
    stream, run = StreamConfig.model_fields, RunConfig.model_fields
    tables: dict[str, Mapping[str, FieldInfo]] = {
        "streams": stream,
        "runs": {name: field for name, field in run.items() if name not in stream},
        **{name: find_method(name).Options.model_fields for name in method_names()},
    }
    for name, fields in tables.items():
        markdown = markdown.replace(PLACE.format(name=name), table(fields))
    return markdown


def table(fields: Mapping[str, FieldInfo]) -> str:
    """Return the options with their defaults, unless the description says them."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for name, field in fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "" if default in (None, (), {}) else f"`{default}`"
        lines.append(f"| `{name}` | {shown} | {field.description} |")
    return "\n".join(lines)
