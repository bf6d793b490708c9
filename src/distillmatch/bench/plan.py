"""Plans: what a stream of any size would take on so many GPUs, and what would hold it up.

The work of one GPU is what `cost` says of it. Several share what networks do, as the engine has it
(`distillmatch.engine.distributed`): each takes its share of a batch through the networks, but all
make all views; their steps are no CUDA graphs; and at each normalization they add up statistics.
What that adds, and what disks, buses and networks allow, is computed from data sheets: it has not
been measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from math import ceil, log2
from typing import Any

import yaml

from distillmatch.bench.cost import (
    Machine,
    Phase,
    Setting,
    classifier_phase,
    detector_phase,
    device_bytes,
)
from distillmatch.engine.data import VIEWS_SHARE
from distillmatch.engine.stores import GPU_SHARE

LARGE_SIDE, FILE_SIDE = 128, 500
"""Images of this side and more come from files of about that side; smaller ones as they are."""


@dataclass(frozen=True)
class Site:
    """What surrounds the GPUs; rates are bytes a second, `file_seconds` of one core for a file."""

    gpus_per_node: int
    cores_per_node: int
    host_memory: float
    disk_bytes: float
    host_to_device: float
    link_in_node: float
    link_between_nodes: float
    link_latency: float
    eager_layer: float
    file_seconds: float
    file_pixel_seconds: float
    hash_bytes: float
    count_bytes: float


@dataclass(frozen=True)
class Plan:
    """What a run would take on so many GPUs.

    `parts` has the seconds of each kind of work, as far as one waits for it; `memory` the bytes of
    each kind of thing on one GPU.
    """

    gpus: int
    parts: dict[str, float]
    decode_seconds: float
    cache_bytes: float
    memory: dict[str, float]
    memory_limit: float
    seen_unlabeled: float
    price: float

    @property
    def seconds(self) -> float:
        """The seconds of the run, decoding aside."""
        return sum(self.parts.values())

    @property
    def money(self) -> float:
        """What the GPUs cost for that long."""
        return self.seconds / 3600 * self.gpus * self.price

    @property
    def bottleneck(self) -> str:
        """The kind of work that takes the largest share of the time."""
        return max(self.parts, key=lambda part: self.parts[part])

    @property
    def fits(self) -> bool:
        """Whether it goes into the memory of a GPU."""
        return sum(self.memory.values()) <= self.memory_limit


def read_site() -> Site:
    """Return what is assumed of the machines around the GPUs."""
    text = files("distillmatch.bench").joinpath("measured.yaml").read_text("utf-8")
    values: Mapping[str, Any] = yaml.safe_load(text)["site"]
    return Site(**values)


def make_plan(machine: Machine, site: Site, setting: Setting, gpus: int, price: float) -> Plan:
    """Work out a whole run on so many GPUs that share each batch."""
    parts = dict.fromkeys(
        ("arithmetic", "layers", "all-reduce", "scores and views", "input", "passes", "start"), 0.0
    )
    image_bytes = 3 * setting.image_size**2
    cache_bytes = (setting.images + setting.test_images) * image_bytes
    for task in range(setting.tasks):
        for phase in (classifier_phase(setting, task), detector_phase(setting, task)):
            if phase is not None:
                for part, spent in _phase_parts(machine, site, setting, phase, gpus).items():
                    parts[part] += spent
        if _task_bytes(setting) <= machine.rates["memory"] / GPU_SHARE:
            parts["input"] += _input_seconds(site, setting, _task_bytes(setting), gpus)
        images = setting.test_images / gpus
        perturbed = images if detector_phase(setting, task) is not None else 0
        parts["passes"] += machine.score(setting.work, images)
        parts["passes"] += machine.score(setting.work, perturbed, perturbed=True)
        parts["passes"] += images * machine.fitted.evaluated_image
    read_once = cache_bytes / site.hash_bytes + cache_bytes / site.count_bytes
    parts["start"] += machine.fitted.start + read_once
    side = setting.image_size if setting.image_size < LARGE_SIDE else FILE_SIDE
    per_file = site.file_seconds + site.file_pixel_seconds * side * side
    nodes = ceil(gpus / site.gpus_per_node)
    later = classifier_phase(setting, min(1, setting.tasks - 1))
    seen = later.steps * setting.unlabeled_batch * (later.strong > 0)
    return Plan(
        gpus=gpus,
        parts=parts,
        decode_seconds=setting.images * per_file / (nodes * site.cores_per_node),
        cache_bytes=cache_bytes,
        memory=_memory(machine, setting, gpus),
        memory_limit=machine.rates["memory"],
        seen_unlabeled=seen / setting.unlabeled if setting.unlabeled else 0.0,
        price=price,
    )


def _phase_parts(
    machine: Machine, site: Site, setting: Setting, phase: Phase, gpus: int
) -> dict[str, float]:
    """Return the seconds of a training by kind, each GPU taking its share of every step."""
    work = setting.work
    captured = work.layers * machine.fitted.layer_seconds
    layers = captured if gpus == 1 else work.layers * site.eager_layer
    arithmetic = machine.step(work, phase.trained / gpus) - captured
    scores = machine.score(work, phase.scored / gpus)
    scores += machine.score(work, phase.perturbed / gpus, perturbed=True)
    scores += machine.views(phase.weak, phase.strong, setting.image_size)
    reduced = all_reduce_seconds(site, 4 * work.parameters, gpus)
    # Statistics on the way forward and on the way back: a few numbers a layer, so latency alone.
    reduced += 2 * work.layers * all_reduce_seconds(site, 0.0, gpus)
    fetched = 0.0
    if _task_bytes(setting) > machine.rates["memory"] / GPU_SHARE:
        needed = phase.fetched * 3 * setting.image_size**2
        fetched = _input_seconds(site, setting, needed, gpus)
    # Images come in while others are learned from: only what takes longer is waited for.
    waited = max(0.0, fetched - (layers + arithmetic + scores + reduced))
    once = machine.score(work, phase.once_scored / gpus)
    once += machine.score(work, phase.once_perturbed / gpus, perturbed=True)
    return {
        "arithmetic": phase.steps * arithmetic,
        "layers": phase.steps * layers,
        "all-reduce": phase.steps * reduced,
        "scores and views": phase.steps * scores,
        "input": phase.steps * waited,
        "passes": once,
        "start": machine.fitted.training_start,
    }


def _input_seconds(site: Site, setting: Setting, size: float, gpus: int) -> float:
    """Return the seconds in which every GPU gets so many bytes of images.

    They come from the memory of its node, or from the disks if the cache does not fit there.
    """
    from_memory = size / site.host_to_device
    if setting.images * 3 * setting.image_size**2 <= site.host_memory:
        return from_memory
    return max(from_memory, size * min(gpus, site.gpus_per_node) / site.disk_bytes)


def _task_bytes(setting: Setting) -> float:
    return (setting.labeled + setting.unlabeled) * 3 * setting.image_size**2


def all_reduce_seconds(site: Site, size: float, gpus: int) -> float:
    """Return the seconds in which gradients of so many bytes are added up over a ring of GPUs."""
    if gpus == 1:
        return 0.0
    rate = site.link_in_node if gpus <= site.gpus_per_node else site.link_between_nodes
    latency = site.link_latency * (1 + log2(ceil(gpus / site.gpus_per_node)))
    return 2 * (gpus - 1) / gpus * size / rate + latency


def _memory(machine: Machine, setting: Setting, gpus: int) -> dict[str, float]:
    """Return the bytes on each GPU by kind; every GPU may need any of a task's images."""
    limit = machine.rates["memory"] / GPU_SHARE
    task = _task_bytes(setting)
    later = classifier_phase(setting, min(1, setting.tasks - 1))
    views = (later.weak + later.strong) * 3 * setting.image_size**2 * machine.element_bytes
    scores = setting.unlabeled * (setting.classes + 1) * 4 if later.once_scored else 0.0
    steps = later.steps / setting.epochs
    return {
        "network": device_bytes(machine, setting, gpus),
        "images": task if task <= limit else 0.0,
        "views": 2 * min(limit / VIEWS_SHARE, steps * views),
        "scores of a pass": scores,
    }
