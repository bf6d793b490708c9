"""Gates that are not the paper's: distances in feature space, and two judges together."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_dataset
from learner_world import BOAT, CLOWNFISH, GOLDFISH, SHARK, TROUT, images_of, small_learner, task
from numpy.typing import NDArray
from torch import Tensor

from distillmatch import ContinualLearner
from distillmatch.config import RunConfig
from distillmatch.engine import Engine, TaskOutcome
from distillmatch.engine.data import TaskData
from distillmatch.errors import ConfigError
from distillmatch.losses import shrunk_covariance
from distillmatch.methods import ImageSet, TaskInfo
from distillmatch.methods.detector import perturbed_scores
from distillmatch.methods.dm import DistillMatch
from distillmatch.networks import Detector
from distillmatch.sources import Dataset, Part
from distillmatch.streams import build_stream

Array = NDArray[np.float64]
DELTA = 0.7
RATE = 0.3
ENVIRONMENT = images_of(GOLDFISH, CLOWNFISH, TROUT, SHARK, count=4, first=40)


def colored(per_class: int = 14) -> Dataset:
    """Make noisy images of which each class has a shade of its own."""
    made = make_dataset(classes=6, per_class=per_class, parents=3, noise=True)

    def part(of: Part) -> Part:
        shades = 34 * of.labels[:, None, None, None] + np.array([0, 20, 60])
        return Part((shades + of.images // 4).astype(np.uint8), of.labels)

    return replace(made, train=part(made.train), test=part(made.test))


class Watched:
    """An engine whose method's calibrations are looked at while the task's data are there."""

    def __init__(self, **options: Any) -> None:
        given = {"network": "wrn-10-1", "epochs": 5, "tasks": 3, "batch": 8, "unlabeled_batch": 8}
        given |= {"device": "cpu", "labels_per_class": 6, "true_positive_rate": DELTA}
        config = RunConfig(**{**given, **options})
        dataset = colored()
        self.engine = Engine(config, dataset, build_stream(dataset, config))
        method = self.engine.method
        assert isinstance(method, DistillMatch) and method.gate is not None
        self.method, self.gate = method, method.gate
        self.before: list[dict[str, Tensor]] = []
        self.looks: list[dict[str, Array]] = []
        inner = self.gate.calibrate

        def calibrate(passes: Any, info: TaskInfo) -> None:
            self.before.append(dict(method.tensors))
            inner(passes, info)
            self.looks.append(self.look(passes, info))

        self.gate.calibrate = calibrate  # type: ignore[method-assign,assignment]

    def look(self, passes: TaskData, info: TaskInfo) -> dict[str, Array]:
        """Return what calibration may have seen, and the scores that it led to."""
        network, found = self.method.classifier, {}

        def score(images: Tensor) -> dict[str, Tensor]:
            _, asked = self.gate.ask(images, info.seen, "classifier")
            features = network.get_submodule("backbone")(images)
            return {"features": features, "score": asked["gate"]}

        kinds: tuple[ImageSet, ...] = ("labeled", "unlabeled")
        for kind in kinds:
            for name, rows in passes.score(score, kind).items():
                found[f"{kind} {name}"] = rows.double().numpy()
        again = passes.score(lambda i: {"score": score(i)["score"]}, "labeled", 4)["score"]
        found["calibration scores"] = again.double().numpy()
        found["labels"] = passes.labels("labeled").numpy()
        return found

    def threshold(self) -> float:
        return self.method.values["threshold"]


def slow_means(rows: Array, labels: Array, classes: int) -> list[Array | None]:
    """Return each class's mean, row by row."""
    means: list[Array | None] = []
    for label in range(classes):
        own = [row for row, one in zip(rows, labels, strict=True) if one == label]
        means.append(np.stack(own).mean(axis=0) if own else None)
    return means


def slow_scores(images: Array, rows: Array, labels: Array, means: list[Any], all_: Array) -> Array:
    """Return the relative Mahalanobis score of each image by inverted covariances."""
    within = np.stack([row - means[int(k)] for row, k in zip(rows, labels, strict=True)])
    center = all_.mean(axis=0)
    inner, outer = (
        np.linalg.inv(shrunk_covariance(torch.from_numpy(part)).numpy())
        for part in (within, all_ - center)
    )
    known = [mean for mean in means if mean is not None]
    return np.array(
        [
            (z - center) @ outer @ (z - center) - min((z - m) @ inner @ (z - m) for m in known)
            for z in images
        ]
    )


