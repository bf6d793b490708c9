"""The methods: their losses against slow loops, and what they may and may not touch."""

import math
from functools import partial
from typing import Any, Literal

import pytest
import torch
from conftest import make_dataset
from slow import (
    SIZES,
    TASK,
    Rows,
    builder,
    cooled,
    divergence,
    random_batch,
    slow_consistency,
    slow_supervised,
    softmax,
)
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.engine import Engine
from distillmatch.methods import Batch, Method, TaskInfo, make_method
from distillmatch.methods.detector import perturbed_scores, score_and_logits
from distillmatch.methods.dm import DistillMatch
from distillmatch.methods.gd import GlobalDistillation
from distillmatch.methods.parts import LabelWeights
from distillmatch.networks import Detector, build_network
from distillmatch.streams import build_stream


def slow_dm_loss(
    method: DistillMatch, batch: Batch, labeled: Rows, unlabeled: Rows, strong: Rows
) -> float:
    """Eq. 5 by loops over images, tasks and classes."""
    weights: list[float] = method.weights.tolist()
    supervised = slow_supervised(batch, weights, labeled)
    pseudo, accepted = 0.0, 0
    for row, past, score in zip(
        unlabeled,
        batch.of_unlabeled["past"].tolist(),
        batch.of_unlabeled["gate"].tolist(),
        strict=True,
    ):
        if score >= method.values["threshold"]:
            label = max(range(5), key=lambda k, p=past: p[k])  # type: ignore[misc]
            target = [float(k == label) for k in range(5)]
            if method.config.pseudo_label_targets == "soft":
                target = softmax(past[:5])
            for share, probability in zip(target, softmax(row)[:5], strict=True):
                pseudo -= weights[label] * share * math.log(probability)
            accepted += 1
    consistency = slow_consistency(unlabeled, strong, method.config.consistency_threshold)
    teacher: Rows = batch.of_images["past"].tolist() + batch.of_unlabeled["past"].tolist()
    distilled = 0.0
    for start, end in ((0, 2), (2, 5)):
        for past_row, row in zip(teacher, labeled + unlabeled, strict=True):
            distilled += divergence(cooled(past_row[start:end]), cooled(row[start:end]))
    distilled /= 2 * len(teacher)
    return (supervised + pseudo) / (len(labeled) + accepted) + consistency + distilled


