"""Checkpoint files: safetensors with the plain values in JSON beside them, checked by a hash.

The last two are kept. A new one gets a name of its own and the oldest goes only once the new one is
on the disk, so that whatever happens in between, one that is whole is there.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from distillmatch.errors import explain_disk_errors
from distillmatch.files import atomic_file, read_bytes
from distillmatch.runs.schema import RunCheckpoint
from distillmatch.sources.walk import shown

FOLDER = "checkpoints"
FORMAT = "distillmatch checkpoint"
VERSION = 1
KEPT = 2
HASHED_BYTES = 4_000_000
"""Small tensors are hashed so many bytes at a time: a thread waits for Python's lock after each."""
_DAMAGE = (SafetensorError, FileNotFoundError, ValueError, KeyError, TypeError)
"""What reading a file raises that is not as it was written, or is gone."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a file holds: plain values, and tensors by name."""

    values: dict[str, Any]
    tensors: dict[str, Tensor]


class AbandonedError(Exception):
    """A checkpoint that nobody waits for any more was not written."""


class Checkpoints:
    """The checkpoint files of one run's folder."""

    def __init__(self, folder: Path, schema: type[BaseModel] = RunCheckpoint) -> None:
        self.folder = folder / FOLDER
        self.schema = schema
        self._good: list[Path] = []
        self._abandoned = False

    def abandon(self) -> None:
        """Let a write under way in another thread come to nothing: the folder is given back."""
        self._abandoned = True

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then let go of all but the last two."""
        number = max((int(path.stem) for path in self._files()), default=0) + 1
        path = self.folder / f"{number:08d}.safetensors"
        content = encode(checkpoint)
        with atomic_file(path, "writing a checkpoint", self._refuse_if_abandoned) as file:
            file.write(content)
        _sync(self.folder)
        self._good = [*self._good, path][-KEPT:]
        self._refuse_if_abandoned()
        for old in self._files():
            if old not in self._good:
                old.unlink(missing_ok=True)
        return path

    def _refuse_if_abandoned(self) -> None:
        if self._abandoned:
            raise AbandonedError

    def load(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the last checkpoint that is whole, and what is wrong with those after it.

        One that the system does not let us read may well be whole: that raises `DiskError`.
        """
        problems: list[str] = []
        for path in sorted(self._files(), reverse=True):
            with explain_disk_errors("reading a checkpoint", path):
                try:
                    found = decode(path)
                    self._check(found)
                except _DAMAGE as error:
                    problems.append(f"{shown(path)}: not a whole checkpoint ({_short(error)})")
                    continue
            self._good = [path]
            return found, problems
        return None, problems

    def _check(self, checkpoint: Checkpoint) -> None:
        """Raise `ValueError` for a checkpoint of something else, or with parts missing."""
        try:
            self.schema.model_validate(checkpoint.values)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"{place}: {first['msg'].lower()}") from None
        stored = checkpoint.tensors.get("coreset")
        counts = checkpoint.values["engine"]["coreset"]
        if stored is None or stored.ndim != 4 or len(stored) != sum(counts):
            raise ValueError("its stored images are not as many as it says")

    def clear(self) -> None:
        """Remove all checkpoints."""
        self._good = []
        for path in self._files():
            path.unlink(missing_ok=True)
        self.sweep()
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def sweep(self) -> None:
        """Remove what a process that was killed while it wrote has left."""
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
    """Return a checkpoint as the content of a file."""
    text = json.dumps(checkpoint.values)
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "values": text,
        "checksum": checksum(text, checkpoint.tensors),
    }
    return to_safetensors(checkpoint.tensors, header)


def decode(path: Path) -> Checkpoint:
    """Read a checkpoint, or raise `ValueError` if it is none of ours or not as it was written."""
    header, tensors = read_safetensors(path)
    if (header.get("format"), header.get("version")) != (FORMAT, str(VERSION)):
        raise ValueError(f"expected {FORMAT} version {VERSION}")
    if checksum(header["values"], tensors) != header["checksum"]:
        raise ValueError("its checksum differs")
    values = json.loads(header["values"])
    return Checkpoint(values, tensors)


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a file, which may be removed while they are in use.

    Python reads it, not `safe_open`: that refuses names that are not UTF-8, and calls every file
    missing that it may not open.
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
    piece = bytearray()
    for name in sorted(tensors):
        tensor, content = tensors[name], _bytes_of(tensors[name]).data
        piece += repr((name, str(tensor.dtype), tuple(tensor.shape))).encode()
        if len(piece) + len(content) < HASHED_BYTES:
            piece += content
            continue
        digest.update(piece)
        digest.update(content)
        piece.clear()
    digest.update(piece)
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    """Return a tensor's bytes, by numpy where it knows the type: torch drops the lock each time."""
    try:
        return tensor.numpy().reshape(-1).view(np.uint8)
    except TypeError:
        return tensor.reshape(-1).view(torch.uint8).numpy()


def _sync(folder: Path) -> None:
    """Have the folder's list of names on the disk too, where the system can do that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
