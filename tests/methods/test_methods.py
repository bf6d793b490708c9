"""What the methods train, by which schedules and class weights, and how the detector scores."""

from typing import Any

import pytest
import torch
from small_runs import engine_for, tiny
from test_paper_step import (
    LABELS,
    SIZES,
    TASK,
    WITH_CORESET,
    batch_of,
    build,
    images,
    method_in_third_task,
)
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.methods import (
    TaskInfo,
    detector_schedule,
    fine_tuning_schedule,
    main_schedule,
    make_method,
)
from distillmatch.methods.detector import FamiliarityDetector

FIRST = TaskInfo(number=0, sizes=SIZES[:1], last=False, coreset=False)


@pytest.mark.parametrize("option", ["pseudo_labels", "consistency_weight", "distillation_weight"])
def test_each_ablation_takes_its_term_out_of_the_loss(option: str) -> None:
    off: Any = False if option == "pseudo_labels" else 0.0
    method: Any = method_in_third_task("paper", method="dm", options={option: off})
    method.values |= {"epsilon": 0.0, "threshold": -9.0}
    method.weights = torch.ones(7, dtype=torch.float64)
    trainings = method.trainings(TASK)
    has_detector = option != "pseudo_labels"
    assert [one.name for one in trainings] == ["classifier", "detector"][: 1 + has_detector]
    batch = batch_of(trainings[0], LABELS)
    trainings[0].network.train()
    terms = trainings[0].loss(batch, TASK)
    wanted = {"labels", "consistency", "distillation"}
    assert terms.keys() == wanted - {option.removesuffix("_weight")}
    accepted = method.pseudo_labels(batch.unlabeled_outputs, TASK).accepted
    assert accepted.all() if has_detector else not accepted.any()


class Counted:
    """Passes over five unlabeled and forty held-out images, beside seven labels."""

    truth = None

    def run(self, frozen: Any, over: str, views: int = 1, by_batch: tuple[str, ...] = ()) -> Any:
        if over == "unlabeled":
            return frozen(images(5, 9), TASK)
        assert over == "second-half"
        return frozen(images(40, 1).repeat(views, 1, 1, 1), FIRST)

    def count(self, over: str) -> int:
        return 5 if over == "unlabeled" else 7

    def label_counts(self, over: str) -> Tensor:
        return torch.tensor([0.0, 0, 0, 0, 0, 4, 3])


@pytest.mark.parametrize(
    ("recipe", "coreset", "met"), [("paper", 0, 6 / 5), ("as-written", 0, 1.0), ("paper", 9, 0.0)]
)
def test_class_weights_count_labels_and_without_a_coreset_accepted_pseudo_labels(
    recipe: str, coreset: int, met: float
) -> None:
    """Eq. 3; by `paper` an epoch of one step meets six unlabeled images, of five there are."""
    method: Any = method_in_third_task(recipe, method="dm", coreset=coreset)
    method.values |= {"epsilon": 0.0, "threshold": -9.0}
    method.balance(Counted(), TASK)
    outputs = Counted().run(method.unlabeled_outputs, "unlabeled")
    counts = [1.0, 1, 1, 1, 1, 5, 4]
    for row in outputs.past[:, :5].tolist():
        counts[row.index(max(row))] += met
    expected = [min(10.0, sum(counts) / 7 / count) for count in counts]
    assert method.weights.tolist() == pytest.approx(expected)
    method.balance_fine_tuning(Counted(), WITH_CORESET)
    assert method.tuning_weights.tolist() == pytest.approx([10.0] * 5 + [4.5 / 5, 4.5 / 4])


@pytest.mark.parametrize("recipe", ["paper", "as-written"])
def test_fine_tuning_trains_the_last_layer_and_nothing_else(recipe: str) -> None:
    """By batch statistics it updates the running ones, and no other weight."""
    engine = engine_for(tiny(method="gd", coreset=6, epochs=4, recipe=recipe))
    changes: list[dict[str, Tensor]] = []
    inner = engine.trainer._train

    def watch(training: Any, *rest: Any) -> None:
        before = {k: v.clone() for k, v in engine.method.classifier.state_dict().items()}
        inner(training, *rest)
        if training.name == "fine-tuning":
            after = engine.method.classifier.state_dict()
            changes.append({k: after[k] - before[k] for k in before})

    engine.trainer._train = watch  # type: ignore[method-assign,assignment]
    list(engine.run())
    assert len(changes) == 2, "every task but the first, which has no coreset yet"
    for change in changes:
        assert any(v.any() for k, v in change.items() if k.startswith("head"))
        changed = {k for k, v in change.items() if v.any() and not k.startswith("head")}
        running = {k for k in change if k.rpartition(".")[2] in ("running_mean", "running_var")}
        assert changed == (running if recipe == "paper" else set())


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("recipe", ["paper", "as-written"])
def test_the_calibrated_detector_accepts_the_share_it_is_set_to(recipe: str, rate: float) -> None:
    method = make_method(RunConfig(recipe=recipe), build)
    detector, passes = FamiliarityDetector(method, rate), Counted()
    detector.calibrate(passes, FIRST)  # type: ignore[arg-type]
    scores, _ = detector.score_and_logits(images(40, 1), 2)
    share = (scores >= method.values["threshold"]).double().mean()
    assert share == pytest.approx(rate, abs=1 / 40)


def test_the_schedule_is_the_papers() -> None:
    config, short = RunConfig(), RunConfig(epochs=20)
    for schedule, epochs, decays in (
        (main_schedule(config, 0.1), 200, (120, 160, 180)),
        (main_schedule(config, 0.1, fine_tuned=True), 180, (120, 160)),
        (fine_tuning_schedule(config, 0.1), 20, (10, 15)),
        (detector_schedule(config, 0.1), 100, (60, 80, 90)),
        (main_schedule(short, 0.1), 20, (12, 16, 18)),
    ):
        assert (schedule.epochs, schedule.decays) == (epochs, decays)
    assert fine_tuning_schedule(config, 0.1).learning_rate == pytest.approx(0.01)
    rates = [main_schedule(short, 0.1).rate(epoch) for epoch in (0, 12, 18)]
    assert rates == pytest.approx([0.1, 0.01, 0.0001])


@pytest.mark.parametrize("name", ["base", "dm", "offline", "e2e", "dr", "gd"])
def test_learning_rates_are_the_papers(name: str) -> None:
    alone = 0.005 if name in ("e2e", "dr", "gd") else 0.1
    for options, rate in (({}, alone), ({"coreset": 400}, 0.1), ({"learning_rate": 0.3}, 0.3)):
        method = make_method(RunConfig(method=name, **options), build)
        assert method.trainings(FIRST)[0].schedule.learning_rate == rate
