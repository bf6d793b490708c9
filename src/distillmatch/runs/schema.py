"""The form of what runs write: results (docs/reference/files.md), checkpoints, and stages."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Whole = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Text = Annotated[str, Field(strict=True)]
Truth = Annotated[bool, Field(strict=True)]
Losses = dict[str, dict[str, list[Number]]]
Matrix = list[list[Number | None]]


class _Form(BaseModel):
    """All fields are needed, and no others are known."""

    model_config = ConfigDict(extra="forbid")


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Seconds(_Open):
    """Seconds by training, and those of the whole run."""

    __pydantic_extra__: dict[str, Number]
    total: Number


def _form(base: type[BaseModel] = _Form, /, **fields: Any) -> Any:
    """Return a form of fields with these types; a pair is a type and a default."""
    given: dict[str, Any] = {
        key: kind if isinstance(kind, tuple) else (kind, ...) for key, kind in fields.items()
    }
    return create_model("Form", __base__=base, **given)


_TASK_OF_ROW = _form(
    task=Whole,
    test_images=Whole,
    detector=_form(
        **dict.fromkeys(("auroc", "tpr", "fpr", "threshold", "epsilon"), Number | None),
        **dict.fromkeys(("accepted", "accepted_past", "pseudo_labels_right"), Number | None),
    ),
    losses=Losses,
    seconds=dict[str, Number],
    stored_images=Whole,
    stored_bytes=Whole,
)
_TASK = _form(_TASK_OF_ROW, accuracy=Number)


class _Results(_Form):
    """The finished tasks, and what was measured after each."""

    R: Matrix
    A: Matrix
    P: Matrix
    tasks: list[_TASK]  # type: ignore[valid-type]

    @model_validator(mode="after")
    def _has_triangles(self) -> Self:
        tasks = range(len(self.tasks))
        for name, rows in (("R", self.R), ("A", self.A), ("P", self.P)):
            if len(rows) != len(tasks):
                raise ValueError(f"{name} has {len(rows)} rows for {len(tasks)} tasks")
            for i, row in zip(tasks, rows, strict=True):
                known = [value for value in row[: i + 1] if value is not None and 0 <= value <= 100]
                if len(known) <= i or row[i + 1 :] != [None] * (len(tasks) - i - 1):
                    raise ValueError(
                        f"{name} must hold percentages up to its diagonal, and null above it"
                    )
        return self


RESULT = _form(
    _Results,
    format=Literal["distillmatch result"],
    version=Literal[1, 2],
    config=_form(_Open, options=(dict[str, Any], {})),
    options=dict[str, Any],
    stream=_form(
        **dict.fromkeys(("source", "order", "splits", "fingerprint"), Text),
        **dict.fromkeys(("image_size", "labels_per_class"), Whole | None),
        tasks=Whole,
        task_sizes=list[Whole] | None,
        class_order=list[Text] | None,
        label_fraction=Number | None,
        repetition=(Number, 0.0),
        distractors=(Whole, 0),
        seed=Whole,
    ),
    method=Text,
    seed=Whole,
    uses_truth=Truth,
    pretrained_sha256=(Text | None, None),
    classes=list[Text],
    task_sizes=list[Whole],
    versions=dict[str, Text],
    machine=_form(
        **dict.fromkeys(("device", "precision", "system"), Text),
        cores=Whole | None,
        runs_at_once=(Whole, 1),  # of earlier versions
    ),
    commit=_form(id=Text, dirty=Truth | None, tree=(Text | None, None)),
    complete=Truth,
    metrics=_form(
        **dict.fromkeys(("A_N", "bwt", "fgt"), Number),
        **dict.fromkeys(("omega", "omega_double_sum"), Number | None),
        omega_curve=list[Number] | None,
        accuracies=list[Number],
    ),
    seconds=_Seconds,
    memory=_form(stored_images=Whole, stored_bytes=Whole, peak_device_bytes=Whole | None),
)
"""A result; one of version 1, upgraded, has the options of its time in `config`."""


class SnapshotSchema(_Form):
    """The plain values of a snapshot."""

    task: Count
    trainings: Count
    epochs: Count
    losses: Losses
    seconds: dict[str, Number]
    work: Number
    values: dict[str, Number]
    copies: dict[str, Text]
    coreset: list[Count]


LearnerCheckpoint = _form(fingerprint=Text, engine=SnapshotSchema)
"""The plain values of the checkpoint of a learner's task."""
RunCheckpoint = _form(
    BaseModel,
    config=dict[str, Any],
    stream=_form(_Open, fingerprint=Text),
    pretrained_sha256=Text | None,
    seconds=Number,
    peak_device_bytes=Whole | None,
    made_with=dict[str, Any],
    results=_Results,
    row=(_form(**dict.fromkeys("RAP", list[Number]), task=_TASK_OF_ROW) | None, None),
    engine=SnapshotSchema,
)
"""Which run a checkpoint is of, what that has used and finished, and where it stands.

`row` is that of a task that was learned alone, once it is finished.
"""


def upgraded(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result of version 1 in the form of version 2; others as they are.

    Its configuration stays what it was: flat, with options that are gone.
    """
    stream, tasks = result.get("stream"), result.get("tasks")
    if result.get("version") != 1 or not isinstance(stream, dict) or not isinstance(tasks, list):
        return result
    tasks = [
        {**one, "losses": {name: {"loss": means} for name, means in one["losses"].items()}}
        if isinstance(one, dict) and isinstance(one.get("losses"), dict)
        else one
        for one in tasks
    ]
    return {**result, "options": {}, "stream": {"splits": "hashed", **stream}, "tasks": tasks}


def problems_of_form(record: Any, schema: type[BaseModel] = RESULT) -> list[str]:
    """Return what is wrong with the form of a record, by default a result; a sentence a field."""
    try:
        schema.model_validate(record)
    except ValidationError as error:
        return [_sentence(one["loc"], one["msg"], one["input"]) for one in error.errors()]
    return []


def _sentence(place: tuple[int | str, ...], message: str, came: Any) -> str:
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]
    if message == "Field required":
        return f"{name} is missing"
    if message.startswith("Extra inputs"):
        return f"{name} is no field of a result"
    if message.startswith("Value error, "):
        return f"{name}: {message.removeprefix('Value error, ')}".removeprefix(": ")
    return f"{name}: {message[0].lower()}{message[1:]}, not {came!r:.60}"
