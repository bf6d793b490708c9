"""The learner as a scikit-learn-style estimator."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from distillmatch.config import RunConfig
from distillmatch.engine import Progress
from distillmatch.errors import LearnerError
from distillmatch.learner.environment import look_around
from distillmatch.learner.explanation import Explanation
from distillmatch.learner.inputs import (
    Items,
    PixelReader,
    natural_side,
    open_images,
    read_images,
    read_in_chunks,
)
from distillmatch.learner.labels import (
    UNKNOWN,
    label_array,
    labeled_images,
    new_classes,
    slots_of,
)
from distillmatch.learner.learned import Learned
from distillmatch.learner.parameters import Parameters, not_fitted
from distillmatch.learner.recognition import familiarity, views_of
from distillmatch.learner.saved import alone_in, read_learned, write_learned
from distillmatch.learner.settings import lasting, plain, run_config
from distillmatch.learner.task import Given, Keeper, learn_task
from distillmatch.methods import Method
from distillmatch.methods.contract import logits_of
from distillmatch.sources.walk import shown
from distillmatch.streams import Coreset
from distillmatch.views import Normalization

_starting = Lock()
_learning: set[int] = set()
"""Learners that learn a task just now; kept apart from them, so that they can be copied."""


class ContinualLearner(Parameters):
    """Learns classes of images a task at a time, with whatever unlabeled images are around.

    The parameters have the names, meanings and defaults of a run's configuration; `options` holds
    any others of them, and those of a user's own method. Beside them: of a task's unlabeled images
    at most `unlabeled_limit` are used; `known_rate` is the share of familiar images that
    `predict(reject=True)` should answer; at most so many `examples` of accepted images are kept.
    """

    def __init__(
        self,
        method: str = "dm",
        network: str = "wrn-28-2",
        image_size: int | None = None,
        epochs: int = 200,
        batch: int = 64,
        unlabeled_batch: int = 128,
        coreset: int = 0,
        learning_rate: float | None = None,
        seed: int = 1,
        device: str = "auto",
        options: dict[str, Any] | None = None,
        unlabeled_limit: int = 50_000,
        known_rate: float = 0.95,
        examples: int = 24,
    ) -> None:
        self.method = method
        self.network = network
        self.image_size = image_size
        self.epochs = epochs
        self.batch = batch
        self.unlabeled_batch = unlabeled_batch
        self.coreset = coreset
        self.learning_rate = learning_rate
        self.seed = seed
        self.device = device
        self.options = options
        self.unlabeled_limit = unlabeled_limit
        self.known_rate = known_rate
        self.examples = examples

    def partial_fit(
        self,
        images: Any,
        labels: Any = None,
        unlabeled: Any = None,
        *,
        name: str | None = None,
        progress: Progress | None = None,
        checkpoint: Keeper | None = None,
    ) -> Self:
        """Learn one task: new classes, more of known ones, or both.

        A folder with a folder for each class needs no `labels`. Should anything go wrong, the
        learner is as it was before. With `checkpoint` the task can be continued.
        """
        with self._alone():
            self._learned = self._after(images, labels, unlabeled, name, progress, checkpoint)
        return self

    def _after(
        self,
        images: Any,
        labels: Any,
        unlabeled: Any,
        name: str | None,
        progress: Progress | None,
        checkpoint: Keeper | None,
    ) -> Learned:
        """Return what is learned after a task."""
        before = self._learned_or_none()
        config, parameters = self._config(before), plain(self.get_params())
        items, found = labeled_images(images, labels)
        if not len(items):
            raise LearnerError("images must be at least one, not none")
        new_classes(() if before is None else before.labels, found)
        side = self.side_for(items)
        number = 0 if before is None else len(before.sizes)
        given = Given(
            name=f"task {number + 1}" if name is None else name,
            images=read_images(items, side),
            labels=found,
            environment=look_around(
                unlabeled, PixelReader(side), parameters["unlabeled_limit"], config.seed, number
            ),
            known_rate=parameters["known_rate"],
            examples=parameters["examples"],
        )
        return learn_task(before, config, given, progress, checkpoint)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second task while one is being learned, whose result would be lost."""
        with _starting:
            if id(self) in _learning:
                raise LearnerError(
                    "this learner is learning a task in another thread; wait until it is done"
                )
            _learning.add(id(self))
        try:
            yield
        finally:
            _learning.discard(id(self))

    def fit(self, images: Any, labels: Any = None, unlabeled: Any = None) -> Self:
        """Forget everything, and learn a first task."""
        kept = self.__dict__.pop("_learned", None)
        try:
            return self.partial_fit(images, labels, unlabeled)
        except BaseException:
            if kept is not None:
                self._learned = kept
            raise

    def side_for(self, items: Items) -> int:
        """Return the side to which images are brought, these ones being the first if none were."""
        before = self._learned_or_none()
        if before is not None:
            return before.image_size
        return self._config(None).image_size or natural_side(items)

    def predict(self, images: Any, reject: bool = False) -> NDArray[Any]:
        """Return the label of each image; with `reject`, "unknown" where it looks like no class."""
        learned = self._fitted()
        if reject and learned.known_threshold is None:
            raise LearnerError(
                f"what method '{learned.config.method}' learned has no threshold to tell strangers "
                "by; reject needs a method that scores images, such as 'dm' with pseudo-labels and "
                "any gate but 'everything'"
            )
        known = label_array(learned.labels)
        answers = [known[:0]]
        for chunk in read_in_chunks(open_images(images), PixelReader(learned.image_size)):
            answer = known[self._logits(learned, chunk).argmax(axis=1)]
            if reject:
                answer = np.where(self._is_known(learned, chunk), answer.astype(object), UNKNOWN)
            answers.append(answer)
        whole = np.concatenate(answers)
        return whole.astype(np.str_) if reject and known.dtype.kind == "U" else whole

    def predict_proba(self, images: Any) -> NDArray[np.float32]:
        """Return the probability of each class, in the order of `classes_`."""
        learned = self._fitted()
        rows = [np.empty((0, len(learned.labels)), np.float32)]
        for chunk in read_in_chunks(open_images(images), PixelReader(learned.image_size)):
            rows.append(torch.from_numpy(self._logits(learned, chunk)).softmax(dim=1).numpy())
        return np.concatenate(rows)

    def score(self, images: Any, labels: Any = None) -> float:
        """Return the share of images whose label is predicted; one never learned counts as wrong.

        A folder with a folder for each class needs no `labels`.
        """
        learned = self._fitted()
        items, found = labeled_images(images, labels)
        if not len(items):
            raise LearnerError("images must be at least one, not none")
        slots = slots_of(learned.labels, found)
        guesses = [
            self._logits(learned, chunk).argmax(axis=1)
            for chunk in read_in_chunks(items, PixelReader(learned.image_size))
        ]
        return float(np.mean(np.concatenate(guesses) == slots))

    def explain(self) -> Explanation:
        """Return what was accepted from the environment in the last task."""
        return self._fitted().explanation

    def save(self, path: Path | str) -> None:
        """Write the learner into a folder, which has the old one or the new one at any moment.

        A folder in which another process learns is refused.
        """
        folder = Path(path).expanduser()
        self._fitted()
        with alone_in(folder, lambda sentence: None):
            self.write(folder)

    def write(self, folder: Path) -> None:
        """Write the learner into a folder of which the caller holds the lock."""
        learned = self._fitted()
        self._config(learned)  # parameters that do not fit would make a folder that nobody can load
        write_learned(folder, plain(self.get_params()), learned)

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
        try:
            learner = cls(**settings)
        except TypeError as error:
            raise LearnerError(f"{shown(path)}: not a whole learner ({error})") from None
        learner._learned = learned
        return learner

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, in the order in which their tasks came; within a task they are sorted."""
        return label_array(self._fitted().labels)

    @property
    def history_(self) -> list[dict[str, Any]]:
        """A record for each task."""
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
        return self._fitted().method

    @property
    def coreset_(self) -> Coreset:
        """The images that are kept."""
        return self._fitted().coreset

    def __sklearn_is_fitted__(self) -> bool:
        return self._learned_or_none() is not None

    def _learned_or_none(self) -> Learned | None:
        return self.__dict__.get("_learned")

    def _fitted(self) -> Learned:
        learned = self._learned_or_none()
        if learned is None:
            raise not_fitted("this learner has learned nothing yet; give it a task by partial_fit")
        return learned

    def _config(self, before: Learned | None) -> RunConfig:
        """Return the configuration, or refuse one that is not that of what was learned."""
        config = run_config(plain(self.get_params()))
        if before is None:
            return config
        there, now = lasting(before.config), lasting(config)
        there["image_size"] = before.image_size
        for name, value in there.items():
            chosen = now[name]
            if chosen != value and not (name == "image_size" and chosen is None):
                raise LearnerError(
                    f"{name} is {value!r} in what was learned, and cannot become {chosen!r}"
                )
        return config

    def _logits(self, learned: Learned, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        rows = []
        for views in views_of(images, learned.normalization, learned.placement):
            with torch.no_grad(), learned.placement.autocast():
                logits = logits_of(learned.method, views, len(learned.labels))
            rows.append(logits[:, : len(learned.labels)].float().cpu().numpy())
        return np.concatenate(rows)

    def _is_known(self, learned: Learned, images: NDArray[np.uint8]) -> NDArray[np.bool_]:
        scores = familiarity(
            learned.method, learned.task, images, learned.normalization, learned.placement
        )
        assert scores is not None and learned.known_threshold is not None
        return scores >= learned.known_threshold
