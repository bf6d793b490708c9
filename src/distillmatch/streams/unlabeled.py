"""Unlabelled kinds: which classes the environment shows while a task is learned."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from distillmatch.config import RECIPES, StreamConfig
from distillmatch.errors import StreamError
from distillmatch.randomness import random_integers, shuffled
from distillmatch.sources.dataset import ClassTree, Dataset
from distillmatch.streams.orders import required_tree

Tasks = Sequence[tuple[int, ...]]
DEFAULT_RANDOM_CLASSES = 20


def classes_of_streams(dataset: Dataset, tasks: Tasks, config: StreamConfig) -> Tasks:
    """Return, for each task, the classes whose images its unlabelled stream holds."""
    kinds = {
        "uniform": _uniform,
        "positive": _positive,
        "negative": _negative,
        "random": _random,
        "task": _task,
        "none": _none,
    }
    return kinds[config.unlabeled](dataset, tasks, config)


def _uniform(dataset: Dataset, tasks: Tasks, config: StreamConfig) -> Tasks:
    """All classes of the data set: past, present and future."""
    return [tuple(range(len(dataset.class_names)))] * len(tasks)


def _task(dataset: Dataset, tasks: Tasks, config: StreamConfig) -> Tasks:
    """The task's own classes only."""
    return tasks


def _none(dataset: Dataset, tasks: Tasks, config: StreamConfig) -> Tasks:
    """Nothing."""
    return [()] * len(tasks)


def _positive(dataset: Dataset, tasks: Tasks, config: StreamConfig) -> Tasks:
    """All classes of the super-class that the task's parent belongs to."""
    tree = required_tree(dataset, "unlabeled 'positive'")
    return [tree.classes_of_super_class(s) for s in _super_classes(dataset, tasks)]


def _negative(dataset: Dataset, tasks: Tasks, config: StreamConfig) -> Tasks:
    """All classes of one other super-class; the super-classes are deranged by the seed.

    The rule `regrouped` is that of the authors' release instead: the super-classes are dealt anew
    to the parents, none of which keeps its own, and a task sees the group that its parent is in.
    """
    tree = required_tree(dataset, "unlabeled 'negative'")
    count = len(tree.super_class_names)
    if RECIPES[config.recipe].negative_stream == "regrouped":
        _refuse_one_that_most_are_in(tree)
        groups = dealt_anew(tree.super_class_of_parent, config.seed)
        parents = [tree.parent_of_class[task[0]] for task in tasks]
        return [
            tuple(c for c, p in enumerate(tree.parent_of_class) if groups[p] == groups[parent])
            for parent in parents
        ]
    if count < 2:
        raise StreamError("unlabeled 'negative' needs at least two super-classes, not 1")
    other = derangement(count, config.seed)
    return [tree.classes_of_super_class(other[s]) for s in _super_classes(dataset, tasks)]


def _refuse_one_that_most_are_in(tree: ClassTree) -> None:
    """Refuse a tree in which some parent must keep its super-class whatever is dealt."""
    parents = len(tree.parent_names)
    largest, held = Counter(tree.super_class_of_parent).most_common(1)[0]
    if 2 * held > parents:
        raise StreamError(
            f"unlabeled 'negative' needs super-classes of at most half of the {parents} "
            f"parents, but '{tree.super_class_names[largest]}' has {held}"
        )


def _random(dataset: Dataset, tasks: Tasks, config: StreamConfig) -> Tasks:
    """Some classes drawn by the seed, every class equally often over all tasks."""
    classes = len(dataset.class_names)
    drawn = config.random_classes or min(DEFAULT_RANDOM_CLASSES, classes)
    if drawn > classes:
        raise StreamError(
            f"random_classes must be at most the {classes} classes of the source, not {drawn}"
        )
    return balanced_draws(classes, len(tasks), drawn, config.seed)


def _super_classes(dataset: Dataset, tasks: Tasks) -> list[int]:
    tree = required_tree(dataset, "an unlabelled stream by super-class")
    return [tree.super_class_of_parent[tree.parent_of_class[task[0]]] for task in tasks]


def derangement(count: int, seed: int) -> list[int]:
    """Return a random order of `range(count)` in which nothing stays in its place.

    Shuffles are drawn until one qualifies, so every derangement is equally likely; about one
    shuffle in three does.
    """
    attempt = 0
    while True:
        order = shuffled(range(count), seed, "derangement", attempt)
        if all(place != item for place, item in enumerate(order)):
            return order
        attempt += 1


def dealt_anew(groups: Sequence[int], seed: int) -> list[int]:
    """Return the groups of all members in a random order in which nobody keeps the own one.

    Who would changes with another member, drawn among those by whom both are then in others. There
    is one as long as no group has more than half of the members. Redrawing until all are in others
    would give every such order the same chance, but with few large groups would never end.
    """
    dealt = shuffled(groups, seed, "regrouped parents")
    for place, own in enumerate(groups):
        if dealt[place] == own:
            others = [q for q, of in enumerate(groups) if own not in (of, dealt[q])]
            pick = shuffled(others, seed, "regrouped parents", place)[0]
            dealt[place], dealt[pick] = dealt[pick], own
    return dealt


def balanced_draws(classes: int, tasks: int, drawn: int, seed: int) -> list[tuple[int, ...]]:
    """Draw `drawn` different classes for each task, each class equally often over all tasks.

    Where the draws do not divide evenly, some classes are drawn once more than others. A dealt
    round is feasible but regular, so it is mixed by many random exchanges between two tasks, each
    of which keeps both rules.
    """
    deck = shuffled(range(classes), seed, "random classes", "deck")
    hands = [{deck[(task * drawn + i) % classes] for i in range(drawn)} for task in range(tasks)]
    exchanges = 20 * tasks * drawn if tasks > 1 else 0
    numbers = random_integers(seed, "random classes", "exchanges", count=4 * exchanges)
    for pick in numbers.reshape(-1, 4).tolist():
        one, other = hands[pick[0] % tasks], hands[pick[1] % tasks]
        give, take = sorted(one)[pick[2] % drawn], sorted(other)[pick[3] % drawn]
        if give not in other and take not in one:
            one.remove(give)
            other.remove(take)
            one.add(take)
            other.add(give)
    return [tuple(sorted(hand)) for hand in hands]


def shares(images: np.ndarray, holders: int, first: int = 0) -> list[np.ndarray]:
    """Divide a class's images into equal shares; what does not divide evenly is left unused.

    Where there are fewer images than holders, so that no share would have any, they are dealt one
    by one, beginning with the holder `first`.
    """
    size = len(images) // holders if holders else 0
    if size == 0:
        return [images[(place := (i - first) % holders) : place + 1] for i in range(holders)]
    return [images[i * size : (i + 1) * size] for i in range(holders)]
