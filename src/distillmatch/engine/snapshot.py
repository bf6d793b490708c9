"""Snapshots: all that a run needs to go on from where it stands.

There is no state of a random generator among it, because there is no generator: every draw is a
function of the seed, the task, the training and the epoch (see `distillmatch.randomness`).
"""

from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distillmatch.engine.outcome import Clock, Judgement, Underway
from distillmatch.engine.steps import Step
from distillmatch.errors import SnapshotError
from distillmatch.methods import Method
from distillmatch.streams import Coreset


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Where a run stands: plain values that JSON can hold, and tensors by name."""

    values: dict[str, Any]
    tensors: dict[str, Tensor]


def take_snapshot(
    method: Method, coreset: Coreset, underway: Underway, step: Step | None = None
) -> Snapshot:
    """Copy everything that the rest of the run depends on; `step` is of the training at work."""
    tensors = {
        f"network/{name}/{key}": value
        for name, network in method.networks.items()
        for key, value in network.state_dict().items()
    }
    tensors |= {f"tensor/{name}": value for name, value in method.tensors.items()}
    tensors |= {} if step is None else step.state
    tensors["coreset"] = torch.from_numpy(coreset.images)
    if underway.judgement is not None:
        for name, rows in underway.judgement._asdict().items():
            tensors[f"judgement/{name}"] = torch.from_numpy(rows)
    values = {
        **{name: getattr(underway, name) for name in ("task", "trainings", "epochs", "work")},
        "losses": deepcopy(underway.losses),
        "seconds": underway.clock.seconds,
        "values": {name: float(value) for name, value in method.values.items()},
        "copies": dict(method.copies),
        "coreset": [len(images) for images in coreset.by_class],
    }
    copies = {  # in main memory, in the plain layout
        name: torch.empty(one.shape, dtype=one.dtype).copy_(one.detach())
        for name, one in tensors.items()
    }
    return Snapshot(values, copies)


def restored_underway(snapshot: Snapshot) -> Underway:
    """Return how far the task was."""
    values, judged = snapshot.values, _below("judgement/", snapshot)
    return Underway(
        **{name: values[name] for name in ("task", "trainings", "epochs", "work")},
        losses=deepcopy(values["losses"]),
        judgement=Judgement(**{k: v.numpy() for k, v in judged.items()}) if judged else None,
        clock=Clock(values["seconds"]),
    )


def restored_coreset(snapshot: Snapshot, empty: Coreset) -> Coreset:
    """Return the stored images, class by class."""
    images = snapshot.tensors["coreset"].numpy()
    ends = np.cumsum([0, *snapshot.values["coreset"]])
    by_class = tuple(images[a:b] for a, b in pairwise(ends))
    return Coreset(empty.capacity, empty.image_size, by_class)


def restore_method(snapshot: Snapshot, method: Method) -> None:
    """Put weights, values and tensors back; frozen copies that are not there yet are made."""
    method.values.clear()
    method.values.update(snapshot.values["values"])
    method.tensors.clear()
    device = next(method.classifier.parameters()).device
    for name, tensor in _below("tensor/", snapshot).items():
        method.tensors[name] = tensor.to(device)
    networks: dict[str, dict[str, Tensor]] = {}
    for place, tensor in _below("network/", snapshot).items():
        name, _, key = place.rpartition("/")
        networks.setdefault(name, {})[key] = tensor
    for name, of in snapshot.values["copies"].items():
        method.frozen_copy(name, of)
    for name, weights in networks.items():
        if name not in method.networks:
            raise SnapshotError(f"the checkpoint has a network '{name}' that the method has not")
        try:
            method.networks[name].load_state_dict(weights)
        except RuntimeError:
            raise SnapshotError(f"the checkpoint's network '{name}' has another shape") from None


def restore_step(snapshot: Snapshot, step: Step) -> None:
    """Restore the state of a training in place: a captured step reads it there."""
    of_step = ("optimizer/", "average/")
    saved = {name: one for name, one in snapshot.tensors.items() if name.startswith(of_step)}
    if not saved and not snapshot.values["epochs"]:
        return
    state = step.state
    if {k: v.shape for k, v in saved.items()} != {k: v.shape for k, v in state.items()}:
        raise SnapshotError("the state of the optimizer in the checkpoint has another shape")
    for name, tensor in state.items():
        tensor.copy_(saved[name])


def _below(prefix: str, snapshot: Snapshot) -> dict[str, Tensor]:
    """Return the tensors whose names begin so, by the rest of their names."""
    found = {name: one for name, one in snapshot.tensors.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): tensor for name, tensor in found.items()}
