"""The classes of each task, and those of the unlabeled images around it."""

import itertools
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from distillmatch.config import RECIPES, StreamConfig
from distillmatch.config.stream import DEFAULT_TASKS
from distillmatch.errors import StreamError
from distillmatch.randomness import random_integers, shuffled
from distillmatch.sources.dataset import ClassTree, Dataset
from distillmatch.streams.splits import learning_order

Tasks = Sequence[tuple[int, ...]]
"""Class numbers, a tuple for each task."""
DEFAULT_RANDOM_CLASSES = 20


def classes_of_tasks(dataset: Dataset, distractors: Collection[int], config: StreamConfig) -> Tasks:
    """Return the classes that are first learned in each task, in learning order."""
    if config.order == "parent":
        tree = _required_tree(dataset, config)
        parents = len(tree.parent_names)
        if config.tasks not in (None, parents):
            raise StreamError(
                f"tasks must be {parents} with order 'parent' (one for each parent class of source "
                f"'{dataset.name}'), not {config.tasks}"
            )
        tasks = map(tree.classes_of_parent, learning_order("parent", parents, config))
        return [tuple(c for c in task if c not in distractors) for task in tasks]
    order = [c for c in _class_order(dataset, config) if c not in distractors]
    ends = itertools.accumulate(_task_sizes(len(order), config), initial=0)
    return [tuple(order[start:end]) for start, end in itertools.pairwise(ends)]


def distractors_of(dataset: Dataset, config: StreamConfig) -> tuple[int, ...]:
    """Return the classes that are never labeled, drawn so that every task keeps a class.

    A given class order leaves them out.
    """
    classes = range(len(dataset.class_names))
    if config.class_order is not None:
        return tuple(c for c in classes if dataset.class_names[c] not in config.class_order)
    order = shuffled(classes, config.seed, "distractors")
    by_parent = config.order == "parent"
    parents = _required_tree(dataset, config).parent_of_class if by_parent else (0,) * len(classes)
    kept = {parents[c]: c for c in order}.values()
    drawn = [c for c in order if c not in kept]
    if config.distractors > len(drawn):
        raise StreamError(
            f"distractors must leave a class {'of each parent ' if by_parent else ''}to learn: "
            f"at most {len(drawn)} of the {len(classes)} classes of the source, "
            f"not {config.distractors}"
        )
    return tuple(sorted(drawn[: config.distractors]))


def classes_that_return(tasks: Tasks, config: StreamConfig) -> Tasks:
    """Return, for each task, the classes of earlier tasks that come back, in learning order.

    Each does so with the probability `repetition`, whatever others do.
    """
    learned: list[int] = []
    returning = []
    for number, classes in enumerate(tasks):
        draws = random_integers(config.seed, "repetition", number, count=len(learned))
        uniform = (draws >> np.uint64(11)) * 2.0**-53
        comes_back = zip(learned, uniform < config.repetition, strict=True)
        returning.append(tuple(c for c, returns in comes_back if returns))
        learned += classes
    return returning


def classes_of_unlabeled(dataset: Dataset, tasks: Tasks, own: Tasks, config: StreamConfig) -> Tasks:
    """Return, for each task, the classes whose images are in its unlabeled stream.

    `tasks` has the classes that a task is the first to learn, `own` what unlabeled `task` shows.
    """
    classes = len(dataset.class_names)
    if config.unlabeled == "none":
        return [()] * len(tasks)
    if config.unlabeled == "task":
        return own
    if config.unlabeled == "uniform":
        return [tuple(range(classes))] * len(tasks)
    if config.unlabeled != "random":
        return _classes_by_super_class(dataset, tasks, config)
    drawn = config.random_classes or min(DEFAULT_RANDOM_CLASSES, classes)
    if drawn > classes:
        raise StreamError(
            f"random_classes must be at most the {classes} classes of the source, not {drawn}"
        )
    return balanced_draws(classes, len(tasks), drawn, config.seed)


def _class_order(dataset: Dataset, config: StreamConfig) -> list[int]:
    names, given = dataset.class_names, config.class_order
    if given is None:
        return learning_order("class", len(names), config)
    if unknown := [name for name in given if name not in names]:
        raise StreamError(
            f"class_order names '{unknown[0]}', which is not a class of source '{dataset.name}'"
        )
    wanted = len(names) - config.distractors
    if not len(set(given)) == len(given) == wanted:
        raise StreamError(
            f"class_order must name {wanted if config.distractors else 'each'} of the {len(names)} "
            f"classes of source '{dataset.name}' once, not {len(given)} names"
        )
    return [names.index(name) for name in given]


