"""A learner's classifier as one file for other programs: ONNX, or torch's own `.pt2`.

The file takes upright images of any size and count, (count, 3, height, width), and gives the
probability of every class. Cropping, resizing and normalization are inside, exactly as `predict`
does them; labels and all of this are written beside it. Familiarity stays with the learner.
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
    """From images to probabilities: resize, normalization, network, and a softmax over classes."""

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        classifier: nn.Module,
        classes: int,
        side: int,
        normalization: Normalization,
        pixels: Pixels,
    ) -> None:
        super().__init__()
        self.classifier = classifier
        self.classes = classes
        self.side = side
        self.white = 1.0 if pixels == "uint8" else 255.0
        pairs = list(zip(normalization.mean, normalization.std, strict=True))
        self.register_buffer("scale", _channels([1 / (255 * std) for _, std in pairs]))
        self.register_buffer("shift", _channels([-mean / std for mean, std in pairs]))

    def forward(self, images: Tensor) -> Tensor:
        """Return a row of probabilities for each image, in the order of the labels."""
        squares = fitted((images.float() * self.white).round(), self.side)
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


def export_onnx(learner: "ContinualLearner", path: Path, pixels: Pixels = "uint8") -> None:
    """Write the classifier as an ONNX file; its metadata say what it takes and gives."""
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
    for place, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[place].dim_param = name
    for name, text in _description(learner, pixels).items():
        model.metadata_props.add(key=name, value=text)
    write_atomically(path, model.SerializeToString(), "writing the ONNX file")


def export_torch(learner: "ContinualLearner", path: Path, pixels: Pixels = "uint8") -> None:
    """Write the classifier as `torch.export` saves it, the same metadata in its extra files."""
    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(
            _traced(learner, pixels), buffer, extra_files=_description(learner, pixels)
        )
    write_atomically(path, buffer.getvalue(), "writing the torch file")


def _description(learner: "ContinualLearner", pixels: Pixels) -> dict[str, str]:
    """Return what a program must know to use the file: each entry is JSON."""
    normalization = learner.normalization_
    entries = {
        "labels": [str(label) for label in learner.classes_],
        "pixels": pixels,
        "orientation": "upright: what a camera noted (EXIF) is applied before",
        "crop": "the square in the middle",
        "image_size": learner.image_size_,
        "filter": "bicubic, antialiased",
        "mean": normalization.mean,
        "std": normalization.std,
        "made_by": f"distillmatch {version('distillmatch')}",
    }
    return {name: json.dumps(value) for name, value in entries.items()}


def _traced(learner: "ContinualLearner", pixels: Pixels) -> torch.export.ExportedProgram:
    classifier = deepcopy(learner.classifier_).cpu().eval().requires_grad_(False)
    classes, side = len(learner.classes_), learner.image_size_
    model = ProbabilityModel(classifier, classes, side, learner.normalization_, pixels).eval()
    # Lengths that differ and are not 1, which would be taken for constants.
    example = torch.zeros(2, 3, side + 2, side + 3)
    any_length = torch.export.Dim.DYNAMIC
    with torch.no_grad(), _quiet():
        return torch.export.export(
            model,
            (example.byte() if pixels == "uint8" else example,),
            dynamic_shapes=({0: any_length, 2: any_length, 3: any_length},),
        )


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
