"""Checkpoint files: safetensors with plain values as JSON, verified by a hash.

The last two are kept. A new one gets a name of its own, and the oldest is removed only once the new
one is on the disk, so that one is whole whatever happens in between.
"""

import contextlib
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from distillmatch.errors import explain_disk_errors
from distillmatch.files import read_bytes, write_atomically
from distillmatch.runs.schema import RunCheckpoint, problems_of_form
from distillmatch.sources.walk import shown

FOLDER = "checkpoints"
FORMAT = "distillmatch checkpoint"
VERSION = 1
KEPT = 2
_DAMAGE = (SafetensorError, FileNotFoundError, ValueError, KeyError, TypeError)
"""Errors of reading a file that is damaged or gone."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a file: plain values, and tensors by name."""

    values: dict[str, Any]
    tensors: dict[str, Tensor]


class Checkpoints:
    """The checkpoint files in the folder of a run."""

    def __init__(self, folder: Path, schema: type[BaseModel] = RunCheckpoint) -> None:
        self.folder = folder / FOLDER
        self.schema = schema
        self._good: list[Path] = []

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove all but the last two."""
        number = max((int(path.stem) for path in self._files()), default=0) + 1
        path = self.folder / f"{number:08d}.safetensors"
        write_atomically(path, encode(checkpoint), "writing a checkpoint")
        _sync(self.folder)
        self._good = [*self._good, path][-KEPT:]
        for old in self._files():
            if old not in self._good:
                old.unlink(missing_ok=True)
        return path

    def load(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the last whole checkpoint, and what is wrong with those after it.

        A file that may not be read could well be whole: it raises `DiskError`.
        """
        problems: list[str] = []
        for path in sorted(self._files(), reverse=True):
            with explain_disk_errors("reading a checkpoint", path):
                try:
                    found = decode(path)
                    self._check(found)
                except _DAMAGE as error:
                    reason = " ".join(str(error).split())[:120] or type(error).__name__
                    problems.append(f"{shown(path)}: not a whole checkpoint ({reason})")
                    continue
            self._good = [path]
            return found, problems
        return None, problems

    def _check(self, checkpoint: Checkpoint) -> None:
        """Raise `ValueError` for a checkpoint of another kind, or one with missing parts."""
        for problem in problems_of_form(checkpoint.values, self.schema):
            raise ValueError(problem)
        stored = checkpoint.tensors.get("coreset")
        counts = checkpoint.values["engine"]["coreset"]
        if stored is None or stored.ndim != 4 or len(stored) != sum(counts):
            raise ValueError("the number of stored images is wrong")

    def clear(self) -> None:
        """Remove all checkpoints."""
        self._good = []
        for path in self._files():
            path.unlink(missing_ok=True)
        self.sweep()
        with contextlib.suppress(OSError):  # there is none, or something else in it
            self.folder.rmdir()

    def sweep(self) -> None:
        """Remove what a process left that was killed while it wrote."""
        for path in self.folder.glob(".*.safetensors.*.part"):
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        with explain_disk_errors("looking for checkpoints", self.folder):
            try:
                paths = list(self.folder.iterdir())
            except (FileNotFoundError, NotADirectoryError):
                return []
        return [path for path in paths if re.fullmatch(r"\d{8}\.safetensors", path.name)]


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the content of a checkpoint's file."""
    text, tensors = json.dumps(checkpoint.values), checkpoint.tensors
    header = {"format": FORMAT, "version": str(VERSION), "values": text}
    return to_safetensors(tensors, {**header, "checksum": checksum(text, tensors)})


def decode(path: Path) -> Checkpoint:
    """Read a checkpoint; raise `ValueError` for another file or a damaged one."""
    header, tensors = read_safetensors(path)
    if (header.get("format"), header.get("version")) != (FORMAT, str(VERSION)):
        raise ValueError(f"expected {FORMAT} version {VERSION}")
    if checksum(header["values"], tensors) != header["checksum"]:
        raise ValueError("its checksum differs")
    return Checkpoint(json.loads(header["values"]), tensors)


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a file, which may be removed while they are in use.

    `safe_open` would refuse names that are not UTF-8, and call every file missing that it may not
    open.
    """
    content = read_bytes(path)
    tensors = from_safetensors(content)
    # The length of the header, then the header in JSON; both were checked just now.
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return header.get("__metadata__") or {}, tensors


def checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """Hash the plain values and the name, type, shape and bytes of every tensor."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        # A row of one element may have any stride, and `view` takes those of 1 alone.
        row = tensor.reshape(-1).clone(memory_format=torch.contiguous_format)
        digest.update(row.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sync(folder: Path) -> None:
    """Write the folder's list of names to the disk too, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
