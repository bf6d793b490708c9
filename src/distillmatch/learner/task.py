"""What is carried from task to task, and what a task is given."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import RunConfig
from distillmatch.engine import Judgement, Placement
from distillmatch.learner import feature_classifier
from distillmatch.learner.environment import FOR_EXAMPLE, Environment
from distillmatch.learner.explanation import Explanation, Label
from distillmatch.learner.inputs import Pixels
from distillmatch.learner.labels import Labeled, slots_of
from distillmatch.views import Normalization

AnyJudgement = Judgement | feature_classifier.Judgement


@dataclass(frozen=True, eq=False)
class Learned:
    """What both kinds of learning carry from one task to the next.

    `Featured` keeps statistics of a frozen network's features, `Trained` networks that a method
    trained. `labels` are the classes in the order of the logits, `sizes` how many each task added.
    """

    config: RunConfig
    placement: Placement
    labels: tuple[Label, ...]
    sizes: tuple[int, ...]
    image_size: int
    normalization: Normalization
    history: tuple[dict[str, Any], ...]
    explanation: Explanation


@dataclass(frozen=True, eq=False)
class Task:
    """What a task is given; images and the environment's are rows, as the reader made them.

    `known` are the classes before it, `classes` those after it, and `sizes` how many each task
    added. So many labeled images came `again` and were left out; reading took so many `seconds`. A
    copy of a pretrained network is tuned with the `pixels` of the labeled and the unlabeled images,
    for `fine_tune` epochs.
    """

    name: str
    config: RunConfig
    known: tuple[Label, ...]
    classes: tuple[Label, ...]
    sizes: tuple[int, ...]
    images: NDArray[Any]
    labeled: Labeled
    environment: Environment
    accept: float
    examples: int
    seconds: float
    again: int
    fine_tune: int = 0
    pixels: tuple[Pixels, Pixels] | None = None

    @property
    def labels(self) -> Sequence[Label]:
        """The label of each image."""
        return self.labeled.labels

    @property
    def slots(self) -> NDArray[np.int64]:
        """The number of the class of each image."""
        return slots_of(self.classes, self.labels)

    @property
    def fingerprint(self) -> str:
        """A hash that identifies the task on its learner."""
        config = self.config.model_dump(mode="json", exclude={"device"})
        what = (
            len(self.sizes) - 1,
            self.labels,
            config,
            *([self.fine_tune] * (self.fine_tune > 0)),
        )
        digest = hashlib.blake2b(repr(what).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.images).data)
        digest.update(np.ascontiguousarray(self.environment.images).data)
        return digest.hexdigest()

    def explained(self, judgement: AnyJudgement | None) -> Explanation:
        """Return what was accepted of the environment, as yet without examples."""
        seen = self.environment.seen
        if judgement is None:
            return Explanation(self.name, seen, None, {}, [])
        accepted = judgement.accepted
        counts = np.bincount(judgement.pseudo_labels[accepted], minlength=len(self.classes))
        by_class = {label: int(n) for label, n in zip(self.classes, counts, strict=True) if n}
        return Explanation(self.name, seen, int(accepted.sum()), by_class, [])

    def record(self, explanation: Explanation) -> dict[str, Any]:
        """Return the part of a task's record that both kinds of learning have."""
        environment, came = self.environment, Counter(self.labels)
        return {
            "name": self.name,
            "number": len(self.sizes),
            "added": list(self.classes[len(self.known) :]),
            "returned": [label for label in self.known if label in came],
            "labeled": len(self.labels),
            "labeled_by_class": {str(one): came[one] for one in self.classes if one in came},
            "seen": environment.seen,
            "kept": len(environment.images),
            "unreadable": environment.unreadable,
            "accepted": explanation.accepted,
            "accepted_by_class": {str(label): n for label, n in explanation.by_class.items()},
            "accept": self.accept,
            "rejected": None,
            "test": None,
            "left_out": {
                "labeled": len(self.labeled.problems),
                "test": 0,
                "hidden": self.labeled.hidden + environment.hidden,
                "again": self.again,
                "for_example": [*self.labeled.problems, *environment.problems][:FOR_EXAMPLE],
            },
        }
