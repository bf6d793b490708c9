"""Initial weights from a local file, read without running anything in it."""

from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from distillmatch.errors import ConfigError
from distillmatch.files import open_file
from distillmatch.networks.foreign import CLASSIFIERS

WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts save a network's weights beside other things."""


def weights_digest(path: Path) -> str:
    """Return the hash of a file of weights."""
    try:
        with open_file(path) as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"pretrained: {path}: {error.strerror or error}") from None


@dataclass(frozen=True, eq=False)
class PretrainedWeights:
    """The weights of a file, from which every fresh backbone of a run starts."""

    path: Path
    sha256: str
    tensors: dict[str, Tensor]

    @classmethod
    def read(cls, path: Path) -> "PretrainedWeights":
        """Read a `.safetensors`, `.pt` or `.pth` file."""
        digest = weights_digest(path)
        if path.suffix not in (".safetensors", ".pt", ".pth"):
            raise ConfigError(f"pretrained must be a .safetensors or .pt file, not {path}")
        try:
            if path.suffix == ".safetensors":
                found: Any = load_file(path)
            else:
                found = torch.load(path, map_location="cpu", weights_only=True)
        except (MemoryError, OSError):
            raise
        except Exception:  # a damaged pickle raises many kinds
            raise ConfigError(
                f"pretrained: {path} is damaged, or holds more than tensors by name"
            ) from None
        for wrapper in WRAPPERS:
            if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
                found = found[wrapper]
        if not isinstance(found, dict) or not all(map(_is_entry, found, found.values())):
            raise ConfigError(f"pretrained: {path} must hold dense tensors by name")
        # Our normalization does not count batches.
        kept = {k: v for k, v in found.items() if not k.endswith("num_batches_tracked")}
        return cls(path, digest, kept)

    def load_into(self, backbone: nn.Module, name: str) -> None:
        """Give the backbone of the network called `name` these weights, without a classifier."""
        expected, there = backbone.state_dict(), self.tensors
        if not set(there) & set(expected):
            # Of a whole network of ours the backbone's are meant.
            there = {key.removeprefix("backbone."): value for key, value in there.items()}
        fits = f"pretrained: {self.path} does not fit network '{name}':"
        wanted = {k: v for k, v in expected.items() if not k.endswith("num_batches_tracked")}
        if missing := [key for key in wanted if key not in there]:
            raise ConfigError(f"{fits} it lacks {_some(missing)}")
        further = sorted(key for key in there if key not in wanted)
        if unknown := [key for key in further if key.partition(".")[0] not in CLASSIFIERS]:
            raise ConfigError(f"{fits} it has {_some(unknown)}, and the network has not")
        for key, value in wanted.items():
            if there[key].shape != value.shape:
                shapes = f"{tuple(there[key].shape)} there and {tuple(value.shape)} here"
                raise ConfigError(f"{fits} '{key}' has shape {shapes}")
        backbone.load_state_dict({**expected, **{key: there[key] for key in wanted}})


def _is_entry(key: object, value: object) -> bool:
    if not (isinstance(key, str) and isinstance(value, Tensor)):
        return False
    return value.layout == torch.strided and not (value.is_meta or value.is_quantized)


def _some(keys: list[str]) -> str:
    rest = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"'{keys[0]}'{rest}"
