"""The form of what runs write: results (docs/reference/files.md), checkpoints, and stages."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from distillmatch.errors import ResultError

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Whole = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Text = Annotated[str, Field(strict=True)]
Truth = Annotated[bool, Field(strict=True)]
Matrix = list[list[Number | None]]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Stream(_Part):
    source: Text
    image_size: Whole | None
    order: Text
    tasks: Whole
    task_sizes: list[Whole] | None
    class_order: list[Text] | None
    labels_per_class: Whole | None
    label_fraction: Number | None
    splits: Text
    seed: Whole
    fingerprint: Text


class _Machine(_Part):
    device: Text
    precision: Text
    system: Text
    cores: Whole | None
    runs_at_once: Whole = 1


class _Commit(_Part):
    id: Text
    dirty: Truth | None
    tree: Text | None = None


class _Metrics(_Part):
    A_N: Number
    omega: Number | None
    omega_double_sum: Number | None
    omega_curve: list[Number] | None
    bwt: Number
    fgt: Number
    accuracies: list[Number]


class _Detector(_Part):
    auroc: Number | None
    tpr: Number | None
    fpr: Number | None
    threshold: Number | None
    epsilon: Number | None
    accepted: Number | None
    accepted_past: Number | None
    pseudo_labels_right: Number | None


class _TaskOfRow(_Part):
    task: Whole
    test_images: Whole
    detector: _Detector
    losses: dict[str, dict[str, list[Number]]]
    seconds: dict[str, Number]
    stored_images: Whole
    stored_bytes: Whole


class _Task(_TaskOfRow):
    accuracy: Number


class _Memory(_Part):
    stored_images: Whole
    stored_bytes: Whole
    peak_device_bytes: Whole | None


class _Seconds(BaseModel):
    """Seconds by training, and those of the whole run."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number]

    total: Number


class _RecordedConfig(BaseModel):
    """A configuration, whose other keys have changed over time."""

    model_config = ConfigDict(extra="allow")

    options: dict[str, Any] = {}


class _Results(_Part):
    """The finished tasks, and what was measured after each."""

    R: Matrix
    A: Matrix
    P: Matrix
    tasks: list[_Task]

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


class ResultSchema(_Results):
    """A result; one of version 1, upgraded, has the options of its time in `config`."""

    format: Literal["distillmatch result"]
    version: Literal[1, 2]
    config: _RecordedConfig
    options: dict[str, Any]
    stream: _Stream
    method: Text
    seed: Whole
    uses_truth: Truth
    pretrained_sha256: Text | None = None
    classes: list[Text]
    task_sizes: list[Whole]
    versions: dict[str, Text]
    machine: _Machine
    commit: _Commit
    complete: Truth
    metrics: _Metrics
    seconds: _Seconds
    memory: _Memory


class SnapshotSchema(_Part):
    """The plain values of a snapshot."""

    task: Count
    trainings: Count
    epochs: Count
    losses: dict[str, dict[str, list[Number]]]
    seconds: dict[str, Number]
    work: Number
    values: dict[str, Number]
    copies: dict[str, Text]
    coreset: list[Count]


class _Images(BaseModel):
    fingerprint: Text


class RunHead(BaseModel):
    """Of which run a checkpoint or a finished stage is, and what it has used so far."""

    config: dict[str, Any]
    stream: _Images
    pretrained_sha256: Text | None
    seconds: Number
    peak_device_bytes: Whole | None
    runs_at_once: Whole = 1


class RunCheckpoint(RunHead):
    """The plain values of a run's checkpoint."""

    made_with: dict[str, Any]
    results: _Results
    engine: SnapshotSchema


class LearnerCheckpoint(_Part):
    """The plain values of the checkpoint of a learner's task."""

    fingerprint: Text
    engine: SnapshotSchema


class _Row(_Part):
    R: list[Number]
    A: list[Number]
    P: list[Number]
    task: _TaskOfRow


class StageSchema(RunHead):
    """A finished stage of the offline bound."""

    row: _Row


def check_form(schema: type[BaseModel], record: Any, where: Any) -> None:
    """Refuse a record that is not of a form; `where` is the file."""
    problems = problems_of_form(record, schema)
    if problems:
        raise ResultError(f"{where}: {problems[0]}")


def upgraded(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result of version 1 in the form of version 2; others as they are.

    Its configuration stays what it was: flat, with options that are gone.
    """
    if result.get("version") != 1:
        return result
    stream, tasks = result.get("stream"), result.get("tasks")
    if isinstance(stream, dict):
        stream = {"splits": "hashed", **stream}
    if isinstance(tasks, list):
        tasks = [
            {**one, "losses": _by_term(one)} if isinstance(one, dict) else one for one in tasks
        ]
    return {**result, "options": {}, "stream": stream, "tasks": tasks}


def _by_term(task: dict[str, Any]) -> Any:
    losses = task.get("losses")
    if not isinstance(losses, dict):
        return losses
    return {name: {"loss": means} for name, means in losses.items()}


def problems_of_form(record: Any, schema: type[BaseModel] = ResultSchema) -> list[str]:
    """Return what is wrong with the form of a record, by default a result; a sentence a field."""
    try:
        schema.model_validate(record)
    except ValidationError as error:
        return [_sentence(one["loc"], one["msg"], one["input"]) for one in error.errors()]
    return []


def _sentence(place: tuple[int | str, ...], message: str, came: Any) -> str:
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    if message == "Field required":
        return f"{name.lstrip('.')} is missing"
    if message.startswith("Extra inputs"):
        return f"{name.lstrip('.')} is no field of a result"
    if message.startswith("Value error, "):
        return f"{name.lstrip('.')}: {message.removeprefix('Value error, ')}".removeprefix(": ")
    expected = message[0].lower() + message[1:]
    return f"{name.lstrip('.')}: {expected}, not {came!r:.60}"
