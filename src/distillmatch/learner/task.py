"""What a task brings, and what is told of it afterwards, whichever way it is learned."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import RunConfig
from distillmatch.engine import Snapshot
from distillmatch.learner.environment import FOR_EXAMPLE, Environment
from distillmatch.learner.explanation import Explanation, Label
from distillmatch.learner.inputs import Pixels
from distillmatch.learner.labels import Labeled, new_classes
from distillmatch.learner.learned import Learned
from distillmatch.learner.recognition import Judged


class Keeper(Protocol):
    """Keeps a task's snapshots, so that it can be continued."""

    def tell(self, sentence: str, /) -> None:
        """Say something to the user."""

    def found(self, fingerprint: str) -> Snapshot | None:
        """Return where the task with this fingerprint stands, or refuse another's."""

    def pause(self, take: Callable[[], Snapshot]) -> None:
        """Keep a snapshot if one is due; called wherever one can be taken."""


@dataclass(frozen=True, eq=False)
class Given:
    """What a task brings; images and the environment's are rows, as the learner's reader made them.

    `accept` is the share of known images that are to be recognized as such; at most so many
    `examples` of accepted images are kept. Reading it all took so many `seconds`. So many labeled
    images came `again` and were left out. A copy of a pretrained network is to be tuned for
    `fine_tune` epochs, if any, with the `pixels` of the labeled and the unlabeled images.
    """

    name: str
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
    def digests(self) -> NDArray[np.int64]:
        """What tells labeled image files with their labels from others."""
        return self.labeled.digests()

    def fingerprint(self, config: RunConfig, tasks: int) -> str:
        """Return what tells this task from another one on the same learner."""
        told = config.model_dump(mode="json", exclude={"device"})
        what = (tasks, self.labels, told, *([self.fine_tune] if self.fine_tune else []))
        digest = hashlib.blake2b(repr(what).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.images).data)
        digest.update(np.ascontiguousarray(self.environment.images).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Classes:
    """The classes that were `known` before a task, those known after it, and tasks' sizes."""

    known: tuple[Label, ...]
    labels: tuple[Label, ...]
    sizes: tuple[int, ...]

    @classmethod
    def after(cls, before: Learned | None, given: Given) -> "Classes":
        """Number a task's classes after those that are known."""
        known = () if before is None else before.labels
        labels = (*known, *new_classes(known, given.labels))
        earlier = () if before is None else before.sizes
        return cls(known, labels, (*earlier, len(labels) - len(known)))


def explained(given: Given, labels: Sequence[Label], judgement: Judged) -> Explanation:
    """Return what was accepted of the environment, as yet without examples."""
    accepted = judgement.accepted
    counts = np.bincount(judgement.pseudo_labels[accepted], minlength=len(labels))
    return Explanation(
        name=given.name,
        seen=given.environment.seen,
        accepted=int(accepted.sum()),
        by_class={label: int(n) for label, n in zip(labels, counts, strict=True) if n},
        examples=[],
    )


def record_of(given: Given, classes: Classes, explanation: Explanation) -> dict[str, Any]:
    """Return what is told of every task, as JSON can hold it; the rest depends on how it learns."""
    environment, came = given.environment, Counter(given.labels)
    return {
        "name": given.name,
        "number": len(classes.sizes),
        "added": list(classes.labels[len(classes.known) :]),
        "returned": [label for label in classes.known if label in came],
        "labeled": len(given.labels),
        "labeled_by_class": {str(label): came[label] for label in classes.labels if label in came},
        "seen": environment.seen,
        "kept": len(environment.images),
        "unreadable": environment.unreadable,
        "accepted": explanation.accepted,
        "accepted_by_class": {str(label): n for label, n in explanation.by_class.items()},
        "accept": given.accept,
        "rejected": None,
        "test": None,
        "left_out": {
            "labeled": len(given.labeled.problems),
            "test": 0,
            "hidden": given.labeled.hidden + environment.hidden,
            "again": given.again,
            "for_example": [*given.labeled.problems, *environment.problems][:FOR_EXAMPLE],
        },
    }
