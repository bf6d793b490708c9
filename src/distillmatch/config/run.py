"""The configuration of a run: a stream, a method with its options, and the training."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from distillmatch.config.base import (
    Config,
    Count,
    CountOrZero,
    Decay,
    NotNegative,
    Place,
    Positive,
    Share,
    Switch,
    impossible,
)
from distillmatch.config.stream import DEFAULT_TASKS, LOCATION_KEYS, StreamConfig

OptionValue = bool | int | float | str
PLACE_KEYS = ("device", "precision", "resident_bytes")
"""Where a run is computed, which does not change what its result stands for."""
UNRECORDED_KEYS = (*LOCATION_KEYS, "resident_bytes")
"""What a result does not record: places on a disk or in memory."""


class MethodOptions(Config):
    """The options of one method; your own method declares a subclass with its own fields.

    A field is `pydantic.Field(default, description=...)`: a number, text, switch or `Literal`.
    """


class RunConfig(StreamConfig):
    """Everything that determines a run: the stream, the method with its options, the training."""

    method: str = Field(
        "dm", description="how the tasks are learned: a method's name, or your own module:name"
    )
    options: dict[str, OptionValue] = Field(
        default_factory=dict, description="options of the method that are not its defaults"
    )
    network: str = Field(
        "wrn-28-2",
        description="wrn-DEPTH-WIDTH, resnet-18, torchvision:NAME, timm:NAME, or your own "
        "module:name",
    )
    pretrained: Place | None = Field(
        None, description="pretrained weights of the networks' backbone, .safetensors or .pt"
    )
    epochs: Count = Field(
        200, description="epochs per task; the learning rate schedule scales with them"
    )
    batch: Count = Field(
        64, description="labeled images per step (default: 64; 32 with tiny-imagenet)"
    )
    unlabeled_batch: Count = Field(
        128, description="unlabeled images per step (default: 128; 64 with tiny-imagenet)"
    )
    stored_share: Share | None = Field(
        None,
        description="share of a labeled batch drawn from the coreset (default: the method's; most "
        "draw all labeled images alike)",
    )
    strong_labels: Switch = Field(False, description="train labeled images on strong views, too")
    learning_rate: Positive | None = Field(
        None, description="initial learning rate (default: the paper's for the method)"
    )
    schedule: Literal["steps", "cosine"] = Field(
        "steps", description="learning rate over the epochs: the paper's steps, or a cosine"
    )
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="SGD with momentum, or AdamW")
    momentum: Annotated[float, Field(strict=True, ge=0, lt=1)] = Field(
        0.9, description="momentum of SGD"
    )
    weight_decay: NotNegative = Field(5e-4, description="weight decay")
    weight_averaging: Decay | None = Field(
        None,
        description="decay per step of a moving average of the classifier's weights, which ends "
        "each task (default: no average)",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to compute")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="precision of convolutions (default: bfloat16 on CUDA, else float32)"
    )
    resident_bytes: CountOrZero | None = Field(
        None,
        description="bytes of a task's images to keep on the device; others are copied when needed "
        "(default: a quarter of a GPU's memory, 2 GiB on a CPU)",
    )

    @model_validator(mode="before")
    @classmethod
    def _batches_of_tiny_imagenet(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("source") == "tiny-imagenet":
            values = {"batch": 32, "unlabeled_batch": 64, **values}
        return values

    @field_validator("options", mode="before")
    @classmethod
    def _refuse_other_options(cls, options: Any) -> Any:
        for name, value in options.items() if isinstance(options, dict) else ():
            if not isinstance(value, bool | int | float | str):
                raise impossible(
                    "options", f"'{name}' must be a number, text, true or false, not {value!r}"
                )
        return options

    @model_validator(mode="after")
    def _refuse_impossible_training(self) -> Self:
        if self.device == "cpu" and self.precision == "bfloat16":
            raise impossible("precision", "must be 'float32' or 'auto' with device 'cpu'")
        if self.stored_share is not None and not self.coreset:
            raise impossible("stored_share", "needs a coreset, and coreset is 0")
        return self

    def identity(self) -> dict[str, Any]:
        """Return what distinguishes this run from others: neither the machine nor its folders."""
        values = self.model_dump(mode="json", exclude={*UNRECORDED_KEYS, *PLACE_KEYS})
        if self.order == "parent":
            values["tasks"] = None
        elif self.tasks is None:
            values["tasks"] = len(self.task_sizes or ()) or DEFAULT_TASKS
        return values