@pytest.mark.parametrize("targets", ["hard", "soft"])
@pytest.mark.parametrize("threshold", [-1.0, 0.5, 2.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_dm_loss_is_equation_5(
    seed: int, threshold: float, targets: Literal["hard", "soft"]
) -> None:
    """With some, no and all unlabelled images accepted."""
    config = RunConfig(consistency_threshold=0.3, pseudo_label_targets=targets)
    method = DistillMatch(config, builder())
    method.values["threshold"] = threshold
    method.weights = torch.rand(7, dtype=torch.float64) + 0.5
    batch = random_batch(seed)
    method.classifier.eval()
    with torch.no_grad():
        logits = method.classifier(torch.cat([batch.images, batch.unlabeled])).tolist()
        strong = method.classifier(batch.strong).tolist()
        loss = float(method.classifier_loss(batch, TASK))
    slow = slow_dm_loss(method, batch, logits[:5], logits[5:], strong)
    assert loss == pytest.approx(slow, rel=1e-9)


def slow_gd_loss(batch: Batch, weights: list[float], labeled: Rows, unlabeled: Rows) -> float:
    supervised = slow_supervised(batch, weights, labeled)
    ensemble = 0.0
    s, m = 7, 2
    for row, past_row, new_row in zip(
        unlabeled,
        batch.of_unlabeled["past"].tolist(),
        batch.of_unlabeled["teacher"].tolist(),
        strict=True,
    ):
        p, c = softmax(past_row[:5]), softmax(new_row[5:])
        largest = max(p)
        q = [v if v == largest else v * (s - m - 1) / (s - 1) for v in p]
        q += [(1 - largest) * m / (s - 1) * v for v in c]
        assert sum(q) == pytest.approx(1)
        ensemble += divergence(q, softmax(row))
    rows = labeled + unlabeled
    total = (supervised + ensemble) / len(rows)
    for name, start, end, share in (("past", 0, 5, 5 / 7), ("teacher", 5, 7, 2 / 7)):
        teacher: Rows = batch.of_images[name].tolist() + batch.of_unlabeled[name].tolist()
        distilled = sum(
            divergence(
                softmax([v / 2 for v in t[start:end]]), softmax([v / 2 for v in r[start:end]])
            )
            for t, r in zip(teacher, rows, strict=True)
        )
        total += share * 4 * distilled / len(rows)
    return total


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_gd_loss_is_the_protocols(seed: int) -> None:
    method = GlobalDistillation(RunConfig(method="gd"), builder())
    batch = random_batch(seed)
    batch.of_unlabeled["ensemble"] = method.ensemble(batch.of_unlabeled, TASK)
    weights = torch.rand(7, dtype=torch.float64) + 0.5
    with torch.no_grad():
        logits = method.classifier(torch.cat([batch.images, batch.unlabeled])).tolist()
        loss = float(method.loss(batch, TASK, LabelWeights(method.config, weights)))
    slow = slow_gd_loss(batch, weights.tolist(), logits[:5], logits[5:])
    assert loss == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize(
    ("switch", "value"),
    [
        ("pseudo_labels", False),
        ("consistency", False),
        ("distillation", False),
        ("class_balancing", False),
    ],
)
def test_each_ablation_takes_its_part_out_of_the_loss(switch: str, value: bool) -> None:
    batch, full = random_batch(4), DistillMatch(RunConfig(consistency_threshold=0.1), builder())
    less = DistillMatch(RunConfig(consistency_threshold=0.1, **{switch: value}), builder())
    losses = []
    for method in (full, less):
        method.values["threshold"] = 0.5
        passes = CountingPasses()
        method.networks["past"] = method.build("past")
        method.networks["past detector"] = method.build("past detector", "cosine")
        method.values["epsilon"] = 0.0
        method.balance(passes, TASK, partial(method.score, task=TASK))
        training = method.trainings(TASK)[0]
        given = batch if training.strong else Batch(**{**vars(batch), "strong": None})
        losses.append(float(training.loss(given).detach()))
    assert losses[0] != losses[1]
    names = [training.name for training in less.trainings(TASK)]
    assert ("detector" in names) == (switch != "pseudo_labels")
    if switch == "class_balancing":
        assert less.weights.tolist() == [1.0] * 7


class CountingPasses:
    """A pass over five made-up unlabelled images and seven labels."""

    def score(self, score: Any, over: str, views: int = 1) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(9)
        images = torch.randn(5, 3, 8, 8, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            scores: dict[str, Tensor] = score(images)
        return scores

    def note(self, notes: dict[str, Tensor]) -> None:
        raise AssertionError("there is nothing to note")

    def count(self, over: str) -> int:
        return 5 if over == "unlabeled" else 7

    def labels(self, over: str) -> Tensor:
        return torch.tensor([5, 5, 5, 5, 6, 6, 6])

    def label_counts(self, over: str) -> Tensor:
        return torch.tensor([0.0, 0, 0, 0, 0, 4, 3])


def tiny_config(**options: Any) -> RunConfig:
    given = {"network": "wrn-10-1", "epochs": 2, "tasks": 3, "batch": 8, "unlabeled_batch": 8}
    return RunConfig(**{**given, **options, "device": "cpu"})


def engine_for(config: RunConfig, **data: Any) -> Engine:
    dataset = make_dataset(**{"classes": 6, "per_class": 10, "parents": 3, "noise": True, **data})
    return Engine(config, dataset, build_stream(dataset, config))


def weights_of(network: nn.Module) -> list[Tensor]:
    return [value.clone() for value in network.state_dict().values()]


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


@pytest.mark.parametrize("statistics", ["running", "batch"])
def test_fine_tuning_trains_the_last_layer_and_nothing_else(statistics: str) -> None:
    """By the statistics of its steps it moves the running ones, and no other weight."""
    engine = engine_for(
        tiny_config(method="gd", coreset=6, epochs=4, fine_tuning_statistics=statistics)
    )
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
        moved = {k for k in change if k.rpartition(".")[2] in ("running_mean", "running_var")}
        assert changed == (moved if statistics == "batch" else set())


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
    for epsilon, column in zip(epsilons, made.unbind(1), strict=True):
        alone, _ = score_and_logits(network, images, 3, epsilon)
        torch.testing.assert_close(alone, column)


def test_the_schedule_is_the_papers() -> None:
    from distillmatch.methods import detector_schedule, fine_tuning_schedule, main_schedule

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
    assert main_schedule(RunConfig(learning_rate=0.3), 0.1).learning_rate == 0.3


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
    method = make_method(RunConfig(method=name, coreset=coreset), builder())
    first = TaskInfo(number=0, sizes=(2,), last=False, coreset=False)
    assert method.trainings(first)[0].schedule.learning_rate == rate


def test_what_a_method_trains_is_the_protocols_table() -> None:
    """Rows of the table of methods that show in the trainings of a later task."""
    with_coreset = TaskInfo(number=2, sizes=SIZES, last=False, coreset=True)
    expected = {
        "base": ["classifier"],
        "e2e": ["classifier", "fine-tuning"],
        "dr": ["teacher", "classifier"],
        "gd": ["teacher", "classifier", "fine-tuning"],
        "dm": ["classifier", "fine-tuning", "detector"],
        "offline": ["classifier"],
    }
    for name, trainings in expected.items():
        method: Method = make_method(RunConfig(method=name, coreset=9), builder())
        found = method.trainings(with_coreset)
        assert [training.name for training in found] == trainings
        without = [training.name for training in method.trainings(TASK)]
        assert without == [name for name in trainings if name != "fine-tuning"]
        for training in found:
            whole = name == "e2e" or training.name != "fine-tuning"
            assert training.parameters == ("all" if whole else "head")
            assert training.head_statistics == "running"
            if training.name == "detector":
                assert training.labeled == "first-half"
    dm = make_method(RunConfig(), builder())
    first = TaskInfo(number=0, sizes=(2,), last=False, coreset=False)
    assert not dm.trainings(first)[0].strong, "no consistency loss in the first task"
    last = TaskInfo(number=2, sizes=SIZES, last=True, coreset=False)
    assert [t.name for t in dm.trainings(last)] == ["classifier"], "no detector after the last task"
