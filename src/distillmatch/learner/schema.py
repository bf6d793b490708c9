"""The form of `learner.json`, checked before any of it is used."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator

from distillmatch.runs.schema import Count, Number, SnapshotSchema, Text, Truth

LabelValue = Annotated[int, Field(strict=True)] | Text
Percent = Number | None
Counts = dict[str, Count]
"""By label, or what else is counted."""


class Test(BaseModel):
    """What was measured after a task, in percent or points; None where nothing could be."""

    __test__ = False  # not one of pytest's

    on: Text
    images: Count
    all: Percent
    old: Percent
    new: Percent
    old_before: Percent
    forgotten: Percent
    accepted: Percent = None
    """Images of known classes that `reject` accepts."""
    nearest_mean: Percent = None
    """The accuracy of the nearest class mean on the same features."""
    by_class: dict[str, Number]
    answers: dict[str, Counts] = {}
    """What the images of each class were taken for."""
    unknown: Counts
    """Images of labels that the learner never saw."""


class LeftOut(BaseModel):
    """Files that are no image, files that were ignored, and images that came before."""

    labeled: Count = 0
    test: Count = 0
    hidden: Count = 0
    again: Count = 0
    for_example: list[Text] = []


class FineTuned(BaseModel):
    """The comparison of a tuned copy of the network on held-out images, in percent."""

    epochs: Count
    kept: Truth
    bytes: Count
    """The size of the copy, if it is kept."""
    labeled: Count
    """Labeled images held out, and the accuracy of the `frozen` network alone on them."""
    frozen: Percent
    tuned: Percent
    """The accuracy with the tuned copy beside it, or None where none was tuned."""
    past: Count
    """Unlabeled images held out that look like past classes."""
    same: Percent
    """The share of them that get the same answer with the copy."""


class Record(BaseModel):
    """A task, as `learn` returns it and the history lists it. Entries with a default are newer."""

    name: Text
    number: Count
    """From 1."""
    added: list[LabelValue]
    returned: list[LabelValue]
    labeled: Count
    """Images that were learned under their labels."""
    labeled_by_class: Counts
    seen: Count
    """Unlabeled images; `kept` of them could be used, and `unreadable` are no image."""
    kept: Count
    unreadable: Count
    accepted: Count | None
    """Unlabeled images taken for a class, or None where none was judged."""
    accepted_by_class: Counts
    unlabeled_in: list[Text] = []
    """The trainings that used unlabeled images."""
    fingerprint: Text = ""
    """Of the folders that the task was learned from, where it was not learned from Python."""
    seconds: dict[str, Number]
    losses: dict[str, Number]
    """The last mean of each training."""
    values: dict[str, Number]
    stored: Count
    """Images in the coreset."""
    stored_bytes: Count
    weights_bytes: Count
    statistics_bytes: Count | None = None
    """Of method 'features'."""
    accept: Number | None = None
    """Share of known images to accept; `known_threshold` is the familiarity that it needs."""
    rejected: Count | None = None
    """Unlabeled images that look like no class, or None where that is not known."""
    known_threshold: Number | None
    test: Test | None
    left_out: LeftOut = LeftOut()
    fine_tuned: FineTuned | None = None


class _Normalization(BaseModel):
    mean: tuple[Number, Number, Number]
    std: tuple[Number, Number, Number]


class _Explanation(BaseModel):
    name: Text
    seen: Count
    accepted: Count | None
    by_class: list[tuple[LabelValue, Count]]
    examples: list[tuple[LabelValue, Number | None]]


class _Settings(BaseModel, extra="forbid"):
    """The parameters of the estimator, which checks their values."""

    method: Text
    network: Text
    image_size: Count | None
    epochs: Count
    batch: Count
    unlabeled_batch: Count
    coreset: Count | None
    learning_rate: Number | None
    seed: Annotated[int, Field(strict=True)]
    device: Text
    options: dict[str, Any] | None
    unlabeled_limit: Count
    accept: Number
    examples: Count
    pretrained: Text | None = None
    fine_tune: Count = 0


class _Features(BaseModel):
    """What method 'features' needs to know of its network."""

    digest: Text
    published: Truth


class LearnerSchema(BaseModel):
    """What `learner.json` says of the learner; what it learned is a snapshot, or of features."""

    settings: _Settings
    method: Text
    network: Text
    labels: Annotated[list[LabelValue], Field(min_length=1)]
    sizes: Annotated[list[Count], Field(min_length=1)]
    image_size: Annotated[int, Field(strict=True, ge=8, le=512)]
    normalization: _Normalization
    known_threshold: Number | None = None
    accept: Number | None = None
    history: Annotated[list[Record], Field(min_length=1)]
    explanation: _Explanation
    snapshot: SnapshotSchema | None = None
    features: _Features | None = None
    made_with: dict[str, Any]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(set(self.labels)) < len(self.labels) or len({*map(type, self.labels)}) > 1:
            raise ValueError("labels must all differ and be of one kind")
        if sum(self.sizes) != len(self.labels) or len(self.sizes) != len(self.history):
            raise ValueError("sizes must fit the labels and the history")
        if (self.snapshot is None) == (self.features is None):
            raise ValueError("expected either a snapshot or features")
        if self.snapshot is not None and len(self.snapshot.coreset) != len(self.labels):
            raise ValueError("snapshot.coreset must fit the labels")
        return self
