"""The recipes: `paper` reproduces the published figures, `as-written` follows the paper's words.

A recipe holds the points in which the two differ, and nothing else. What both share is a constant
beside the code that uses it.
"""

from dataclasses import dataclass
from typing import Literal

RecipeName = Literal["paper", "as-written"]


@dataclass(frozen=True)
class Statistics:
    """Which images share batch statistics."""

    labeled: Literal["alone", "with unlabeled"]
    """Labeled images in the cross entropy: in a forward of their own, which in DM has the accepted
    images in it, or with the unlabeled images of the step."""
    teachers: Literal["batch", "running"]
    """Frozen networks of DM: the images that they are asked about, as the network that learns
    does, or their running statistics."""
    fine_tuning: Literal["batch", "running"]
    """Features while the last layer is fine-tuned."""


@dataclass(frozen=True)
class Recipe:
    """The points in which the paper's words and its published figures differ."""

    name: RecipeName
    statistics: Statistics
    initial_weights: Literal["uniform", "normal"]
    """Uniform by fan-in, weights of normalization from U(0, 1); or convolutions normal, norms 1."""
    last_batches: Literal["short", "filled"]
    """The last batch of a pass has what is left of the images, or is filled up."""
    distillation_factor: Literal["temperature squared", "one"]
    """What E2E and DR multiply the distillation of past tasks by."""
    teacher_start: Literal["past", "fresh"]
    """What the new task's teacher of DR and GD starts from."""
    new_class_share: Literal["past", "teacher"]
    """Whose softmax divides the new classes' part of GD's target Q."""
    detector: Literal["scaled-cosine", "cosine"]
    """The detector's head; the scaled one keeps half of the perturbation with the lowest score."""
    pseudo_label_counts: Literal["epoch", "pass"]
    """Pseudo-labels counted in eq. 3: as many as an epoch meets, or one pass."""
    negative_stream: Literal["regrouped", "other"]
    """Stream `negative`: groups that are shuffled anew, or another super-class."""
    consistency_threshold: float
    """τ_FM."""


PAPER = Recipe(
    name="paper",
    statistics=Statistics(labeled="alone", teachers="batch", fine_tuning="batch"),
    initial_weights="uniform",
    last_batches="short",
    distillation_factor="temperature squared",
    teacher_start="past",
    new_class_share="past",
    detector="scaled-cosine",
    pseudo_label_counts="epoch",
    negative_stream="regrouped",
    consistency_threshold=0.85,
)
AS_WRITTEN = Recipe(
    name="as-written",
    statistics=Statistics(labeled="with unlabeled", teachers="running", fine_tuning="running"),
    initial_weights="normal",
    last_batches="filled",
    distillation_factor="one",
    teacher_start="fresh",
    new_class_share="teacher",
    detector="cosine",
    pseudo_label_counts="pass",
    negative_stream="other",
    consistency_threshold=0.9,
)
RECIPES: dict[RecipeName, Recipe] = {recipe.name: recipe for recipe in (PAPER, AS_WRITTEN)}
