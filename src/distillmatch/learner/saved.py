"""A learner in a folder: `learner.json`, and the weights that it names in one safetensors file.

The weights are named by a hash of their content; `learner.json` is replaced once they are on the
disk, and the old weights go only then. So at any moment the folder holds a whole learner.
"""

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save as to_safetensors
from torch import Tensor

from distillmatch.engine import Placement
from distillmatch.errors import DistillMatchError, LearnerError
from distillmatch.files import atomic_file, read_record, write_atomically
from distillmatch.learner.explanation import Example, Explanation
from distillmatch.learner.features import Featured
from distillmatch.learner.learning import AnyLearned
from distillmatch.learner.schema import LearnerSchema
from distillmatch.learner.settings import resolve
from distillmatch.learner.trained import Trained
from distillmatch.plugins import refuse_code
from distillmatch.runs.checkpoints import checksum, read_safetensors
from distillmatch.runs.lock import FolderLock
from distillmatch.runs.machine import versions
from distillmatch.runs.schema import problems_of_form
from distillmatch.sources.walk import shown
from distillmatch.views import Normalization

Tell = Callable[[str], None]
Result = TypeVar("Result")
HEAD = "learner.json"
UNFINISHED = (".weights-", f".{HEAD}.", ".report.html.")
"""Prefixes of files that a killed process left unfinished."""
FORMAT, VERSION, OLD = "distillmatch learner", 2, 1
_DAMAGE = (
    *(SafetensorError, FileNotFoundError, ValueError, KeyError, TypeError, AttributeError),
    RuntimeError,
)
"""What is raised where a folder is not as it was written."""
_WEIGHTS = re.compile(r"weights-[0-9a-f]{32}\.safetensors")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; a folder that was made for it and stays empty is removed again."""
    if folder.exists() and not folder.is_dir():
        raise LearnerError(f"{shown(folder)}: expected a folder for the learner, found a file")
    lock = FolderLock(folder)
    try:
        yield
    finally:
        lock.release()


def write_learned(folder: Path, settings: dict[str, Any], learned: AnyLearned) -> None:
    """Write a learner into a folder whose lock the caller holds.

    The one that was there stays until the new one is whole.
    """
    own, tensors = learned.saved()
    explanation, side = learned.explanation, learned.image_size
    pictures = [example.image for example in explanation.examples]
    stacked = np.stack(pictures) if pictures else np.empty((0, side, side, 3), np.uint8)
    tensors = {**tensors, "examples": torch.from_numpy(stacked)}
    weights = folder / _name_of(tensors)
    with atomic_file(weights, "writing the learner") as file:
        file.write(to_safetensors(tensors))
    body = {
        "settings": settings,
        "method": learned.config.method,
        "network": learned.config.network,
        "labels": list(learned.labels),
        "sizes": list(learned.sizes),
        "image_size": side,
        "normalization": {"mean": learned.normalization.mean, "std": learned.normalization.std},
        "history": list(learned.history),
        "explanation": {
            "name": explanation.name,
            "seen": explanation.seen,
            "accepted": explanation.accepted,
            "by_class": list(explanation.by_class.items()),
            "examples": [[example.label, example.score] for example in explanation.examples],
        },
        "made_with": versions(),
        **own,
    }
    # As it will be read again, so that its checksum will be the same: options may hold paths.
    body = json.loads(json.dumps(body, default=str))
    record = {"format": FORMAT, "version": VERSION, "weights": weights.name}
    record |= {"checksum": _checksum_of(body), "learner": body}
    write_atomically(folder / HEAD, json.dumps(record, indent=1) + "\n", "writing the learner")
    sweep(folder, weights.name)


def sweep(folder: Path, kept: str) -> None:
    """Remove weights that `learner.json` does not name, and what a killed process left."""
    for path in folder.iterdir():
        unfinished = path.name.startswith(UNFINISHED) and path.suffix == ".part"
        if unfinished or (_WEIGHTS.fullmatch(path.name) and path.name != kept):
            path.unlink(missing_ok=True)


def read_learned(
    folder: Path, device: str, allow_import: Collection[str]
) -> tuple[dict[str, Any], AnyLearned]:
    """Return the parameters and what was learned; import only code that the user allowed."""

    def read(head: dict[str, Any]) -> tuple[dict[str, Any], AnyLearned]:
        _, tensors = read_safetensors(folder / head["weights"])
        if _name_of(tensors) != head["weights"]:
            raise ValueError("the checksum of its weights differs")
        body = head["learner"]
        settings = {**body["settings"], "device": device}
        for values in (settings, body):
            refuse_code(values, shown(folder / HEAD), allow_import)
        config, noted = resolve(settings, body), body["explanation"]
        pairs = zip(tensors["examples"].numpy(), noted["examples"], strict=True)
        examples = [Example(image, label, score) for image, (label, score) in pairs]
        by_class = dict(noted["by_class"])
        mean, std = (tuple(body["normalization"][key]) for key in ("mean", "std"))
        common = {
            "config": config,
            "placement": Placement.of(config),
            "labels": tuple(body["labels"]),
            "sizes": tuple(body["sizes"]),
            "image_size": body["image_size"],
            "normalization": Normalization(mean, std),
            "history": tuple(body["history"]),
            "explanation": Explanation(
                noted["name"], noted["seen"], noted["accepted"], by_class, examples
            ),
        }
        kind = Featured if body.get("features") else Trained
        return settings, kind.restored(body, tensors, common)

    return _reading(folder, read)


def read_head(folder: Path) -> dict[str, Any]:
    """Return `learner.json`, checked, and the `bytes` on the disk, without reading the weights."""
    return _reading(folder, lambda head: head)


def _reading(folder: Path, read: Callable[[dict[str, Any]], Result]) -> Result:
    """Return what a function reads of a learner, given its checked head.

    Another process may replace the learner meanwhile: then the newer one is read. What is not as it
    was written is refused in a sentence.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            return read(_head_of(folder))
        return read(_head_of(folder))
    except DistillMatchError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise LearnerError(f"{shown(folder)}: not a whole learner ({reason})") from None


def _head_of(folder: Path) -> dict[str, Any]:
    if not (folder / HEAD).exists():
        half = folder.is_dir() and any(_WEIGHTS.fullmatch(path.name) for path in folder.iterdir())
        found = "a half-written one" if half else "none"
        raise LearnerError(f"{shown(folder)}: expected a learner there ({HEAD}), found {found}")
    head = read_record(folder / HEAD, "learner", FORMAT, (OLD, VERSION), LearnerError)
    body = head["learner"]
    if _checksum_of(body) != head["checksum"]:
        raise ValueError("its checksum differs")
    if head["version"] == OLD:
        settings = body["settings"]
        body["accept"] = settings["accept"] = settings.pop("known_rate")
        body |= {"method": settings["method"], "network": settings["network"]}
    for problem in problems_of_form(body, LearnerSchema):
        raise ValueError(problem)
    if not _WEIGHTS.fullmatch(head["weights"]):
        raise ValueError("it names no file of weights")
    head["bytes"] = sum((folder / name).stat().st_size for name in (HEAD, head["weights"]))
    return head


def _name_of(tensors: dict[str, Tensor]) -> str:
    return f"weights-{checksum('', tensors)}.safetensors"


def _checksum_of(body: Any) -> str:
    return checksum(json.dumps(body, sort_keys=True), {})
