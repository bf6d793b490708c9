"""What was learned from a pretrained network's features: statistics of them, and no images."""

import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distillmatch.engine import Progress
from distillmatch.errors import LearnerError
from distillmatch.learner.backbone import Backbone
from distillmatch.learner.feature_classifier import FeatureClassifier
from distillmatch.learner.feature_reader import FeatureReader, VectorReader
from distillmatch.learner.fine_tuning import FeatureNetwork, beside, fine_tune, tuned_copy
from distillmatch.learner.keeper import Keeper
from distillmatch.learner.labels import Labeled
from distillmatch.learner.recognition import choose_examples
from distillmatch.learner.settings import IDENTITY
from distillmatch.learner.task import Learned, Task
from distillmatch.learner.trained import bytes_of

_STATISTICS, _BACKBONE, _TUNED = "statistics/", "backbone/", "tuned/"
"""Before the names of tensors in a saved learner."""
_MET = "met"


@dataclass(frozen=True, eq=False)
class Featured(Learned):
    """A frozen network, and statistics of the features that it gives.

    `met` has the digests of the image files that were learned with their labels. With a copy of the
    network that the last task `tuned`, rows are features followed by the copy's logits.
    """

    backbone: Backbone
    statistics: FeatureClassifier
    met: NDArray[np.int64]
    tuned: FeatureNetwork | None = None

    @classmethod
    def restored(
        cls, body: dict[str, Any], tensors: dict[str, Tensor], common: dict[str, Any]
    ) -> "Featured":
        """Return what was saved; `common` is what all kinds of learners have."""
        noted, side = body["features"], common["image_size"]
        config, placement = common["config"].replace(image_size=side), common["placement"]
        weights = _below(_BACKBONE, tensors)
        if config.network == IDENTITY:
            dimension = tensors[f"{_STATISTICS}labeled_means"].shape[1]
            backbone = Backbone.of_vectors(dimension, placement)
        elif noted["published"]:
            backbone = Backbone.of(config.replace(pretrained=None), placement)
        else:
            backbone = Backbone.stored(config, side, weights, placement)
        if backbone.digest != noted["digest"]:
            raise LearnerError(
                f"it was learned on other weights of network '{config.network}' than those that "
                "are installed here"
            )
        arrays = {name: value.numpy() for name, value in _below(_STATISTICS, tensors).items()}
        statistics = FeatureClassifier.restored(arrays)
        met = tensors[_MET].numpy() if _MET in tensors else np.empty(0, np.int64)
        tuned = None
        if of_copy := _below(_TUNED, tensors):
            tuned = tuned_copy(backbone, statistics)
            tuned.load_state_dict(of_copy)
        return cls(**common, backbone=backbone, statistics=statistics, met=met, tuned=tuned)

    @property
    def reader(self) -> FeatureReader:
        """What reads images as features."""
        if self.tuned is not None:
            return FeatureReader(beside(self.backbone, self.tuned))
        return self.frozen_reader

    @property
    def frozen_reader(self) -> FeatureReader:
        """What reads images as features of the frozen network alone."""
        if self.config.network == IDENTITY:
            return VectorReader(self.backbone, None)
        return FeatureReader(self.backbone)

    def features(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the part of rows that the frozen network gave."""
        return rows[:, : self.backbone.dimension]

    def logits(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return a logit for each row of features and class."""
        if not len(rows):
            return np.empty((0, len(self.labels)), np.float32)
        logits = self.statistics.logits(self.features(rows))
        if self.tuned is None:
            return logits
        both: NDArray[np.float32] = (logits + rows[:, self.backbone.dimension :]) / 2
        return both

    def learned_before(self, labeled: Labeled) -> NDArray[np.bool_]:
        """Mark the image files whose statistics are kept already."""
        digests = labeled.digests()
        return (
            np.isin(digests, self.met) if len(digests) else np.zeros(len(labeled.items), np.bool_)
        )

    def nearest_mean(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Return the class whose mean of labeled rows is nearest."""
        return self.statistics.nearest_mean(self.features(rows))

    @property
    def gives_scores(self) -> bool:
        """Whether it is known how familiar classes look: from two labels of one class on."""
        return self.statistics.has_scores

    def familiarity(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return how familiar each row of features looks."""
        if not len(rows):
            return np.empty(0, np.float32)
        return self.statistics.familiarity(self.features(rows))

    def threshold(self, accept: float) -> float:
        """Return the familiarity that a share `accept` of known images reach."""
        return self.statistics.threshold(accept)

    def classifier(self) -> nn.Module:
        """Return the network from normalized images to logits."""
        if self.config.network == IDENTITY:
            raise LearnerError("what was learned from vectors has no network from images to logits")
        frozen = FeatureNetwork(deepcopy(self.backbone.network), self.statistics)
        return frozen if self.tuned is None else _Both(frozen, deepcopy(self.tuned))

    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the statistics, and the network's weights unless they are published."""
        noted = {"digest": self.backbone.digest, "published": not self.backbone.weights}
        tensors = {f"{_BACKBONE}{name}": value for name, value in self.backbone.weights.items()}
        for name, array in self.statistics.tensors.items():
            tensors[f"{_STATISTICS}{name}"] = torch.from_numpy(np.ascontiguousarray(array))
        tensors[_MET] = torch.from_numpy(self.met)
        if self.tuned is not None:
            weights = self.tuned.state_dict()
            tensors |= {
                f"{_TUNED}{name}": value.cpu().contiguous() for name, value in weights.items()
            }
        return {"features": noted}, tensors


def learn_features(
    before: Featured | None,
    task: Task,
    reader: FeatureReader,
    progress: Progress | None,
    keeper: Keeper | None,
) -> Featured:
    """Learn a task from features of images; what was learned before stays as it is."""
    backbone, unlabeled = reader.backbone, task.environment.images
    if keeper is not None:
        keeper.start(task.fingerprint)
    began = time.perf_counter()
    known = FeatureClassifier.empty(backbone.dimension) if before is None else before.statistics
    statistics, judgement = known.after(
        task.images, task.slots, len(task.classes), unlabeled, task.config.seed
    )
    met = task.labeled.digests()
    met = met if before is None else np.concatenate([before.met, met])
    explanation = task.explained(judgement)
    if len(task.environment.items) and task.config.network != IDENTITY:
        chosen, scores = np.arange(len(unlabeled)), judgement.familiarity.astype(np.float32)
        picture = task.environment.picture
        examples = choose_examples(chosen, scores, judgement, task.classes, picture, task.examples)
        explanation = replace(explanation, examples=examples)
    seconds = {"features": task.seconds, "classifier": time.perf_counter() - began}
    tuned, fine_tuned = None, None
    if task.fine_tune:
        began = time.perf_counter()
        tuned, fine_tuned = fine_tune(task, backbone, known, progress, keeper)
        seconds["fine-tuning"] = time.perf_counter() - began
    threshold = statistics.threshold(task.accept) if statistics.has_scores else None
    rejected = None
    if threshold is not None and len(unlabeled):
        rejected = int((judgement.familiarity < threshold).sum())
    record = {
        **task.record(explanation),
        "rejected": rejected,
        "unlabeled_in": [],
        "seconds": seconds,
        "fine_tuned": fine_tuned,
        "losses": {},
        "values": {},
        "stored": 0,
        "stored_bytes": 0,
        "weights_bytes": bytes_of(backbone.network),
        "statistics_bytes": statistics.bytes + met.nbytes,
        "known_threshold": threshold,
    }
    return Featured(
        config=task.config,
        placement=backbone.placement,
        labels=task.classes,
        sizes=task.sizes,
        image_size=backbone.side,
        normalization=backbone.normalization,
        history=(*(() if before is None else before.history), record),
        explanation=explanation,
        backbone=backbone,
        statistics=statistics,
        met=met,
        tuned=tuned,
    )


class _Both(nn.Module):
    """The mean of the logits of the frozen classifier and of the tuned copy."""

    def __init__(self, frozen: nn.Module, tuned: nn.Module) -> None:
        super().__init__()
        self.frozen, self.tuned = frozen, tuned

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of normalized images."""
        logits: Tensor = (self.frozen(images) + self.tuned(images)) / 2
        return logits


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
