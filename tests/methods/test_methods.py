"""What the methods train, by which schedules, and what they may and may not touch."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from conftest import make_dataset
from test_paper_step import SIZES, TASK, WITH_CORESET, batch_of, build, method_in_third_task
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.engine import Engine
from distillmatch.methods import (
    Method,
    TaskInfo,
    detector_schedule,
    fine_tuning_schedule,
    main_schedule,
    make_method,
)
from distillmatch.methods.detector import FamiliarityDetector, perturbed_scores
from distillmatch.networks import Detector, build_network
from distillmatch.streams import build_stream

FIRST = TaskInfo(number=0, sizes=SIZES[:1], last=False, coreset=False)
LABELS = [5, 6, 6, 5, 5]


def tiny_config(**options: Any) -> RunConfig:
    given = {"network": "wrn-10-1", "epochs": 2, "tasks": 3, "batch": 8, "unlabeled_batch": 8}
    return RunConfig(**{**given, **options, "device": "cpu"})


def engine_for(config: RunConfig, **data: Any) -> Engine:
    dataset = make_dataset(**{"classes": 6, "per_class": 10, "parents": 3, "noise": True, **data})
    return Engine(config, dataset, build_stream(dataset, config))


def weights_of(network: nn.Module) -> list[Tensor]:
    return [value.clone() for value in network.state_dict().values()]


@pytest.mark.parametrize("option", ["pseudo_labels", "consistency_weight", "distillation_weight"])
def test_each_ablation_takes_its_term_out_of_the_loss(option: str) -> None:
    off: Any = False if option == "pseudo_labels" else 0.0
    method = method_in_third_task("paper", method="dm", options={option: off})
    method.values |= {"epsilon": 0.0, "threshold": -9.0}
    method.weights = torch.ones(7, dtype=torch.float64)  # type: ignore[attr-defined]
    trainings = method.trainings(TASK)
    assert [one.name for one in trainings] == (
        ["classifier"] if option == "pseudo_labels" else ["classifier", "detector"]
    )
    batch = batch_of(trainings[0], LABELS)
    trainings[0].network.train()
    terms = trainings[0].loss(batch, TASK)
    assert isinstance(terms, dict)
    wanted = {"labels", "consistency", "distillation"}
    assert terms.keys() == wanted - {option.removesuffix("_weight")}


class Counted:
    """A pass over five unlabeled images and seven labels."""

    truth = None

    def run(self, frozen: Any, over: str, views: int = 1, by_batch: tuple[str, ...] = ()) -> Any:
        generator = torch.Generator().manual_seed(9)
        images = torch.randn(5, 3, 8, 8, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            return frozen(images, TASK)

    def count(self, over: str) -> int:
        return 5 if over == "unlabeled" else 7

    def labels(self, over: str) -> Tensor:
        return torch.tensor([5, 5, 5, 5, 6, 6, 6])

    def label_counts(self, over: str) -> Tensor:
        return torch.tensor([0.0, 0, 0, 0, 0, 4, 3])


@pytest.mark.parametrize(("recipe", "met"), [("paper", 6 / 5), ("as-written", 1.0)])
def test_class_weights_count_labels_and_accepted_pseudo_labels(recipe: str, met: float) -> None:
    """Eq. 3; by `paper` an epoch of one step meets six unlabeled images, of five there are."""
    method: Any = method_in_third_task(recipe, method="dm")
    method.values |= {"epsilon": 0.0, "threshold": -9.0}
    method.balance(Counted(), TASK)
    outputs = Counted().run(method.unlabeled_outputs, "unlabeled")
    counts = [0.0, 0, 0, 0, 0, 4, 3]
    for row in outputs.past[:, :5].tolist():
        counts[row.index(max(row))] += met
    smoothed = [count + 1 for count in counts]
    expected = [min(10.0, sum(smoothed) / 7 / count) for count in smoothed]
    assert method.weights.tolist() == pytest.approx(expected)


def test_with_a_coreset_the_class_weights_count_labels_alone() -> None:
    method: Any = method_in_third_task("paper", method="dm", coreset=9)
    method.balance(Counted(), WITH_CORESET)
    smoothed = [1, 1, 1, 1, 1, 5, 4]
    assert method.weights.tolist() == pytest.approx([min(10.0, 14 / 7 / one) for one in smoothed])
    method.balance_fine_tuning(Counted(), WITH_CORESET)
    present = [4.5 / 5, 4.5 / 4]
    assert method.tuning_weights.tolist() == pytest.approx([10.0] * 5 + present)


@pytest.mark.parametrize("name", ["e2e", "dr", "gd", "dm"])
def test_frozen_models_are_not_changed_by_learning_a_task(name: str) -> None:
    engine = engine_for(tiny_config(method=name))
    tasks = engine.run()
    next(tasks)
    frozen = [key for key in ("past", "past detector") if key in engine.method.networks]
    assert "past" in frozen
    seen: dict[str, list[Tensor]] = {}
    inner = engine.method.end_task

    def look_before_the_copy(task: TaskInfo) -> None:
        seen["past"] = weights_of(engine.method.networks["past"])
        inner(task)

    engine.method.end_task = look_before_the_copy  # type: ignore[method-assign]
    before = weights_of(engine.method.networks["past"])
    trained = weights_of(engine.method.classifier)
    next(tasks)
    for one, other in zip(before, seen["past"], strict=True):
        assert torch.equal(one, other)
    now = weights_of(engine.method.classifier)
    assert any(not torch.equal(a, b) for a, b in zip(trained, now, strict=True))
    for key in frozen:
        assert all(p.grad is None for p in engine.method.networks[key].parameters())


@pytest.mark.parametrize("recipe", ["paper", "as-written"])
def test_fine_tuning_trains_the_last_layer_and_nothing_else(recipe: str) -> None:
    """By batch statistics it updates the running ones, and no other weight."""
    engine = engine_for(tiny_config(method="gd", coreset=6, epochs=4, recipe=recipe))
    states: list[dict[str, Tensor]] = []
    inner = engine.trainer._train

    def watch(training: Any, *rest: Any) -> None:
        network = engine.method.classifier
        before = {k: v.clone() for k, v in network.state_dict().items()}
        inner(training, *rest)
        if training.name == "fine-tuning":
            after = network.state_dict()
            states.append({k: after[k] - before[k] for k in before})

    engine.trainer._train = watch  # type: ignore[method-assign,assignment]
    list(engine.run())
    assert len(states) == 2, "every task but the first, which has no coreset yet"
    for change in states:
        assert any(v.any() for k, v in change.items() if k.startswith("head"))
        changed = {k for k, v in change.items() if v.any() and not k.startswith("head")}
        running = {k for k in change if k.rpartition(".")[2] in ("running_mean", "running_var")}
        assert changed == (running if recipe == "paper" else set())


def test_the_perturbation_raises_the_score() -> None:
    network = build_network("wrn-10-1", 5, "cosine", torch.Generator().manual_seed(3)).eval()
    images = torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(4))
    plain, moved = perturbed_scores(network, images, 5, (0.0, 0.002)).unbind(1)
    assert moved.mean() > plain.mean()
    assert (moved > plain).float().mean() > 0.9


def test_images_are_moved_by_epsilon_along_the_sign_of_the_scores_gradient() -> None:
    network = build_network("wrn-10-1", 5, "cosine", torch.Generator().manual_seed(3)).eval()
    assert isinstance(network, Detector)
    images = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(4))
    epsilons = (0.0, 0.0025, 0.08)
    made = perturbed_scores(network, images, 3, epsilons)
    assert made.shape == (6, 3)
    for column, epsilon in zip(made.unbind(1), epsilons, strict=True):
        for image, score in zip(images, column, strict=True):
            wanted = image[None].clone().requires_grad_(True)
            network.similarities(wanted)[0, :3].max().backward()  # type: ignore[no-untyped-call]
            assert wanted.grad is not None
            moved = image[None] + epsilon * wanted.grad.sign()
            expected = network.similarities(moved)[0, :3].max()
            torch.testing.assert_close(score, expected.detach(), rtol=1e-4, atol=1e-5)


class HeldOut:
    """A pass whose held-out images are always the same."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def label_counts(self, over: str) -> Tensor:
        return torch.ones(3)

    def run(self, frozen: Any, over: str, views: int = 1, by_batch: tuple[str, ...] = ()) -> Any:
        assert over == "second-half"
        return frozen(self.images.repeat(views, 1, 1, 1), FIRST)


