"""A learner's classifier as one file for other programs: ONNX, or torch's own `.pt2`.

The file takes images as they are, of shape (count, 3, side, side) with any count, and gives the
probability of every class: normalization is inside, labels are written beside it. The detector
stays with the learner: its score moves each image along a gradient, which such files cannot hold.
"""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from distillmatch.errors import ConfigError
from distillmatch.files import write_atomically
from distillmatch.views import Normalization

if TYPE_CHECKING:
    from distillmatch.learner.estimator import ContinualLearner

Pixels = Literal["uint8", "float"]
"""What a file takes: bytes from 0 to 255, or floats from 0 to 1."""

OPSET = 18
NEEDED = ("onnx", "onnxscript")


class ProbabilityModel(nn.Module):
    """From images to probabilities: normalization, network, and a softmax over the classes seen."""

    scale: Tensor
    shift: Tensor

    def __init__(
        self, classifier: nn.Module, classes: int, normalization: Normalization, pixels: Pixels
    ) -> None:
        super().__init__()
        self.classifier = classifier
        self.classes = classes
        white = 255 if pixels == "uint8" else 1
        pairs = list(zip(normalization.mean, normalization.std, strict=True))
        self.register_buffer("scale", _channels([1 / (white * std) for _, std in pairs]))
        self.register_buffer("shift", _channels([-mean / std for mean, std in pairs]))

    def forward(self, images: Tensor) -> Tensor:
        """Return a row of probabilities for each image, in the order of the labels."""
        logits: Tensor = self.classifier(images.float() * self.scale + self.shift)
        return logits[:, : self.classes].softmax(dim=1)


def export_onnx(learner: "ContinualLearner", path: Path, pixels: Pixels = "uint8") -> None:
    """Write the classifier as an ONNX file, with labels and normalization among its metadata."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"an ONNX file is made with {' and '.join(missing)}, not installed here: "
            "pip install 'distillmatch[onnx]'"
        )
    program = _traced(learner, pixels)
    with _quiet():
        exported = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["probabilities"],
            external_data=False,
            verbose=False,
        )
    assert exported is not None
    model = exported.model_proto
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "count"
    for name, text in description(learner, pixels).items():
        model.metadata_props.add(key=name, value=text)
    write_atomically(path, model.SerializeToString(), "writing the ONNX file")


def export_torch(learner: "ContinualLearner", path: Path, pixels: Pixels = "uint8") -> None:
    """Write the classifier as `torch.export` saves it, the same metadata in its extra files."""
    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(
            _traced(learner, pixels), buffer, extra_files=description(learner, pixels)
        )
    write_atomically(path, buffer.getvalue(), "writing the torch file")


def description(learner: "ContinualLearner", pixels: Pixels) -> dict[str, str]:
    """Return what a program must know to use the file: each entry is JSON."""
    normalization = learner.normalization_
    entries = {
        "labels": [str(label) for label in learner.classes_],
        "image_size": learner.image_size_,
        "pixels": pixels,
        "mean": normalization.mean,
        "std": normalization.std,
        "made_by": f"distillmatch {version('distillmatch')}",
    }
    return {name: json.dumps(value) for name, value in entries.items()}


def _traced(learner: "ContinualLearner", pixels: Pixels) -> torch.export.ExportedProgram:
    classifier = deepcopy(learner.method_.classifier).cpu().eval().requires_grad_(False)
    classes = len(learner.classes_)
    model = ProbabilityModel(classifier, classes, learner.normalization_, pixels).eval()
    side = learner.image_size_
    # Two images: a batch of one would be taken for a constant.
    example = torch.zeros(2, 3, side, side, dtype=torch.uint8 if pixels == "uint8" else None)
    with torch.no_grad(), _quiet():
        return torch.export.export(
            model, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
        )


def _channels(values: list[float]) -> Tensor:
    return torch.tensor(values).view(1, 3, 1, 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's remarks on its own exporter from the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
