"""What work costs: from a network's arithmetic and a machine's measured efficiency to seconds.

A step costs so much for each layer, however few the images, and so much for each image: the time
that its arithmetic and its memory traffic would take at the machine's rates, divided by the share
of these rates that is reached. The few numbers of each machine are in `measured.yaml`, beside the
measurements that they are held against.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from distillmatch.engine.scoring import piece_size
from distillmatch.networks import build_network

PASSES_OF_A_STEP = 3
"""Forward, gradient of the inputs, gradient of the weights: each as much arithmetic as the first.
The perturbed score of the detector is three passes too: forward, back to the image, forward."""


@dataclass(frozen=True)
class NetworkWork:
    """What a network does for one image on its way forward."""

    operations: float
    elements: float
    layers: int
    parameters: int

    @classmethod
    def of(cls, name: str, classes: int, image_size: int) -> "NetworkWork":
        """Count the convolutions and the last layer by showing the network one image."""
        return _counted(name, classes, image_size)


@lru_cache
def _counted(name: str, classes: int, image_size: int) -> NetworkWork:
    network = build_network(name, classes, "linear", torch.Generator(), image_size=image_size)
    operations = elements = layers = 0

    def count(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        nonlocal operations, elements, layers
        weight = layer.weight
        assert isinstance(weight, Tensor)
        operations += 2 * made.numel() * weight[0].numel()
        elements += given[0].numel() + made.numel()
        layers += 1

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    with torch.no_grad():
        network.eval()(torch.zeros(1, 3, image_size, image_size))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return NetworkWork(float(operations), float(elements), layers, parameters)


@dataclass(frozen=True)
class Fitted:
    """The numbers of a machine that measurements decide.

    `traffic` is how many times as much is moved as convolutions read and write: normalization and
    activation, where they are no part of the same kernels. `side_by_side` is the share of the costs
    of layers that is left where many runs fill each other's gaps; `training_start` is what each
    training takes to begin, `start` what a process does, `evaluated_image` what the host does for
    each test image.
    """

    layer_seconds: float
    traffic: float
    training_efficiency: float
    scoring_efficiency: float
    side_by_side: float
    weak_pixels: float
    strong_pixels: float
    training_start: float
    start: float
    evaluated_image: float

    @property
    def chosen(self) -> dict[str, float]:
        """Those that play a part here: none that adds nothing or changes nothing."""
        return {name: value for name, value in asdict(self).items() if value not in (0.0, 1.0)}


@dataclass(frozen=True)
class Machine:
    """A device: its rates, and how much of them the engine reaches."""

    name: str
    rates_from: str
    rates: Mapping[str, float]
    element_bytes: int
    scoring_batch: int
    fitted: Fitted

    def step(self, work: NetworkWork, images: float, at_once: bool = False) -> float:
        """Return the seconds of a training step over so many images."""
        layers = work.layers * self.fitted.layer_seconds
        layers *= self.fitted.side_by_side if at_once else 1.0
        per_image = PASSES_OF_A_STEP * self._pass(work) / self.fitted.training_efficiency
        return layers + images * per_image

    def score(self, work: NetworkWork, images: float, perturbed: bool = False) -> float:
        """Return the seconds in which a frozen network scores so many images."""
        passes = PASSES_OF_A_STEP if perturbed else 1
        pieces = images / self.scoring_batch
        # A third of a step's kernels are those of the forward pass.
        layers = work.layers * self.fitted.layer_seconds / PASSES_OF_A_STEP
        per_image = self._pass(work) / self.fitted.scoring_efficiency
        return passes * (pieces * layers + images * per_image)

    def views(self, weak: float, strong: float, image_size: int) -> float:
        """Return the seconds in which so many views of images of this size are made."""
        pixels = image_size * image_size
        return weak * pixels / self.fitted.weak_pixels + strong * pixels / self.fitted.strong_pixels

    def _pass(self, work: NetworkWork) -> float:
        """Return the seconds of one pass of one image if all rates were reached."""
        moved = work.elements * self.element_bytes * self.fitted.traffic
        return work.operations / self.rates["operations"] + moved / self.rates["bytes"]


@dataclass(frozen=True)
class Setting:
    """A stream and how it is learned, as far as that costs time."""

    method: str = "dm"
    network: str = "wrn-28-2"
    image_size: int = 32
    images: float = 50_000
    test_images: float = 10_000
    labeled_share: float = 0.2
    classes: int = 100
    tasks: int = 10
    epochs: float = 200
    batch: int = 64
    unlabeled_batch: int = 128

    @property
    def labeled(self) -> float:
        """Labelled images of a task."""
        return self.images * self.labeled_share / self.tasks

    @property
    def unlabeled(self) -> float:
        """Unlabelled images of a task."""
        return self.images * (1 - self.labeled_share) / self.tasks

    @property
    def work(self) -> NetworkWork:
        """What the network does for an image."""
        return NetworkWork.of(self.network, self.classes, self.image_size)


@dataclass(frozen=True)
class Phase:
    """One training, or one pass: how often a step is taken, and over what.

    `trained`, `scored`, `perturbed`, `weak` and `strong` are images in each step; the last two are
    views. `once` is scored by forward pass and perturbed before or after it, in images.
    """

    steps: float
    trained: float
    scored: float = 0.0
    perturbed: float = 0.0
    weak: float = 0.0
    strong: float = 0.0
    once_scored: float = 0.0
    once_perturbed: float = 0.0

    @property
    def fetched(self) -> float:
        """Images that each step needs."""
        return self.weak


def classifier_phase(setting: Setting, task: int) -> Phase:
    """Return the classifier's training in a task, numbered from 0."""
    batch, unlabeled = setting.batch, setting.unlabeled_batch
    steps = setting.epochs * -(-setting.labeled // batch)
    if setting.method == "base" or task == 0:
        return Phase(steps, batch, weak=batch)
    return Phase(
        steps,
        trained=batch + 2 * unlabeled,
        scored=batch + unlabeled,
        perturbed=unlabeled,
        weak=batch + unlabeled,
        strong=unlabeled,
        # Pseudo-labels are counted for the class weights, and judged for the diagnosis.
        once_scored=2 * setting.unlabeled,
        once_perturbed=2 * setting.unlabeled,
    )


def detector_phase(setting: Setting, task: int) -> Phase | None:
    """Return the detector's training in a task: half the epochs on half of the labels."""
    if setting.method != "dm" or task + 1 == setting.tasks:
        return None
    batch, unlabeled = setting.batch, setting.unlabeled_batch
    steps = setting.epochs / 2 * -(-setting.labeled // 2 // batch)
    held_out = setting.labeled / 2
    # One perturbation for all sizes that are tried, then four views at the one that is chosen.
    calibration = {"once_scored": 5 * held_out, "once_perturbed": 5 * held_out}
    if task == 0:
        return Phase(steps, batch, weak=batch, **calibration)
    return Phase(
        steps,
        trained=batch + unlabeled,
        scored=batch + 2 * unlabeled,
        perturbed=unlabeled,
        weak=batch + unlabeled,
        **calibration,
    )


def phase_seconds(machine: Machine, setting: Setting, phase: Phase) -> float:
    """Return the seconds that a training takes on one device."""
    work = setting.work
    each = machine.step(work, phase.trained)
    each += machine.score(work, phase.scored) + machine.score(work, phase.perturbed, perturbed=True)
    each += machine.views(phase.weak, phase.strong, setting.image_size)
    once = machine.score(work, phase.once_scored)
    once += machine.score(work, phase.once_perturbed, perturbed=True)
    return machine.fitted.training_start + phase.steps * each + once


def evaluation_seconds(machine: Machine, setting: Setting, task: int) -> float:
    """Return the seconds in which all test images are looked at after a task."""
    work, images = setting.work, setting.test_images
    spent = machine.score(work, images) + images * machine.fitted.evaluated_image
    if detector_phase(setting, task) is not None:
        spent += machine.score(work, images, perturbed=True)
    return spent


def run_seconds(machine: Machine, setting: Setting) -> dict[str, float]:
    """Return the seconds of each phase of a whole run on one device."""
    seconds = {"classifier": 0.0, "detector": 0.0, "evaluation": 0.0}
    for task in range(setting.tasks):
        seconds["classifier"] += phase_seconds(machine, setting, classifier_phase(setting, task))
        detector = detector_phase(setting, task)
        if detector is not None:
            seconds["detector"] += phase_seconds(machine, setting, detector)
        seconds["evaluation"] += evaluation_seconds(machine, setting, task)
    return {**seconds, "total": sum(seconds.values()) + machine.fitted.start}


def device_bytes(machine: Machine, setting: Setting, gpus: int = 1) -> float:
    """Return the bytes of a device's memory that training takes, beside images that stay there.

    Of a step all layers' inputs and outputs are kept for the way back, and so they are of a piece
    of images that is scored with a perturbation; of a network that is written out for half
    precision it is one bit of each number.
    """
    work = setting.work
    later = min(1, setting.tasks - 1)
    phase = classifier_phase(setting, later)
    piece = piece_size(machine.scoring_batch, setting.image_size)
    written_out = machine.element_bytes == 2 and setting.network.startswith("wrn-")
    scored = piece / (8 * machine.element_bytes if written_out else 1)
    kept = phase.trained / gpus + (scored if phase.perturbed else 0)
    networks = 4 if setting.method == "dm" else 1
    weights = (networks + 2) * 4 * work.parameters  # and gradients, and momentum
    return kept * work.elements * machine.element_bytes + weights


@dataclass(frozen=True)
class Point:
    """Something that was measured, and where: `kind` and `given` say what the model is asked."""

    machine: str
    what: str
    kind: str
    given: Mapping[str, Any]
    value: float
    unit: str
    commit: str
    command: str


def predicted(machine: Machine, point: Point) -> float:
    """Return what the model says of a point, in the point's unit."""
    given = dict(point.given)
    if point.kind in ("run", "task", "bytes"):
        part, task = given.pop("part", ""), given.pop("task", 1) - 1
        setting = Setting(**given)
        if point.kind == "bytes":
            return device_bytes(machine, setting)
        if point.kind == "run":
            return run_seconds(machine, setting)[part]
        phase = (classifier_phase if part == "classifier" else detector_phase)(setting, task)
        assert phase is not None
        return phase_seconds(machine, setting, phase)
    size = given.get("image_size", 32)
    if point.kind == "views":
        weak = given["view"] == "weak"
        return 1 / machine.views(weak, not weak, size)
    work = NetworkWork.of(given.get("network", "wrn-28-2"), given.get("classes", 100), size)
    if point.kind == "score":
        return 1000 * machine.score(work, given["images"], given.get("perturbed", False))
    step = machine.step(work, given["images"], given.get("at_once", 1) > 1)
    return step * given["steps"] if "steps" in given else 1000 * step


def read_measured() -> tuple[dict[str, Machine], list[Point]]:
    """Return the machines that are known, and what was measured on them."""
    text = files("distillmatch.bench").joinpath("measured.yaml").read_text("utf-8")
    content = yaml.safe_load(text)
    machines = {
        key: Machine(**{**values, "fitted": Fitted(**values["fitted"])})
        for key, values in content["machines"].items()
    }
    return machines, [Point(**values) for values in content["points"]]
