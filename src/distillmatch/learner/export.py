"""A learner's classifier as an ONNX file for other programs.

The file takes upright images of any size and count, as bytes of shape (count, 3, height, width),
and gives the probability of every class. Its graph crops, resizes and normalizes as `predict` does;
its metadata name the labels and describe all of this. Familiarity stays with the learner.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from distillmatch.errors import ConfigError
from distillmatch.files import write_atomically
from distillmatch.views import Normalization

if TYPE_CHECKING:
    from distillmatch.learner.estimator import ContinualLearner

OPSET = 18
NEEDED = ("onnx", "onnxscript")


class ProbabilityModel(nn.Module):
    """From images to probabilities: resize, normalization, network, and a softmax over classes."""

    scale: Tensor
    shift: Tensor

    def __init__(
        self, classifier: nn.Module, classes: int, side: int, normalization: Normalization
    ) -> None:
        super().__init__()
        self.classifier = classifier
        self.classes = classes
        self.side = side
        pairs = list(zip(normalization.mean, normalization.std, strict=True))
        self.register_buffer("scale", _channels([1 / (255 * std) for _, std in pairs]))
        self.register_buffer("shift", _channels([-mean / std for mean, std in pairs]))

    def forward(self, images: Tensor) -> Tensor:
        """Return a row of probabilities for each image, in the order of the labels."""
        squares = fitted(images.float(), self.side)
        logits: Tensor = self.classifier(squares * self.scale + self.shift)
        return logits[:, : self.classes].softmax(dim=1)


def fitted(images: Tensor, side: int) -> Tensor:
    """Crop the middle square of images, and resize it, as Pillow's `ImageOps.fit` does."""
    rows, columns = (
        torch.arange(length, dtype=torch.float32, device=images.device) + 0.5
        for length in images.shape[2:]
    )
    height, width = rows[-1] + 0.5, columns[-1] + 0.5
    short = torch.minimum(height, width)
    across = _resampling(columns, (width - short) / 2, short / side, side)
    down = _resampling(rows, (height - short) / 2, short / side, side)
    return _as_bytes(down @ _as_bytes(images @ across.T))  # Pillow keeps bytes in between, too


def _as_bytes(levels: Tensor) -> Tensor:
    """Round halves up, and cut what lies beyond black and white."""
    return (levels + 0.5).floor().clamp(0, 255)


def _resampling(pixels: Tensor, start: Tensor, scale: Tensor, side: int) -> Tensor:
    """Return how much each pixel counts in each of `side` others: an antialiased bicubic filter."""
    made = start + (torch.arange(side, dtype=torch.float32, device=pixels.device) + 0.5) * scale
    distance = (pixels[None] - made[:, None]).abs() / scale.clamp(min=1)
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    return weights / weights.sum(dim=1, keepdim=True)


def export_onnx(learner: "ContinualLearner", path: Path) -> None:
    """Write the classifier as an ONNX file; its metadata describe input and output."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"an ONNX file is made with {' and '.join(missing)}, not installed here: "
            "pip install 'distillmatch[onnx]'"
        )
    classifier = deepcopy(learner.classifier_).cpu().eval().requires_grad_(False)
    side, normalization = learner.image_size_, learner.normalization_
    model = ProbabilityModel(classifier, len(learner.classes_), side, normalization).eval()
    # Lengths that differ and are not 1, which would be taken for constants.
    example = torch.zeros(2, 3, side + 2, side + 3, dtype=torch.uint8)
    length = torch.export.Dim.DYNAMIC
    with torch.no_grad(), _quiet():
        program = torch.export.export(
            model, (example,), dynamic_shapes=({0: length, 2: length, 3: length},)
        )
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
    proto = exported.model_proto
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "count"
    for place, name in ((2, "height"), (3, "width")):
        proto.graph.input[0].type.tensor_type.shape.dim[place].dim_param = name
    about = {
        "labels": [str(label) for label in learner.classes_],
        "pixels": "uint8",
        "orientation": "upright: what a camera noted (EXIF) is applied before",
        "crop": "the square in the middle",
        "image_size": side,
        "filter": "bicubic, antialiased",
        "mean": normalization.mean,
        "std": normalization.std,
        "made_by": f"distillmatch {version('distillmatch')}",
    }
    for name, entry in about.items():
        proto.metadata_props.add(key=name, value=json.dumps(entry))
    write_atomically(path, proto.SerializeToString(), "writing the ONNX file")


def _channels(values: list[float]) -> Tensor:
    return torch.tensor(values).view(1, 3, 1, 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's remarks on its own exporter from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
