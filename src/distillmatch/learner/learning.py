"""Learning a task: its images are read, then learned from features or by training."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from warnings import warn

import numpy as np

from distillmatch.config import RunConfig
from distillmatch.engine import Placement, Progress
from distillmatch.errors import LearnerError
from distillmatch.learner.backbone import Backbone
from distillmatch.learner.environment import read_unlabeled
from distillmatch.learner.feature_reader import FeatureReader, VectorReader
from distillmatch.learner.features import Featured, learn_features
from distillmatch.learner.inputs import Items, PixelReader, Reader, natural_side
from distillmatch.learner.keeper import Keeper
from distillmatch.learner.labels import Labeled, new_classes, read_labeled
from distillmatch.learner.settings import (
    AUTO,
    FEATURES,
    IDENTITY,
    MISSED,
    Parameters,
    resolve,
    resolve_again,
)
from distillmatch.learner.task import Task
from distillmatch.learner.trained import Trained, learn_trained
from distillmatch.sources.walk import shown

AnyLearned = Featured | Trained


def config_of(before: AnyLearned | None, parameters: Parameters) -> RunConfig:
    """Return the configuration, or refuse one that is not that of what was learned before."""
    if before is None:
        return resolve(parameters)
    return resolve_again(parameters, before.config, before.image_size)


def first_reader(parameters: Parameters, items: Items) -> Reader:
    """Return what reads images where nothing was learned yet, these ones being the first."""
    config = resolve(parameters)
    if config.network == IDENTITY:
        width = len(items[0]) if len(items) and isinstance(items[0], np.ndarray) else 0
        return VectorReader(Backbone.of_vectors(width, Placement.of(config)), None)
    if config.method == FEATURES:
        return FeatureReader(Backbone.of(config, Placement.of(config)))
    return PixelReader(config.image_size or natural_side(items))


def learn_task(
    before: AnyLearned | None,
    parameters: Parameters,
    labeled: Labeled,
    unlabeled: Any,
    name: str | None = None,
    progress: Progress | None = None,
    keeper: Keeper | None = None,
) -> AnyLearned:
    """Return what is learned after a task; what was learned before stays as it is."""
    if not len(labeled.items):
        raise LearnerError("images must be at least one, not none")
    tell: Callable[[str], Any] = warn if keeper is None else keeper.tell
    config = config_of(before, parameters)
    known, sizes = ((), ()) if before is None else (before.labels, before.sizes)
    # What cannot be learned is refused before anything is read.
    new_classes(known, labeled.labels)
    left_to_us = parameters["method"] == parameters["network"] == AUTO
    if before is None and left_to_us and config.method != FEATURES:
        tell(MISSED.format(method=config.method, network=config.network))
    _refuse_other_weights(before, config)
    labeled, again = _without_known(before, labeled, config, tell)

    began, limit, seed = time.perf_counter(), parameters["unlabeled_limit"], parameters["seed"]
    if before is None:
        reader = first_reader(parameters, labeled.items)
    else:
        reader = before.frozen_reader if isinstance(before, Featured) else before.reader
    pixels = None
    if isinstance(reader, FeatureReader) and parameters["fine_tune"]:
        to_pixels = PixelReader(reader.backbone.side)  # the images of a tuning are needed as such
        images, labeled = read_labeled(labeled, to_pixels, "labeled images")
        environment = read_unlabeled(unlabeled, to_pixels, limit, seed, len(sizes))
        pixels = images, environment.images
        images = reader.read(images)[0]
        environment = replace(environment, images=reader.read(environment.images)[0])
    else:
        images, labeled = read_labeled(labeled, reader, "labeled images")
        environment = read_unlabeled(unlabeled, reader, limit, seed, len(sizes))

    new = new_classes(known, labeled.labels)
    task = Task(
        name=f"task {len(sizes) + 1}" if name is None else name,
        config=config,
        known=known,
        classes=(*known, *new),
        sizes=(*sizes, len(new)),
        images=images,
        labeled=labeled,
        environment=environment,
        accept=parameters["accept"],
        examples=parameters["examples"],
        seconds=time.perf_counter() - began,
        again=again,
        fine_tune=parameters["fine_tune"],
        pixels=pixels,
    )
    learned: AnyLearned
    if isinstance(reader, FeatureReader):
        assert before is None or isinstance(before, Featured)
        learned = learn_features(before, task, reader, progress, keeper)
    else:
        assert before is None or isinstance(before, Trained)
        learned = learn_trained(before, task, progress, keeper)
    rows, record = environment.images, learned.history[-1]
    if record["rejected"] is None and learned.gives_scores and len(rows):
        unfamiliar = learned.familiarity(rows) < learned.threshold(task.accept)
        record["rejected"] = int(unfamiliar.sum())
    return learned


def _refuse_other_weights(before: AnyLearned | None, config: RunConfig) -> None:
    """Refuse a file of weights by which features would be others; its name does not matter."""
    if not isinstance(before, Featured) or config.pretrained in (None, before.config.pretrained):
        return
    config = config.replace(image_size=before.image_size)
    if Backbone.of(config, before.placement).digest != before.backbone.digest:
        raise LearnerError(
            f"pretrained: {shown(str(config.pretrained))} holds other weights than those that were "
            "learned with, which cannot change"
        )


def _without_known(
    before: AnyLearned | None, labeled: Labeled, config: RunConfig, tell: Callable[[str], Any]
) -> tuple[Labeled, int]:
    """Return the images that were not learned before under their labels, and how many were."""
    if config.method == FEATURES:
        labeled = labeled.with_contents()
    if not isinstance(before, Featured) or not (known := before.learned_before(labeled)).any():
        return labeled, 0
    again = int(known.sum())
    tell(f"{again:,} of {len(known):,} labeled images were learned before and do not count again")
    return labeled.part(np.flatnonzero(~known).tolist()), again