def test_the_feature_gate_scores_by_means_of_labelled_and_accepted_images() -> None:
    watched = Watched(gate="features")
    assert set(watched.method.networks) == {"classifier"}
    outcomes: list[TaskOutcome] = []
    for outcome in watched.engine.run():
        outcomes.append(outcome)
        if outcome.task.last:
            break
        look, info = watched.looks[-1], outcome.task
        rows, labels = look["labeled features"], look["labels"]
        if info.past:
            judged = outcome.judgement
            assert judged is not None and judged.accepted.any()
            rows = np.concatenate([rows, look["unlabeled features"][judged.accepted]])
            labels = np.concatenate([labels, judged.pseudo_labels[judged.accepted]])
        means: list[Any] = slow_means(rows, labels, info.seen)
        for label in range(info.past):
            if means[label] is None:
                means[label] = watched.before[-1]["class means"][label].double().numpy()
        expected = slow_scores(
            look["unlabeled features"], rows, labels, means, look["unlabeled features"]
        )
        np.testing.assert_allclose(look["unlabeled score"], expected, rtol=2e-3, atol=2e-2)
        assert np.mean(look["calibration scores"] >= watched.threshold()) >= DELTA
        assert np.mean(look["calibration scores"] > watched.threshold()) < DELTA
    assert outcomes[-1].familiarity is None, "in the last task nothing is calibrated"


def test_a_past_class_of_which_nothing_is_accepted_keeps_its_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(gate="features", epochs=6)
    nothing = lambda scores, info: torch.zeros(len(scores["past"]), dtype=torch.bool)  # noqa: E731
    monkeypatch.setattr(watched.gate, "accepts", nothing)
    tasks = watched.engine.run()
    next(tasks), next(tasks)
    old, new = watched.before[1]["class means"], watched.method.tensors["class means"]
    assert torch.equal(new[: len(old)], old)
    assert len(new) == 2 * len(old) and torch.isfinite(new).all()


@pytest.mark.parametrize("coreset", [0, 6])
def test_the_ensemble_adds_what_the_detector_and_the_energy_say(coreset: int) -> None:
    watched = Watched(gate="ensemble", coreset=coreset)
    method, seen = watched.method, 0

    def slow(passes: TaskData) -> None:
        detector = method.networks["past detector"]
        assert isinstance(detector, Detector)

        def score(images: Tensor) -> dict[str, Tensor]:
            epsilon = method.values["epsilon"]
            _, asked = watched.gate.ask(images, seen, "classifier")
            return {
                "detector": perturbed_scores(detector, images, seen, [epsilon])[:, 0],
                "energy": method.classifier(images)[:, :seen].exp().sum(1).log(),
                "found": asked["gate"],
            }

        scores = {n: s.numpy() for n, s in passes.score(score, "second-half", 4).items()}
        both = [scores[name] for name in ("detector", "energy")]
        expected = sum((one - one.mean()) / one.std() for one in both)
        np.testing.assert_allclose(scores["found"], expected, rtol=1e-3, atol=1e-3)
        assert np.mean(scores["found"] >= watched.threshold()) >= DELTA
        assert np.mean(scores["found"] > watched.threshold()) < DELTA

    inner = watched.gate.calibrate

    def calibrate(passes: Any, info: TaskInfo) -> None:
        nonlocal seen
        inner(passes, info)
        seen = info.seen
        slow(passes)

    watched.gate.calibrate = calibrate  # type: ignore[method-assign,assignment]
    outcomes = list(watched.engine.run())
    assert seen == 4, "it was calibrated in both tasks that another one follows"
    judged = outcomes[1].judgement
    assert judged is not None and 0 < judged.accepted.sum() < len(judged.accepted)


def options(gate: str) -> dict[str, Any]:
    return {"gate": gate, "weight_averaging": 0.5, "true_positive_rate": 0.9}


@pytest.mark.parametrize("gate", ["features", "ensemble"])
def test_a_learner_with_such_a_gate_is_saved_whole(gate: str, tmp_path: Path) -> None:
    learner = small_learner("dm", options=options(gate))
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=6), unlabeled=ENVIRONMENT)
    learner.save(tmp_path)
    loaded = ContinualLearner.load(tmp_path)
    for again in (learner, loaded):
        again.partial_fit(*task(BOAT, count=4), unlabeled=ENVIRONMENT)
    assert learner.explain().accepted
    assert [e.score for e in loaded.explain().examples] == [
        e.score for e in learner.explain().examples
    ]
    np.testing.assert_array_equal(
        loaded.predict_proba(ENVIRONMENT), learner.predict_proba(ENVIRONMENT)
    )


def test_a_gate_that_has_learned_nothing_says_so() -> None:
    watched = Watched(gate="features")
    with pytest.raises(ConfigError, match="gate 'features' must be chosen before the first task"):
        watched.gate.ask(torch.zeros(1, 3, 8, 8), 2, "classifier")