@pytest.mark.parametrize(("rate", "reached"), [(0.5, 0.5), (0.05, 0.05), (0.95, 0.95)])
@pytest.mark.parametrize("recipe", ["paper", "as-written"])
def test_the_calibrated_detector_accepts_the_share_it_is_set_to(
    recipe: str, rate: float, reached: float
) -> None:
    method = make_method(RunConfig(recipe=recipe), build)
    detector = FamiliarityDetector(method)
    images = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    passes: Any = HeldOut(images)
    detector.calibrate(passes, FIRST, rate)
    epsilon = method.values["epsilon"]
    assert epsilon == (epsilon if recipe == "as-written" else pytest.approx(epsilon))
    scores = perturbed_scores(detector.past, images, 2, [epsilon])[:, 0]
    share = (scores >= method.values["threshold"]).double().mean()
    assert share == pytest.approx(reached, abs=1 / 40)


def test_the_schedule_is_the_papers() -> None:
    config = RunConfig()
    assert main_schedule(config, 0.1).decays == (120, 160, 180)
    short = main_schedule(config, 0.1, fine_tuned=True)
    assert (short.epochs, short.decays) == (180, (120, 160))
    tuned = fine_tuning_schedule(config, 0.1)
    assert (tuned.epochs, tuned.decays) == (20, (10, 15))
    assert tuned.learning_rate == pytest.approx(0.01)
    detector = detector_schedule(config, 0.1)
    assert (detector.epochs, detector.decays) == (100, (60, 80, 90))
    tenth = main_schedule(RunConfig(epochs=20), 0.1)
    assert (tenth.epochs, tenth.decays) == (20, (12, 16, 18))
    assert fine_tuning_schedule(RunConfig(epochs=20), 0.1).epochs == 2
    assert [tenth.rate(e) for e in (0, 12, 18)] == pytest.approx([0.1, 0.01, 0.0001])


