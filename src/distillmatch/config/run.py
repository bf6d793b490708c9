"""The configuration of a run: a stream, a method and its training.

Every point where the paper and its authors' release differ is a field here whose default is the
reading this project decided on; the presets `release` and `release-in-full` set them to the
release's.
"""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from distillmatch.config.base import (
    Count,
    CountOrZero,
    Decay,
    NotNegative,
    Positive,
    Share,
    Switch,
    impossible,
)
from distillmatch.config.stream import LOCATION_KEYS, StreamConfig

Preset = Literal["protocol", "release", "release-in-full"]
Gate = Literal[
    "detector",
    "softmax",
    "energy",
    "features",
    "ensemble",
    "newness",
    "newness-crossed",
    "everything",
    "truth",
    "truth-new",
]
CALIBRATED_GATES = ("detector", "energy", "features", "ensemble")
"""The gates whose threshold is set by scores of familiar images."""
STRANGER_GATES = (*CALIBRATED_GATES, "newness", "newness-crossed")
"""The gates whose threshold can be set by scores of strangers."""
ORACLES = ("truth", "truth-new")
"""The gates that look at the classes of unlabelled images, for diagnosis only."""
Similarity = Literal["cosine", "inner", "euclidean", "scaled-cosine"]
TaskWeights = Literal["equal", "class-share"]
EpsilonRule = Literal["highest", "lowest-halved", "none"]
NewClassShare = Literal["new-model", "past-model"]
Statistics = Literal["apart", "together"]
StrongStatistics = Literal[Statistics, "unlabeled"]
LastBatches = Literal["filled", "short"]
TeacherStart = Literal["fresh", "past"]
InitialWeights = Literal["normal", "uniform", "uniform-norms"]
OptionValue = bool | int | float | str

RELEASE: dict[str, Any] = {
    "initial_weights": "uniform",
    "last_batches": "short",
    "consistency_threshold": 0.85,
    "distillation_shares": "class-share",
    "similarity": "scaled-cosine",
    "epsilon_rule": "lowest-halved",
    "negative_rule": "regrouped",
    "base_distillation": True,
    "ensemble_share": "past-model",
    "strong_statistics": "unlabeled",
    "distillation_scale": "temperature-squared",
    "teacher_start": "past",
    "labeled_statistics": "apart",
    "accepted_statistics": "labeled",
    "new_task_statistics": "together",
    "past_statistics": "all-batches",
    "pseudo_label_counts": "epoch",
    "consistency_from": "second-task",
    "clip": 1.0,
    "base_clip": 1.0,
    "count_smoothing": 1.0,
    "weight_cap": 10.0,
    "coreset_counts": "labels",
    "detector_losses": "labels-and-past",
    "dr_distillation": "per-task",
    "fine_tuning_data": "labeled-and-coreset",
    "fine_tuning_statistics": "batch",
    "fine_tuning_unlabeled": True,
    "balanced_trainings": "fine-tuning",
}
"""The release's reading of every point in which it and the paper differ, or the paper is silent."""

FOLLOWS: dict[str, tuple[str, ...]] = {
    "preset": tuple(RELEASE),
    "labeled_statistics": ("accepted_statistics",),
}
"""The options that others have their default by, whatever the source, and which these are."""

LEARNER_KEYS = (
    "method",
    "network",
    "image_size",
    "epochs",
    "batch",
    "unlabeled_batch",
    "coreset",
    "learning_rate",
    "seed",
    "device",
)
"""What a learner of one's own images has under the same names as a run."""

UNRECORDED_KEYS = (*LOCATION_KEYS, "resident_bytes")
"""What changes no figure of a result: where things lie on a disk or in memory."""

RELEASE_IN_FULL: dict[str, Any] = {
    **RELEASE,
    "initial_weights": "uniform-norms",
    "past_statistics": "step",
    "accepted_statistics": "labeled-only",
    "count_smoothing": 0.2,
}
"""The same where the release was found to be nearer to other values, after the runs with it."""

PRESETS: dict[str, dict[str, Any]] = {
    "protocol": {},
    "release": RELEASE,
    "release-in-full": RELEASE_IN_FULL,
}