class Strangers(Watched):
    """An engine of which the threshold of every task is written down, with what it was set on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(false_positive_rate=RATE, **options)
        self.scores: list[list[float]] = []
        self.set: list[float] = []
        self.used: list[set[float]] = []
        prepare, balance, total = self.gate.prepare, self.method.balance, self.method.total

        def prepared(passes: Any, info: TaskInfo) -> None:
            prepare(passes, info)
            self.used.append(set())
            if info.past:
                self.set.append(self.threshold())
                self.scores.append(self.slow_scores(passes, info))

        def balanced(passes: Any, info: TaskInfo, score: Any) -> None:
            self.used[-1].add(self.threshold() if info.past else 0.0)
            balance(passes, info, score)

        def summed(batch: Any, info: TaskInfo, *rest: Any) -> Tensor:
            self.used[-1].add(self.threshold() if info.past else 0.0)
            return total(batch, info, *rest)

        self.gate.prepare = prepared  # type: ignore[method-assign,assignment]
        self.method.balance = balanced  # type: ignore[method-assign,assignment]
        self.method.total = summed  # type: ignore[method-assign,assignment]

    def slow_scores(self, passes: TaskData, info: TaskInfo) -> list[float]:
        """Score the views of the new classes' images, those of energies by hand."""

        def score(images: Tensor) -> dict[str, Tensor]:
            if self.method.config.gate == "energy":
                logits = self.method.networks["past"](images)[:, : info.past]
                return {"score": logits.double().exp().sum(1).log().float()}
            return {"score": self.gate.ask(images, info.past, "past")[1]["gate"]}

        of_all: list[float] = passes.score(score, "new", 4)["score"].tolist()
        labels = passes.labels("new").tolist() * 4
        return [s for s, label in zip(of_all, labels, strict=True) if label >= info.past]


@pytest.mark.parametrize("coreset", [0, 6])
@pytest.mark.parametrize("gate", ["detector", "energy", "features", "ensemble"])
def test_known_strangers_set_the_threshold_of_a_whole_task(gate: str, coreset: int) -> None:
    watched = Strangers(gate=gate, coreset=coreset)
    outcomes = list(watched.engine.run())
    assert len(watched.scores) == 2, "in the first task nothing is accepted"
    for number, (scores, threshold) in enumerate(zip(watched.scores, watched.set, strict=True)):
        assert len(scores) == 2 * 6 * 4, "four views of six images of two classes, none stored"
        rank = next(n for n in range(1, 49) if n / 48 >= RATE)
        assert threshold == pytest.approx(sorted(scores, reverse=True)[rank - 1], abs=1e-5)
        assert watched.used[number + 1] == {threshold}
    after = [outcome.values["threshold"] for outcome in outcomes]
    assert after[1] != watched.set[0], "after a task the threshold is that of δ again"
    assert after[2] == watched.set[1], "after the last one it stays as it was used"


class Known:
    """A pass in which images of classes seen before have the higher scores."""

    def __init__(self, labels: list[int]) -> None:
        self.given = torch.tensor(labels)

    def labels(self, over: ImageSet) -> Tensor:
        assert over == "new"
        return self.given

    def score(self, score: Any, over: ImageSet, views: int = 1) -> dict[str, Tensor]:
        by_view = [100.0 * (self.given < 2) + self.given + 0.1 * view for view in range(views)]
        return {"gate": torch.cat(by_view)}


@pytest.mark.parametrize(("labels", "expected"), [([0, 2, 1, 3], 3.1), ([0, 1], 7.0)])
def test_images_of_classes_seen_before_are_no_strangers(labels: list[int], expected: float) -> None:
    """Of the scores 3.3, 3.2, 3.1, 3.0, 2.3 … three are the first share of at least 0.3."""
    watched = Watched(gate="energy", false_positive_rate=RATE)
    watched.method.values["threshold"] = 7.0
    info = TaskInfo(1, (2, 2), last=False, coreset=False)
    watched.gate.prepare(Known(labels), info)  # type: ignore[arg-type]
    assert watched.threshold() == pytest.approx(expected)


@pytest.mark.parametrize(("rate", "sizes"), [(None, (2, 2)), (RATE, (2,))])
def test_without_the_rate_or_a_past_nothing_is_looked_at(
    rate: float | None, sizes: tuple[int, ...]
) -> None:
    watched = Watched(gate="features", false_positive_rate=rate)
    info = TaskInfo(len(sizes) - 1, sizes, last=False, coreset=False)
    watched.gate.prepare(None, info)  # type: ignore[arg-type]
    assert "threshold" not in watched.method.values
