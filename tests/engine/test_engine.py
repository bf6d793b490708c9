"""The engine: repeatable to the last bit, calm in odd worlds, and fair with a task's data."""

from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from conftest import make_dataset
from interrupted_runs import DiesAfter
from small_runs import engine_for, learned, same_weights, six_classes, tiny
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.engine import Engine, TaskOutcome
from distillmatch.engine.data import TaskData
from distillmatch.methods import Batch, Method, Passes, Schedule, TaskInfo, Training, method_names
from distillmatch.methods.offline import Offline
from distillmatch.methods.parts import label_loss
from distillmatch.runs import run
from distillmatch.sources import Dataset, Part, load_source
from distillmatch.streams import build_stream


def test_the_same_seed_gives_the_same_result_to_the_last_bit() -> None:
    config = tiny(coreset=6, options={"consistency_threshold": 0.2})
    (first, weights), (second, same) = learned(config), learned(config)
    assert weights.keys() == same.keys() and same_weights(weights, same)
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.logits, other.logits)
        assert one.losses == other.losses and one.values == other.values


WORLDS: dict[str, dict[str, Any]] = {
    "one task": {"task_sizes": (6,)},
    "one class a task": {"task_sizes": (1,) * 6, "epochs": 1},
    "no past classes in the stream": {"unlabeled": "task"},
    "a coreset larger than the data": {"coreset": 1000},
    "a coreset of one image": {"coreset": 1},
    "no unlabeled images": {"unlabeled_per_task": 0},
    "no unlabeled images but a coreset": {"unlabeled": "none", "coreset": 6},
    "one label a class": {"labels_per_class": 1},
    "classes come back, others are never labeled": {
        "task_sizes": (1, 2, 1),
        "repetition": 0.7,
        "distractors": 2,
    },
    "every image labeled": {"label_fraction": 1.0, "epochs": 1},
    "fewer labels than a batch": {"batch": 64, "unlabeled_batch": 32, "epochs": 1},
    "fewer unlabeled images than a batch": {"unlabeled_per_task": 1},
}


@pytest.mark.parametrize("method", method_names())
@pytest.mark.parametrize("world", WORLDS)
def test_degenerate_worlds_are_learned(world: str, method: str) -> None:
    config = tiny(method=method, **WORLDS[world])
    result = run(config, dataset=six_classes())
    assert result["complete"]
    assert len(result["tasks"]) == len(config.task_sizes or ())
    for number, row in enumerate(result["R"]):
        assert all(0 <= value <= 100 for value in row[: number + 1])
        assert all(value is None for value in row[number + 1 :])
    assert result["memory"]["stored_images"] <= config.coreset


class Observer(Method):
    """Learns by cross entropy and writes down what each step was given."""

    needs_truth = True
    strong_views = True
    seen: ClassVar[list[Batch]] = []

    def trainings(self, task: TaskInfo) -> list[Training]:
        return [self.training(task, schedule=Schedule(6, 0.01), strong_labeled=True)]

    def loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        self.seen.append(batch)
        return torch.nn.functional.cross_entropy(self.classifier(batch.images), batch.labels)


def test_strong_and_weak_views_are_of_the_same_images() -> None:
    """Of red and blue images; jitter and most strong operations leave the hue."""
    dataset = make_dataset(classes=40, per_class=2, parents=None)
    images = np.full((80, 16, 16, 3), 60, np.uint8)
    red = dataset.train.labels % 2 == 0
    images[red, :, :, 0] = images[~red, :, :, 2] = 200
    test = Part(np.zeros((len(dataset.test), 16, 16, 3), np.uint8), dataset.test.labels)
    dataset = replace(dataset, train=Part(images, dataset.train.labels), test=test)
    options = {"task_sizes": (40,), "labels_per_class": 1, "batch": 8, "unlabeled_batch": 16}
    Observer.seen.clear()
    config = tiny(method="test_engine:Observer", recipe="as-written", **options)
    list(engine_for(config, dataset).run())
    batches = list(Observer.seen)

    def is_red(views: Tensor) -> Tensor:
        return views[:, 0].mean((1, 2)) > views[:, 2].mean((1, 2))

    source = build_stream(dataset, tiny(task_sizes=(40,), labels_per_class=1)).class_order
    strong = torch.cat([b.strong for b in batches if b.strong is not None])
    strong_images = torch.cat([b.strong_images for b in batches if b.strong_images is not None])
    for weak, views, classes in (
        ([b.unlabeled for b in batches], strong, [b.truth for b in batches if b.truth is not None]),
        ([b.images for b in batches], strong_images, [b.labels for b in batches]),
    ):
        colors, truth = is_red(torch.cat(weak)), torch.cat(classes).tolist()
        assert len(colors) == len(views) == 6 * 5 * len(weak[0])
        assert torch.equal(colors, torch.tensor([source[slot] % 2 == 0 for slot in truth]))
        assert (colors == is_red(views)).float().mean() > 0.75
    assert not any((strong == one).flatten(1).all(dim=1).any() for one in strong_images[:40])


