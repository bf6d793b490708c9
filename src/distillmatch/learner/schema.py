"""The form of `learner.json`, checked before any of it is used."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from distillmatch.runs.schema import Count, Number, SnapshotSchema, Text, Truth

LabelValue = Annotated[int, Field(strict=True)] | Text
Percent = Number | None


class _Test(BaseModel):
    on: Text
    images: Count
    all: Percent
    old: Percent
    new: Percent
    old_before: Percent
    forgotten: Percent
    accepted: Percent = None
    nearest_mean: Percent = None
    by_class: dict[str, Number]
    answers: dict[str, dict[str, Count]] = {}
    unknown: dict[str, Count]


class _LeftOut(BaseModel):
    labeled: Count = 0
    test: Count = 0
    hidden: Count = 0
    again: Count = 0
    for_example: list[Text] = []


class _Record(BaseModel):
    """A task, as `distillmatch.learner.state` describes it."""

    name: Text
    number: Count
    added: list[LabelValue]
    returned: list[LabelValue]
    labeled: Count
    labeled_by_class: dict[str, Count]
    seen: Count
    kept: Count
    unreadable: Count
    accepted: Count | None
    accepted_by_class: dict[str, Count]
    unlabeled_in: list[Text] = []
    fingerprint: Text = ""
    seconds: dict[str, Number]
    losses: dict[str, Number]
    values: dict[str, Number]
    stored: Count
    stored_bytes: Count
    weights_bytes: Count
    statistics_bytes: Count | None = None
    accept: Number | None = None
    rejected: Count | None = None
    known_threshold: Number | None
    test: _Test | None
    left_out: _LeftOut = _LeftOut()


class _Normalization(BaseModel):
    mean: tuple[Number, Number, Number]
    std: tuple[Number, Number, Number]


class _Explanation(BaseModel):
    name: Text
    seen: Count
    accepted: Count | None
    by_class: list[tuple[LabelValue, Count]]
    examples: list[tuple[LabelValue, Number | None]]


class _Settings(BaseModel):
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
    history: Annotated[list[_Record], Field(min_length=1)]
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


def check_form(body: object) -> None:
    """Raise `ValueError` with one sentence if a learner's file has another form."""
    try:
        LearnerSchema.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
