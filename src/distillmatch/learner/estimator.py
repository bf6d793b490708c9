"""The learner as an estimator with scikit-learn's conventions, without scikit-learn."""

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from distillmatch.engine import Progress
from distillmatch.errors import LearnerError
from distillmatch.learner.explanation import Explanation
from distillmatch.learner.features import Featured
from distillmatch.learner.inputs import Items, Reader, open_images, read_in_chunks
from distillmatch.learner.keeper import Keeper
from distillmatch.learner.labels import (
    UNKNOWN,
    Labeled,
    label_array,
    labeled_images,
    labels_of,
    read_labeled,
    slots_of,
)
from distillmatch.learner.learning import AnyLearned, config_of, first_reader, learn_task
from distillmatch.learner.saved import alone_in, read_learned, write_learned
from distillmatch.learner.settings import AUTO, Limits, plain
from distillmatch.learner.trained import Trained
from distillmatch.methods import Method
from distillmatch.streams import Coreset
from distillmatch.terminal import shown_progress
from distillmatch.views import Normalization


@dataclass(eq=False, repr=False)
class ContinualLearner:
    """Learns classes of images a task at a time, with the help of unlabeled images.

    With `method` and `network` "auto", it keeps statistics of a pretrained network's features where
    the extra `pretrained` is installed, and else trains a small network from scratch, by method
    "worldmatch" with `accept` "newness" and a `coreset` of 75 images. `pretrained` is a file of
    weights for another `network`. With `fine_tune`, a number of epochs, a copy of that network is
    tuned in each task, and used beside the frozen one where held-out images say that it helps.

    The parameters have the names, meanings and defaults of a run's configuration; `options` holds
    any others of them, and those of a user's own method. Beside them: of a task's unlabeled images
    at most `unlabeled_limit` are used; `accept` is the share of known images that
    `predict(reject=True)` should answer; at most so many `examples` of accepted images are kept.
    """

    method: str = AUTO
    network: str = AUTO
    image_size: int | None = None
    epochs: int = 200
    batch: int = 64
    unlabeled_batch: int = 128
    coreset: int | None = None
    learning_rate: float | None = None
    seed: int = 1
    device: str = "auto"
    options: dict[str, Any] | None = None
    unlabeled_limit: int = 50_000
    accept: float = 0.95
    examples: int = 24
    pretrained: Path | str | None = None
    fine_tune: int = 0

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        unlabeled: Any = None,
        classes: Any = None,
        *,
        name: str | None = None,
        verbose: bool = False,
        progress: Progress | None = None,
        checkpoint: Keeper | None = None,
    ) -> Self:
        """Learn one task: new classes, more of known ones, or both.

        A folder with a folder for each class needs no `y`. Should anything go wrong, the learner is
        as it was before. Classes are learned as they come: if `classes` are given, labels must be
        among them. `verbose` shows progress with the time left. With `checkpoint` the task can be
        continued.
        """
        with shown_progress(progress, verbose, name or "learning") as shown_as:
            labeled = labeled_images(X, y)
            if classes is not None and (others := {*labeled.labels} - {*labels_of(classes)}):
                raise LearnerError(
                    "labels must be among the classes that were given, but "
                    f"{min(others, key=str)!r} came"
                )
            before = self._learned_or_none()
            self._learned = learn_task(
                before, self._plain(), labeled, unlabeled, name, shown_as, checkpoint
            )
        return self

    def fit(self, X: Any, y: Any = None, unlabeled: Any = None, *, verbose: bool = False) -> Self:
        """Forget everything, and learn a first task."""
        with shown_progress(None, verbose, "learning") as progress:
            labeled = labeled_images(X, y)
            self._learned = learn_task(None, self._plain(), labeled, unlabeled, progress=progress)
        return self

    def learned_before(self, labeled: Labeled) -> NDArray[np.bool_]:
        """Mark labeled images that would count twice, were they learned now."""
        before = self._learned_or_none()
        if isinstance(before, Featured):
            return before.learned_before(labeled)
        return np.zeros(len(labeled.items), np.bool_)

    def reader_for(self, items: Items) -> Reader:
        """Return what reads images; these ones are the first if nothing was learned yet."""
        before = self._learned_or_none()
        return first_reader(self._plain(), items) if before is None else before.reader

    def predict(self, X: Any, reject: bool = False, accept: float | None = None) -> NDArray[Any]:
        """Return the label of each image; with `reject`, "unknown" where it looks like no class.

        The threshold is such that a share `accept` of known images, by default the learner's own,
        are answered.
        """
        return self._of_all(X, lambda rows: self.answer_rows(rows, reject, accept)[0])

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return the probability of each class, in the order of `classes_`."""
        return self._of_all(X, lambda rows: self.answer_rows(rows)[1])

    def predict_familiarity(self, X: Any) -> NDArray[np.float32]:
        """Return how familiar each image looks: the higher, the more like what was learned.

        Images that look less familiar than a threshold are what `predict(reject=True)` rejects.
        """
        return self._of_all(X, self._scoring().familiarity)

    def _of_all(self, X: Any, answer: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        """Return the answer for all images, which are read a chunk at a time."""
        reader = self._fitted().reader
        chunks = read_in_chunks(open_images(X), reader)
        return np.concatenate([answer(rows) for rows in chunks])

    def answer_rows(
        self, rows: NDArray[Any], reject: bool = False, accept: float | None = None
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Return labels and probabilities of images that the learner's reader has read."""
        learned = self._scoring() if reject else self._fitted()
        known, logits = label_array(learned.labels), learned.logits(rows)
        probabilities: NDArray[np.float32] = torch.from_numpy(logits).softmax(dim=1).numpy()
        answers: NDArray[Any] = known[logits.argmax(axis=1)]
        if reject:
            share = Limits(**plain({"accept": self.accept if accept is None else accept}))
            familiar = learned.familiarity(rows) >= learned.threshold(share.accept)
            mixed = np.where(familiar, answers.astype(object), UNKNOWN)
            answers = mixed.astype(np.str_) if known.dtype.kind == "U" else mixed
        return answers, probabilities

    def nearest_mean_rows(self, rows: NDArray[Any]) -> NDArray[Any] | None:
        """Return the label whose mean of features is nearest, where the learner has features."""
        learned = self._fitted()
        if isinstance(learned, Trained):
            return None
        found: NDArray[Any] = label_array(learned.labels)[learned.nearest_mean(rows)]
        return found

    def score(self, X: Any, y: Any = None) -> float:
        """Return the share of images whose label is predicted; one never learned counts as wrong.

        A folder with a folder for each class needs no `y`.
        """
        learned = self._fitted()
        labeled = labeled_images(X, y)
        if not len(labeled.items):
            raise LearnerError("images must be at least one, not none")
        rows, left = read_labeled(labeled, learned.reader)
        right = learned.logits(rows).argmax(axis=1) == slots_of(learned.labels, left.labels)
        return float(right.mean())

    def explain(self) -> Explanation:
        """Return what was accepted from the environment in the last task."""
        return self._fitted().explanation

    def save(self, path: Path | str) -> None:
        """Write the learner into a folder, which has the old one or the new one at any moment.

        A folder in which another process learns is refused.
        """
        self._fitted()
        folder = Path(path).expanduser()
        with alone_in(folder):
            self.write(folder)

    def write(self, folder: Path) -> None:
        """Write the learner into a folder whose lock the caller holds."""
        learned, parameters = self._fitted(), self._plain()
        config_of(learned, parameters)  # or nobody could load the folder
        write_learned(folder, parameters, learned)

    @classmethod
    def load(
        cls, path: Path | str, device: str = "auto", *, allow_import: str | Collection[str] = ()
    ) -> Self:
        """Read a learner from its folder, to continue with it on `device`.

        Nothing in the folder is run. A method or network of your own (`module:name`) is imported
        only if `allow_import` names it.
        """
        allowed = (allow_import,) if isinstance(allow_import, str) else allow_import
        settings, learned = read_learned(Path(path).expanduser(), device, allowed)
        learner = cls(**settings)
        learner._learned = learned
        return learner

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, in the order in which their tasks came; within a task they are sorted."""
        return label_array(self._fitted().labels)

    @property
    def history_(self) -> list[dict[str, Any]]:
        """The record of each task, with the entries of `distillmatch.learner.schema.Record`."""
        return list(self._fitted().history)

    @property
    def image_size_(self) -> int:
        """The side to which images are brought."""
        return self._fitted().image_size

    @property
    def normalization_(self) -> Normalization:
        """Mean and spread of the first task's images, by which all are normalized."""
        return self._fitted().normalization

    @property
    def method_(self) -> Method:
        """The method with its networks."""
        return self._trained().method

    @property
    def coreset_(self) -> Coreset:
        """The images that are kept."""
        return self._trained().coreset

    @property
    def classifier_(self) -> nn.Module:
        """The network from normalized images to logits, of which the first are the classes'."""
        return self._fitted().classifier()

    @property
    def can_reject(self) -> bool:
        """Whether it is known how familiar images look."""
        return self._fitted().gives_scores

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Change some parameters; those that decide how learning goes count from the next task."""
        names = [field.name for field in fields(self)]
        if unknown := [name for name in params if name not in names]:
            raise LearnerError(
                f"unknown parameter '{unknown[0]}'; the parameters are {', '.join(names)}"
            )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        values = ((field, getattr(self, field.name)) for field in fields(self))
        given = [f"{field.name}={value!r}" for field, value in values if value != field.default]
        return f"{type(self).__name__}({', '.join(given)})"

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn, where that is installed, what kind of estimator this is."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags  # noqa: PLC0415

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return self._learned_or_none() is not None

    def _learned_or_none(self) -> AnyLearned | None:
        return self.__dict__.get("_learned")

    def _fitted(self) -> AnyLearned:
        learned = self._learned_or_none()
        if learned is None:
            raise _not_fitted("this learner has learned nothing yet; give it a task by partial_fit")
        return learned

    def _trained(self) -> Trained:
        learned = self._fitted()
        if not isinstance(learned, Trained):
            raise LearnerError("method 'features' trains no network and keeps no images")
        return learned

    def _scoring(self) -> AnyLearned:
        """Return what was learned, if it says how familiar images look."""
        learned = self._fitted()
        if learned.gives_scores:
            return learned
        if isinstance(learned, Featured):
            raise LearnerError(
                "how familiar known images look is not known yet: each class has one labeled image "
                "only; give a class a second one"
            )
        raise LearnerError(
            f"what method '{learned.config.method}' learned has no score for unknown images; "
            "reject needs method 'features', or one that scores images, such as 'dm' with "
            "pseudo-labels"
        )

    def _plain(self) -> dict[str, Any]:
        return plain(self.get_params())


class NotFittedError(LearnerError, AttributeError):
    """The learner was asked before it was taught."""


def _not_fitted(sentence: str) -> Exception:
    """Return the error for a learner that has learned nothing: scikit-learn's own where in use."""
    kinds: tuple[type, ...] = (NotFittedError,)
    if exceptions := sys.modules.get("sklearn.exceptions"):
        kinds += (exceptions.NotFittedError,)
    error: Exception = type("NotFittedError", kinds, {})(sentence)
    return error
