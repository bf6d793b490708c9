"""Task orders: which classes are learned in which task."""

from distillmatch.config import StreamConfig
from distillmatch.config.stream import DEFAULT_TASKS
from distillmatch.errors import StreamError
from distillmatch.randomness import shuffled
from distillmatch.sources.dataset import ClassTree, Dataset
from distillmatch.streams import authors


def tasks_of_classes(dataset: Dataset, config: StreamConfig) -> tuple[tuple[int, ...], ...]:
    """Return the classes of each task, in learning order."""
    if config.order == "parent":
        return _one_task_per_parent(dataset, config)
    order = _class_order(dataset, config)
    tasks, start = [], 0
    for size in _task_sizes(len(order), config):
        tasks.append(tuple(order[start : start + size]))
        start += size
    return tuple(tasks)


def required_tree(dataset: Dataset, because: str) -> ClassTree:
    """Return the class tree, or say what needed it."""
    if dataset.tree is None:
        raise StreamError(
            f"{because} needs a source with a class tree, and source '{dataset.name}' has none"
        )
    return dataset.tree


def _one_task_per_parent(dataset: Dataset, config: StreamConfig) -> tuple[tuple[int, ...], ...]:
    follows = config.unlabeled in ("positive", "negative")
    tree = required_tree(
        dataset, f"unlabeled '{config.unlabeled}'" if follows else "order 'parent'"
    )
    parents = len(tree.parent_names)
    if config.tasks not in (None, parents):
        raise StreamError(
            f"tasks must be {parents} with order 'parent' (one for each parent class of source "
            f"'{dataset.name}'), not {config.tasks}"
        )
    if config.splits == "authors":
        order = authors.parent_order(range(parents), config.seed)
    else:
        order = shuffled(range(parents), config.seed, "parent order")
    return tuple(tree.classes_of_parent(parent) for parent in order)


def _class_order(dataset: Dataset, config: StreamConfig) -> list[int]:
    if config.class_order is None and config.splits == "authors":
        return authors.class_order(len(dataset.class_names), config.seed)
    if config.class_order is None:
        return shuffled(range(len(dataset.class_names)), config.seed, "class order")
    number = {name: i for i, name in enumerate(dataset.class_names)}
    unknown = [name for name in config.class_order if name not in number]
    if unknown:
        raise StreamError(
            f"class_order names '{unknown[0]}', which is not a class of source '{dataset.name}'"
        )
    if sorted(config.class_order) != sorted(number):
        raise StreamError(
            f"class_order must name each of the {len(number)} classes of source "
            f"'{dataset.name}' once, not {len(config.class_order)} names "
            f"({len(set(config.class_order))} different)"
        )
    return [number[name] for name in config.class_order]


def _task_sizes(classes: int, config: StreamConfig) -> tuple[int, ...]:
    if config.task_sizes is not None:
        if sum(config.task_sizes) != classes:
            raise StreamError(
                f"task_sizes must add up to the {classes} classes of the source, "
                f"not to {sum(config.task_sizes)}"
            )
        return config.task_sizes
    tasks = config.tasks or min(DEFAULT_TASKS, classes)
    if tasks > classes:
        raise StreamError(f"tasks must be at most the {classes} classes of the source, not {tasks}")
    if classes % tasks:
        divisors = ", ".join(str(d) for d in range(1, classes + 1) if classes % d == 0)
        raise StreamError(
            f"tasks must divide the {classes} classes of the source ({divisors}), not {tasks}; "
            "for unequal tasks give task_sizes"
        )
    return (classes // tasks,) * tasks
