"""The configuration of a stream: where the images come from, and the setting they are put in."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from distillmatch.config.base import Config, Count, CountOrZero, Place, Share, ZeroToOne, impossible
from distillmatch.config.recipe import RecipeName

UnlabeledKind = Literal["uniform", "positive", "negative", "random", "task", "none"]
Splits = Literal["hashed", "authors", "stratified"]
DEFAULT_TASKS = 10
LOCATION_KEYS = ("data_dir", "cache_dir", "test_dir", "unlabeled_dirs")
"""Where on a machine things lie. Results leave them out: the fingerprint names the images."""
IMAGE_KEYS = ("source", *LOCATION_KEYS, "image_size", "bad_images")
"""What our own sources read of a configuration."""


class StreamConfig(Config):
    """Everything that determines a semi-supervised continual stream: the images and the setting."""

    source: str = Field(
        "shapes", description="where the images come from: a source's name, or your own module:name"
    )
    data_dir: Place | None = Field(None, description="folder of the source's files")
    test_dir: Place | None = Field(None, description="own images: folder of labeled test images")
    unlabeled_dirs: tuple[Place, ...] = Field(
        (), description="own images: folders of unlabeled images, nested in any way"
    )
    image_size: Annotated[int, Field(strict=True, ge=8, le=512)] | None = Field(
        None, description="side in pixels for sources that can choose it"
    )
    bad_images: Literal["skip", "stop"] = Field(
        "stop", description="own images: skip files that are not usable images, or stop at them"
    )
    cache_dir: Place | None = Field(None, description="folder in which decoded images are cached")
    order: Literal["random", "parent"] = Field(
        "random",
        description="classes shuffled and cut into tasks, or one task per parent class "
        "(default: random; parent where the unlabeled stream follows super-classes)",
    )
    tasks: Count | None = Field(
        None, description="number of tasks (default: 10; with order parent, one per parent class)"
    )
    task_sizes: tuple[Count, ...] | None = Field(
        None, description="number of classes in each task, for tasks of different sizes"
    )
    class_order: tuple[str, ...] | None = Field(
        None, description="class names in the order they are learned, instead of a shuffle"
    )
    repetition: ZeroToOne = Field(
        0.0,
        description="probability that a class of an earlier task comes back in a task, with "
        "further labeled images",
    )
    distractors: CountOrZero = Field(
        0, description="classes that are never labeled nor tested, and shown by unlabeled images"
    )
    unlabeled: UnlabeledKind = Field(
        "uniform",
        description="classes of the unlabeled images during a task (none: no unlabeled images)",
    )
    random_classes: Count | None = Field(
        None, description="classes in a task's stream with unlabeled random (default: 20)"
    )
    unlabeled_per_task: CountOrZero | None = Field(
        None, description="at most this many unlabeled images per task"
    )
    labels_per_class: Count | None = Field(
        None, description="labeled images of each class (default: a fifth of the class)"
    )
    label_fraction: Share | None = Field(
        None, description="labeled share of each class, instead of labels per class"
    )
    coreset: CountOrZero = Field(0, description="images that may be stored, over all tasks")
    splits: Splits = Field(
        "hashed",
        description="how class orders and labeled images are drawn: by our hash; as the paper's "
        "authors drew them (seeds 0, 1, and 2); or as in later papers, classes by number and "
        "scikit-learn's stratified split, whatever the seed",
    )
    recipe: RecipeName = Field(
        "paper",
        description="how the paper's methods are computed where its words and its published "
        "figures differ",
    )
    seed: CountOrZero = Field(1, description="seed of everything that is random")

    @model_validator(mode="before")
    @classmethod
    def _follow_super_classes(cls, values: Any) -> Any:
        """Positive and negative streams are defined by a task's parent: they imply that order."""
        if isinstance(values, dict) and values.get("unlabeled") in ("positive", "negative"):
            return {"order": "parent", **values}
        return values

    @model_validator(mode="after")
    def _refuse_impossible_combinations(self) -> Self:
        if self.unlabeled in ("positive", "negative") and self.order != "parent":
            raise impossible(
                "order", f"must be 'parent' with unlabeled '{self.unlabeled}', not '{self.order}'"
            )
        if self.labels_per_class is not None and self.label_fraction is not None:
            raise impossible("label_fraction", "cannot be given together with labels_per_class")
        if self.random_classes is not None and self.unlabeled != "random":
            raise impossible(
                "random_classes", f"goes with unlabeled 'random' only, not '{self.unlabeled}'"
            )
        for key in ("task_sizes", "class_order"):
            if self.order == "parent" and getattr(self, key) is not None:
                raise impossible(key, "goes with order 'random' only, not 'parent'")
        if self.splits == "stratified" and self.labels_per_class is not None:
            raise impossible(
                "labels_per_class", "goes with other splits than 'stratified'; give label_fraction"
            )
        if self.splits == "authors" and self.seed >= 2**32:
            raise impossible(
                "seed", f"must be less than 2**32 with splits 'authors', not {self.seed}"
            )
        sizes = self.task_sizes
        if sizes is not None and self.tasks not in (None, len(sizes)):
            raise impossible("task_sizes", f"lists {len(sizes)} tasks but tasks is {self.tasks}")
        if self.source != "folder" and ":" not in self.source:
            for key in ("test_dir", "unlabeled_dirs"):
                if getattr(self, key) not in (None, ()):
                    raise impossible(key, f"goes with source 'folder' only, not '{self.source}'")
        return self