class RunConfig(StreamConfig):
    """Everything that determines a run: the stream, the method, its losses and its training."""

    method: str = Field(
        "dm", description="how the tasks are learned: a method's name, or your own module:name"
    )
    preset: Preset = Field(
        "protocol",
        description="readings of the paper: ours, those of the authors' release that most runs "
        "with it have, or all that were found",
    )
    options: dict[str, OptionValue] = Field(
        default_factory=dict, description="settings of your own method, as name=value"
    )

    network: str = Field(
        "wrn-28-2",
        description="wrn-DEPTH-WIDTH, torchvision:NAME, timm:NAME, or your own module:name",
    )
    pretrained: Path | None = Field(
        None, description="file of weights that every network's backbone starts from"
    )
    initial_weights: InitialWeights = Field(
        "normal",
        description="how our backbones and heads start: convolutions normal by their outputs, or "
        "everything uniform by its inputs, as torch has it; with uniform-norms the weights of "
        "normalization too, between 0 and 1, as torch had them up to 1.1",
    )
    epochs: Count = Field(
        200, description="epochs a task; the whole schedule follows in proportion"
    )
    batch: Count = Field(
        64, description="labelled images a step (default: 64; 32 with tiny-imagenet)"
    )
    unlabeled_batch: Count = Field(
        128, description="unlabelled images a step (default: 128; 64 with tiny-imagenet)"
    )
    last_batches: LastBatches = Field(
        "filled",
        description="the last step of a pass through labelled, or unlabelled, images: filled up, "
        "or with what is left of them",
    )
    learning_rate: Positive | None = Field(
        None, description="initial learning rate (default: the paper's for the method)"
    )
    momentum: NotNegative = Field(0.9, description="momentum of SGD")
    weight_decay: NotNegative = Field(5e-4, description="weight decay of SGD")
    clip: Positive | None = Field(
        1.0,
        description="largest gradient norm in steps of DM and offline-unlabeled; none for no limit",
    )
    base_clip: Positive | None = Field(
        None,
        description="Base: largest gradient norm in its steps and the bound's (default: no limit)",
    )
    temperature: Positive = Field(2.0, description="temperature T of the distillation losses")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to compute")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of convolutions (default: bfloat16 on CUDA, float32 elsewhere)"
    )
    resident_bytes: CountOrZero | None = Field(
        None,
        description="most bytes of a task's images that are kept on the device; of more, what a "
        "step needs is fetched (default: a quarter of a GPU's memory, 2 GiB on a CPU)",
    )

    pseudo_labels: Switch = Field(
        True, description="DM: hard distillation of accepted images, eq. 7"
    )
    class_balancing: Switch = Field(True, description="DM, GD, E2E: class weights w(k), eq. 3")
    consistency: Switch = Field(True, description="DM: consistency on strong views, eq. 4")
    distillation: Switch = Field(True, description="DM: distillation per past task, eq. 1")
    consistency_weight: NotNegative = Field(1.0, description="DM: λ_ucl in eq. 5")
    distillation_weight: NotNegative = Field(1.0, description="DM: λ_dst in eq. 5")
    consistency_threshold: Share = Field(0.9, description="DM: τ_FM in eq. 4")
    consistency_from: Literal["second-task", "first-task"] = Field(
        "second-task", description="DM: the task from which eq. 4 is used"
    )
    distillation_shares: TaskWeights = Field(
        "equal", description="weights of the past tasks in eq. 1"
    )
    strong_statistics: StrongStatistics = Field(
        "apart",
        description="DM: normalize strong views by themselves, together with all others, or with "
        "the unlabelled weak views in a forward for consistency alone",
    )
    count_smoothing: NotNegative = Field(1.0, description="added to every class count in eq. 3")
    weight_cap: Positive = Field(10.0, description="largest class weight in eq. 3")
    coreset_counts: Literal["labels", "labels-and-pseudo-labels"] = Field(
        "labels", description="DM: what eq. 3 counts where there is a coreset"
    )
    pseudo_label_counts: Literal["pass", "epoch"] = Field(
        "pass",
        description="DM: pseudo-labels that eq. 3 counts beside all labels: of all unlabelled "
        "images, or as many as an epoch's steps meet",
    )
    pseudo_label_targets: Literal["hard", "soft"] = Field(
        "hard",
        description="DM: what an accepted image is taught: the last classifier's first choice, or "
        "all that it says of the past classes",
    )
    pseudo_label_views: Count = Field(
        1,
        description="DM: weak views of an unlabelled image by whose mean it is labelled, and "
        "accepted or not, once for the whole task; with 1 each view that is learned is by itself",
    )
    strong_labels: Literal["none", "labels", "labels-and-pseudo-labels"] = Field(
        "none",
        description="labels that the classifier learns by a strong view of their image as much as "
        "by the weak one: none, those of labelled images, or DM's pseudo-labels too",
    )
    past_statistics: Literal["running", "batch", "all-batches", "step"] = Field(
        "running",
        description="DM, Base: what the last task's networks normalize by: their running "
        "statistics; or unlabelled images by those of the step; or labelled ones so too; or, where "
        "they are distilled, by all of the step together, as the network that learns does",
    )
    gate: Gate = Field(
        "detector",
        description="DM: what decides that an unlabelled image is of a past class; truth and "
        "truth-new are oracles, for diagnosis only",
    )
    gate_confidence: Share = Field(0.9, description="DM: threshold of gate softmax")
    true_positive_rate: Share | None = Field(
        None, description="DM: δ, to which τ_OoD is set (default: 0.5; 0.05 with a coreset)"
    )
    true_positive_rate_rule: Literal["fixed", "growing"] = Field(
        "fixed",
        description="DM: δ as it is given, or growing with what was learned: after n tasks at "
        "least n/(n+1)",
    )
    false_positive_rate: Share | None = Field(
        None,
        description="DM: share of the new classes' labelled images, known strangers, that a task's "
        "gate is set to accept instead of δ (default: δ)",
    )
    similarity: Similarity = Field("cosine", description="DM: h_k of the detector's head")
    epsilon_rule: EpsilonRule = Field(
        "highest", description="DM: which input perturbation of the grid the detector keeps"
    )
    detector_share: Positive = Field(
        0.5, description="DM: the detector's epochs, as a share of the classifier's"
    )
    detector_losses: Literal["labels-and-past", "labels"] = Field(
        "labels-and-past",
        description="DM: train the detector with pseudo-labels and distillation, or labels alone",
    )
    weight_averaging: Decay | None = Field(
        None,
        description="DM: decay a step of the average of the classifier's weights that a task ends "
        "with (default: no average, the weights after the last step)",
    )
    base_distillation: Switch = Field(False, description="Base: add distillation per past task")
    dr_distillation: Literal["per-task", "single"] = Field(
        "per-task", description="DR: distil each past task, or all past classes at once"
    )
    distillation_scale: Literal["one", "temperature-squared"] = Field(
        "one", description="E2E, DR: factor of the distillation of past tasks, 1 or T²"
    )
    teacher_start: TeacherStart = Field(
        "fresh", description="DR, GD: what the new task's teacher starts from"
    )
    labeled_statistics: Statistics = Field(
        "together",
        description="Base, E2E, DR, GD, DM: normalize the labelled images of the cross entropy "
        "together with the unlabelled ones that are distilled, or in a forward apart",
    )
    accepted_statistics: Literal["unlabeled", "labeled", "labeled-only"] = Field(
        "unlabeled",
        description="DM: what accepted unlabelled images are normalized with: all unlabelled ones, "
        "or the labelled ones (default: these, where they are normalized apart), whose places left "
        "over others fill, or labelled ones again",
    )
    new_task_statistics: Statistics = Field(
        "apart",
        description="E2E, DR, GD: where labels alone are learned, in the first task and by DR's "
        "teacher, normalize labelled images by themselves, or together with unlabelled ones",
    )
    calibration: Switch = Field(True, description="GD: calibrate the new task's teacher")
    ensemble_share: NewClassShare = Field(
        "new-model", description="GD: whose softmax divides the new classes' part of Q"
    )
    fine_tuning_data: Literal["labeled-and-coreset", "coreset"] = Field(
        "labeled-and-coreset", description="what the last layer is fine-tuned on"
    )
    fine_tuning_statistics: Literal["running", "batch"] = Field(
        "running",
        description="DM, GD: what features are normalized by while the last layer is fine-tuned: "
        "running statistics, or the step's images, which move them too",
    )
    fine_tuning_unlabeled: Switch = Field(
        False,
        description="E2E, GD: let unlabelled images through the network while it is fine-tuned, "
        "and in GD keep Q",
    )
    balanced_trainings: Literal["fine-tuning", "all"] = Field(
        "fine-tuning",
        description="E2E, GD: with a coreset, where cross entropy weighs classes by their labels: "
        "in fine-tuning alone, or before it too",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_what_follows(cls, values: Any) -> Any:
        """Take values that are not given from the preset, and what follows from those that are.

        They are stored like given ones, so that a configuration read back is the same.
        """
        if not isinstance(values, dict):
            return values
        preset = values.get("preset")
        if isinstance(preset, str) and preset in PRESETS:
            values = {**PRESETS[preset], **values}
        if values.get("source") == "tiny-imagenet":
            values = {"batch": 32, "unlabeled_batch": 64, **values}
        if values.get("labeled_statistics") == "apart":
            # A network can tell labelled images, if they are alone, by their statistics.
            values = {"accepted_statistics": "labeled", **values}
        return values

    def _kept(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Let another preset or normalization bring what follows from it."""
        following = {
            key
            for option, keys in FOLLOWS.items()
            if changes.get(option, getattr(self, option)) != getattr(self, option)
            for key in keys
        }
        return {k: value for k, value in super()._kept(changes).items() if k not in following}

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
        if self.false_positive_rate is not None and self.gate not in STRANGER_GATES:
            raise impossible(
                "false_positive_rate",
                f"needs gate {', '.join(map(repr, STRANGER_GATES))}, whose threshold is "
                f"calibrated, not {self.gate!r}",
            )
        return self