class Halving(Method):
    """Looks at the sets of a task before it learns anything."""

    unlabeled = False
    looked: ClassVar[list[dict[str, list[tuple[int, int]]]]] = []

    def trainings(self, task: TaskInfo) -> list[Training]:
        def look(passes: Passes, task: TaskInfo) -> None:
            assert isinstance(passes, TaskData)
            found = {}
            for name, images in passes.sets.items():
                if images.labels is not None:
                    numbers = images.pixels.permute(0, 2, 3, 1).flatten(1)[:, :4].long()
                    ids = (numbers * 256 ** torch.arange(4)).sum(1)
                    found[str(name)] = list(zip(ids.tolist(), images.labels.tolist(), strict=True))
            self.looked.append(found)

        return [self.training(task, schedule=Schedule(1, 0.01), before=look)]

    def loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        loss: Tensor = self.classifier(batch.images).mean()
        return loss


def test_the_halves_divide_labeled_images_and_past_ones_come_from_the_coreset_alone() -> None:
    config = tiny(method="test_engine:Halving", coreset=8, labels_per_class=5)
    Halving.looked.clear()
    list(engine_for(config).run())
    for task, sets in enumerate(Halving.looked):
        first, second = set(sets["first-half"]), set(sets["second-half"])
        assert not first & second
        assert first | second == set(sets["labeled"]) == set(sets["new"]) | set(sets["coreset"])
        assert len(sets["coreset"]) == (0 if task == 0 else 5 if task == 1 else 8)
        past = [image for image in sets["labeled"] if image[1] < (0, 1, 3)[task]]
        assert sorted(past) == sorted(sets["coreset"])
        labels = [label for _, label in sets["labeled"]]
        for label in set(labels):
            of_first = sum(y == label for _, y in first)
            assert of_first == max(1, labels.count(label) // 2)


class WatchedOffline(Offline):
    """The bound, writing down what each stage starts from."""

    stages: ClassVar[list[tuple[dict[str, Tensor], list[float]]]] = []

    def trainings(self, task: TaskInfo) -> list[Training]:
        (training,) = super().trainings(task)

        def look(passes: Passes, task: TaskInfo) -> None:
            weights = {k: v.clone() for k, v in self.classifier.state_dict().items()}
            self.stages.append((weights, passes.label_counts("labeled").tolist()))

        return [replace(training, before=look)]


def test_the_bound_trains_a_fresh_network_on_all_labels_so_far() -> None:
    engine, stages = engine_for(tiny(method="test_engine:WatchedOffline")), WatchedOffline.stages
    stages.clear()
    outcomes = list(engine.run())
    assert [counts for _, counts in stages] == [[2.0], [2.0] * 3, [2.0] * 6]
    for number, (weights, _) in enumerate(stages):
        fresh = engine.method.build(f"classifier of task {number + 1}").state_dict()
        assert all(torch.equal(weights[key], fresh[key]) for key in fresh)
    first, second = stages[0][0], stages[1][0]
    assert not torch.equal(first["head.weight"], second["head.weight"])
    assert {outcome.stored_images for outcome in outcomes} == {0}, "it has no coreset"


@pytest.mark.parametrize(
    "options", [{}, {"method": "dm", "recipe": "as-written"}, {"coreset": 4, "stored_share": 0.5}]
)
def test_progress_ends_where_it_was_told_it_would(options: dict[str, Any]) -> None:
    progress = DiesAfter(10**9)
    run(tiny(**{"method": "gd", **options}), dataset=six_classes(), progress=progress)
    assert progress.done == progress.total > 0


class Pulled(Method):
    """Cross entropy and a pull of the weights towards nothing, as terms of one loss."""

    unlabeled = False
    steps: ClassVar[list[dict[str, float]]] = []

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        labels = label_loss(self.forward(batch, task), batch.labels)
        pull = sum((w.square().sum() for w in self.classifier.parameters()), torch.zeros(()))
        self.steps.append({"labels": labels.item(), "pull": pull.item()})
        return {"labels": labels, "pull": 0.001 * pull}


def test_named_terms_of_a_loss_are_recorded_by_epoch_and_add_up_to_it() -> None:
    Pulled.steps.clear()
    outcomes, _ = learned(tiny(method="test_engine:Pulled", batch=4, labels_per_class=4))
    steps = iter(Pulled.steps)
    for number, outcome in enumerate(outcomes, 1):
        (losses,) = outcome.losses.values()
        assert losses.keys() == {"loss", "labels", "pull"}
        for epoch in range(2):
            taken = [next(steps) for _ in range(number)]
            labels = sum(one["labels"] for one in taken) / len(taken)
            pull = 0.001 * sum(one["pull"] for one in taken) / len(taken)
            assert losses["labels"][epoch] == pytest.approx(labels, rel=1e-5)
            assert losses["pull"][epoch] == pytest.approx(pull, rel=1e-5)
            assert losses["loss"][epoch] == pytest.approx(labels + pull, rel=1e-5)
    assert next(steps, None) is None


CONFIDENT = {"consistency_threshold": 0.2}
"""By which some strong views count in two short epochs."""
Options = dict[str, Any]
SHOWN: list[tuple[str, Options, list[Options]]] = [
    ("base", {}, [{"strong_labels": True}, {"learning_rate": 0.02}, {"momentum": 0.5}]),
    ("base", {}, [{"weight_decay": 0.1}, {"weight_averaging": 0.9}]),
    ("base", {"coreset": 4}, [{"stored_share": 0.5}]),
    ("base", {"epochs": 4}, [{"schedule": "cosine"}]),
    ("base", {"learning_rate": 0.01}, [{"optimizer": "adamw"}]),
    ("offline", {}, [{"weight_averaging": 0.9}]),
    *((name, {}, [{"recipe": "as-written"}]) for name in ("base", "e2e", "dr", "gd", "dm")),
    ("gd", {}, [{"calibration": False}]),
    ("dm", {}, [{"pseudo_labels": False}, {"class_balancing": False}]),
    ("dm", {}, [{"distillation_weight": 5.0}, {"true_positive_rate": 1.0}]),
    ("dm", {"options": CONFIDENT}, [{"consistency_weight": 0.0}, {"consistency_weight": 5.0}]),
    ("dm", {"epochs": 4}, [CONFIDENT]),
    ("worldmatch", {"epochs": 4}, [{"accept": "newness"}, {"accept": "two-teachers"}]),
    ("worldmatch", {"epochs": 4}, [{"accept": "truth"}, {"accept": "truth-new"}]),
    ("worldmatch", {}, [{"class_balancing": False}, {"logit_adjustment": 1.0}]),
    ("worldmatch", {}, [{"distillation_weight": 5.0}, CONFIDENT]),
    ("worldmatch", {"options": CONFIDENT}, [{"consistency_weight": 0.0}]),
    ("nncsl", {}, [{"lars": False}, {"learning_rate": 0.1}]),
    ("nncsl", {"coreset": 6}, [{"distillation_weight": 0.0}]),
]
"""Methods, what else it takes for an option to show in them, and options that show then."""


@cache
def learned_once(config_text: str) -> dict[str, Tensor]:
    return learned(RunConfig(**yaml.safe_load(config_text)))[1]


@pytest.mark.parametrize(
    ("method", "others", "change"),
    [(method, others, change) for method, others, changes in SHOWN for change in changes],
)
def test_every_option_shows_in_what_is_learned(
    method: str, others: Options, change: Options
) -> None:
    usual = tiny(method=method, **others)
    of_run = {key: value for key, value in change.items() if key in RunConfig.model_fields}
    own = {key: value for key, value in change.items() if key not in of_run}
    changed = usual.replace(**of_run, options={**usual.options, **own})
    assert changed != usual
    by_default, weights = learned_once(usual.to_yaml()), learned_once(changed.to_yaml())
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    assert not same_weights(by_default, weights, "classifier")


@pytest.fixture(scope="module")
def shapes() -> Dataset:
    return load_source(RunConfig(source="shapes", image_size=16))


def outcomes(shapes: Dataset, first: int, **options: Any) -> list[TaskOutcome]:
    """Learn the first so many tasks."""
    config = RunConfig(network="wrn-10-1", device="cpu", **options)
    engine = Engine(config, shapes, build_stream(shapes, config))
    return list(islice(engine.run(), first))


def accuracy(outcome: TaskOutcome, classes: int) -> float:
    """Percent right of the test images of the first classes, predicting among all seen."""
    asked = outcome.labels < classes
    guesses = outcome.logits[asked, : outcome.task.seen].argmax(axis=1)
    return float((guesses == outcome.labels[asked]).mean() * 100)


@pytest.mark.parametrize("method", ["base", "offline"])
def test_base_forgets_the_first_five_classes_and_the_bound_does_not(
    shapes: Dataset, method: str
) -> None:
    given = {"tasks": 12, "epochs": 10, "batch": 16, "learning_rate": 0.1}
    before, after = outcomes(shapes, 2, method=method, **given)
    assert accuracy(before, 5) > 60
    if method == "base":
        assert accuracy(after, 5) < accuracy(before, 5) - 30
    else:
        assert accuracy(after, 5) > 60
    assert accuracy(after, 10) > 25, "the second task's classes are half of these"
