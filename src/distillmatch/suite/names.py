"""What a run is called, and the upper bound that it is compared with."""

import json
import re
from functools import cache
from hashlib import sha256
from typing import Any, get_args

from distillmatch.config import RunConfig
from distillmatch.config.stream import UnlabeledKind

BOUND = "offline"
LONGEST = 90
"""Characters of a name; file systems allow 255 bytes, and people read less."""
_SAID = ("source", "splits", "order", "tasks", "unlabeled", "coreset", "method", "recipe", "seed")
"""What the beginning and the end of a name say."""
_RESERVED = re.compile(
    rf"(random|parent|coreset|seed)\d*|authors|stratified|{'|'.join(get_args(UnlabeledKind))}"
)
"""Words that mean something in a name."""


def bound_config(config: RunConfig) -> RunConfig:
    """Return the upper bound of a run: all labeled images alone, same recipe and training."""
    return config.replace(
        method=BOUND,
        options={},
        unlabeled="none",
        random_classes=None,
        unlabeled_per_task=None,
        coreset=0,
        stored_share=None,
        learning_rate=None,
        strong_labels=False,
        weight_averaging=None,
        unlabeled_batch=_defaults(config.source)["unlabeled_batch"],
    )


def run_name(config: RunConfig) -> str:
    """Return the name of a run: setting, method, what differs from the defaults, and seed.

    It can name a file anywhere, and two different runs never share one: what words cannot say
    briefly or without doubt is said by a digest of the configuration.
    """
    values, usual = config.identity(), _defaults(config.source)
    said, options = {key: values[key] for key in _SAID}, dict(sorted(values.pop("options").items()))
    differing = {
        key: value for key, value in values.items() if key not in said and value != usual[key]
    }
    setting = [
        said["source"],
        said["splits"] if said["splits"] != "hashed" else "",
        f"{said['order']}{said['tasks'] or ''}",
        said["unlabeled"] if said["unlabeled"] != "none" else "",
        f"coreset{said['coreset']}" if said["coreset"] else "",
        said["method"],
        "as-written" if said["recipe"] == "as-written" else "",
    ]
    head, seed = "-".join(filter(None, setting)), f"seed{said['seed']}"
    words = [f"{key}={_word(value)}" for key, value in (*differing.items(), *options.items())]
    name = "-".join([head, *words, seed])
    is_clear = (
        all(_is_plain(said[key]) for key in ("source", "method"))
        and all(word.count("=") == 1 for word in words)
        and not options.keys() & values.keys()
    )
    if is_clear and len(name) <= LONGEST and re.fullmatch(r"[a-z0-9_=.,-]+", name):
        return name
    content = json.dumps({**said, **differing, "options": options}, sort_keys=True)
    head = re.sub(r"[^a-z0-9]+", "-", head.lower())[: LONGEST // 2].strip("-")
    return "-".join([head, f"config={sha256(content.encode()).hexdigest()[:16]}", seed[:24]])


def _is_plain(text: str) -> bool:
    """Return whether a source or method cannot be taken for another part of a run's name."""
    is_word = re.fullmatch(r"[a-z0-9]+(-[a-z]+)*", text) and "as-written" not in text
    return bool(is_word) and not any(map(_RESERVED.fullmatch, text.split("-")))


@cache
def _defaults(source: str) -> dict[str, Any]:
    return RunConfig(source=source).identity()


def _word(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return ",".join(map(str, value))
    # What is no safe word here makes the whole name one with a digest.
    return value if isinstance(value, str) else json.dumps(value)