def test_a_cosine_schedule_falls_from_the_rate_towards_zero() -> None:
    schedule = main_schedule(RunConfig(epochs=20, schedule="cosine"), 0.1)
    rates = [schedule.rate(epoch) for epoch in range(20)]
    assert rates[0] == pytest.approx(0.1) and rates[10] == pytest.approx(0.05)
    assert all(one > other for one, other in pairwise(rates))
    assert 0 < rates[-1] < 0.001


@pytest.mark.parametrize(
    ("name", "coreset", "rate"),
    [
        ("base", 0, 0.1),
        ("dm", 0, 0.1),
        ("offline", 0, 0.1),
        ("e2e", 0, 0.005),
        ("dr", 0, 0.005),
        ("gd", 0, 0.005),
        ("gd", 400, 0.1),
        ("e2e", 400, 0.1),
        ("dr", 400, 0.1),
        ("dm", 400, 0.1),
    ],
)
def test_learning_rates_are_the_papers(name: str, coreset: int, rate: float) -> None:
    method = make_method(RunConfig(method=name, coreset=coreset), build)
    assert method.trainings(FIRST)[0].schedule.learning_rate == rate
    chosen = make_method(RunConfig(method=name, coreset=coreset, learning_rate=0.3), build)
    assert chosen.trainings(FIRST)[0].schedule.learning_rate == 0.3


def test_what_a_method_trains_is_the_protocols_table() -> None:
    """Rows of the table of methods that show in the trainings of a later task."""
    expected = {
        "base": ["classifier"],
        "e2e": ["classifier", "fine-tuning"],
        "dr": ["teacher", "classifier"],
        "gd": ["teacher", "classifier", "fine-tuning"],
        "dm": ["classifier", "fine-tuning", "detector"],
        "worldmatch": ["classifier", "fine-tuning"],
        "offline": ["classifier"],
    }
    for name, trainings in expected.items():
        method: Method = make_method(RunConfig(method=name, coreset=9), build)
        found = method.trainings(WITH_CORESET)
        assert [training.name for training in found] == trainings
        alone = make_method(RunConfig(method=name), build)
        without = [training.name for training in alone.trainings(TASK)]
        assert without == [name for name in trainings if name != "fine-tuning"]
        for training in found:
            whole = name == "e2e" or training.name != "fine-tuning"
            assert training.parameters == ("all" if whole else "head")
            if training.name == "detector":
                assert training.labeled == "first-half"
    dm = make_method(RunConfig(), build)
    assert not dm.trainings(FIRST)[0].strong, "no consistency loss in the first task"
    last = TaskInfo(number=2, sizes=SIZES, last=True, coreset=False)
    assert [t.name for t in dm.trainings(last)] == ["classifier"], "no detector after the last task"


def test_with_a_coreset_the_first_task_of_dm_is_fine_tuned_and_that_of_others_is_not() -> None:
    for name, expected in (("dm", True), ("gd", False), ("e2e", False)):
        method = make_method(RunConfig(method=name, coreset=9), build)
        found = [training.name for training in method.trainings(FIRST)]
        assert ("fine-tuning" in found) == expected