def _task_sizes(classes: int, config: StreamConfig) -> tuple[int, ...]:
    of_source = f"the {classes} classes of the source"
    if config.distractors:
        of_source += f" without {config.distractors} distractors"
    if config.task_sizes is not None:
        total = sum(config.task_sizes)
        if total != classes:
            raise StreamError(f"task_sizes must add up to {of_source}, not to {total}")
        return config.task_sizes
    tasks = config.tasks or min(DEFAULT_TASKS, classes)
    if tasks > classes:
        raise StreamError(f"tasks must be at most {of_source}, not {tasks}")
    if classes % tasks:
        divisors = ", ".join(str(d) for d in range(1, classes + 1) if classes % d == 0)
        raise StreamError(
            f"tasks must divide {of_source} ({divisors}), not {tasks}; "
            "for unequal tasks give task_sizes"
        )
    return (classes // tasks,) * tasks


def _required_tree(dataset: Dataset, config: StreamConfig) -> ClassTree:
    if dataset.tree is None:
        follows = config.unlabeled in ("positive", "negative")
        because = f"unlabeled '{config.unlabeled}'" if follows else "order 'parent'"
        raise StreamError(
            f"{because} needs a source with a class tree, and source '{dataset.name}' has none"
        )
    return dataset.tree


def _classes_by_super_class(dataset: Dataset, tasks: Tasks, config: StreamConfig) -> Tasks:
    """Return the classes of the task's own super-class (`positive`), or of others (`negative`).

    With the recipe `as-written` those are one other super-class: the super-classes are deranged.
    With the recipe `paper` the super-classes are dealt to the parents again so that no parent keeps
    its own; a task gets the group of its parent.
    """
    tree = _required_tree(dataset, config)
    groups: Sequence[int] = tree.super_class_of_parent
    shown = groups  # the group that a task of each parent shows
    if config.unlabeled == "negative" and RECIPES[config.recipe].negative_stream == "regrouped":
        largest, held = Counter(groups).most_common(1)[0]
        if 2 * held > len(groups):
            raise StreamError(
                f"unlabeled 'negative' needs super-classes of at most half of the {len(groups)} "
                f"parents, but '{tree.super_class_names[largest]}' has {held}"
            )
        groups = shown = deal_again(groups, config.seed)
    elif config.unlabeled == "negative":
        if len(tree.super_class_names) < 2:
            raise StreamError("unlabeled 'negative' needs at least two super-classes, not 1")
        other = derangement(len(tree.super_class_names), config.seed)
        shown = [other[group] for group in groups]
    wanted = [shown[tree.parent_of_class[task[0]]] for task in tasks]
    group_of_class = [groups[parent] for parent in tree.parent_of_class]
    return [tuple(c for c, of in enumerate(group_of_class) if of == group) for group in wanted]


def derangement(count: int, seed: int) -> list[int]:
    """Return a random order of `range(count)` in which nothing stays in its place.

    Shuffles are drawn until one qualifies, as about one in three does: all are equally likely.
    """
    orders = (shuffled(range(count), seed, "derangement", attempt) for attempt in itertools.count())
    return next(order for order in orders if all(i != item for i, item in enumerate(order)))


def deal_again(groups: Sequence[int], seed: int) -> list[int]:
    """Return the groups of all members in a random order in which no member keeps its own.

    A member that would keep its group exchanges with one drawn among those where both then change.
    There is one as long as no group has more than half of the members.
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

    Where the draws do not divide evenly, some classes are drawn once more than others. The classes
    are dealt in turn, then mixed by many random exchanges between two tasks that keep both rules.
    """
    deck = shuffled(range(classes), seed, "random classes", "deck")
    hands = [{deck[(task * drawn + i) % classes] for i in range(drawn)} for task in range(tasks)]
    exchanges = 20 * tasks * drawn if tasks > 1 else 0
    numbers = random_integers(seed, "random classes", "exchanges", count=4 * exchanges)
    for pick in numbers.reshape(-1, 4).tolist():
        one, other = hands[pick[0] % tasks], hands[pick[1] % tasks]
        give, take = sorted(one)[pick[2] % drawn], sorted(other)[pick[3] % drawn]
        if give not in other and take not in one:
            one ^= {give, take}
            other ^= {give, take}
    return [tuple(sorted(hand)) for hand in hands]
