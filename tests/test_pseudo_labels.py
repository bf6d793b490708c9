"""Which unlabelled images DM labels, and how: the oracle, the energy gate, several views."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from test_methods import engine_for, tiny_config
from torch import Tensor

from distillmatch.methods import Batch, TaskInfo
from distillmatch.methods.detector import perturbed_scores
from distillmatch.methods.dm import DistillMatch
from distillmatch.networks import Detector


def test_only_the_oracle_declares_and_gets_the_truth() -> None:
    oracle = engine_for(tiny_config(gate="truth", tasks=2))
    assert oracle.method.needs_truth
    outcomes = list(oracle.run())
    judged = outcomes[1].judgement
    assert judged is not None
    assert np.array_equal(judged.accepted, judged.truth < 3)
    for gate in ("detector", "softmax", "everything"):
        assert not engine_for(tiny_config(gate=gate)).method.needs_truth


def test_the_oracle_has_nothing_to_say_where_no_class_is_past() -> None:
    config = tiny_config(gate="truth", consistency_from="first-task", consistency_threshold=0.2)
    judged = [outcome.judgement for outcome in engine_for(config).run()]
    assert [one is not None for one in judged] == [False, True, True]


@pytest.mark.parametrize("gate", ["everything", "detector", "energy"])
def test_by_several_views_an_image_is_decided_on_once_for_the_whole_task(gate: str) -> None:
    config = tiny_config(gate=gate, pseudo_label_views=3, tasks=2, true_positive_rate=0.6)
    engine = engine_for(config)
    outcomes = engine.run()
    next(outcomes)
    method, task = engine.method, engine.task_info(1)
    assert isinstance(method, DistillMatch)
    past, values = deepcopy(method.networks["past"]), dict(method.values)
    frozen = deepcopy(method.networks.get("past detector"))
    batches: list[Batch] = []
    loss = method.classifier_loss

    def watched(batch: Batch, task: TaskInfo) -> Tensor:
        batches.append(batch)
        return loss(batch, task)

    method.classifier_loss = watched  # type: ignore[method-assign]
    judged = next(outcomes).judgement
    passes = engine.task_data(1)
    said = passes.score(lambda images: {"z": past(images)[:, : task.past]}, "unlabeled", 3)["z"]
    count = len(said) // 3
    expected = torch.stack([said.softmax(1)[n::count].mean(dim=0) for n in range(count)])
    assert judged is not None and judged.pseudo_labels.tolist() == expected.argmax(1).tolist()
    familiar = torch.ones(count, dtype=torch.bool)
    if gate != "everything":

        def ask(images: Tensor) -> dict[str, Tensor]:
            if isinstance(frozen, Detector):
                epsilons = [values["epsilon"]]
                return {"s": perturbed_scores(frozen, images, task.past, epsilons)[:, 0]}
            return {"s": past(images)[:, : task.past].logsumexp(dim=1)}

        means = [passes.score(ask, "unlabeled", 3)["s"][n::count].mean() for n in range(count)]
        familiar = torch.stack(means) >= values["threshold"]
    assert judged.accepted.tolist() == familiar.tolist()
    by_views, by_view = [], []
    for batch in batches:
        rows, single = batch.of_unlabeled["past by views"], batch.of_unlabeled["past"]
        assert "gate" not in batch.of_unlabeled, "nothing is asked twice"
        labels, accepted = method.pseudo_labels(batch.of_unlabeled, task)
        assert torch.equal(labels, rows.argmax(dim=1))
        if gate != "everything":
            reached = batch.of_unlabeled["gate by views"] >= values["threshold"]
            assert torch.equal(accepted, reached)
        else:
            assert bool(accepted.all())
        apart = (rows[:, None] - expected.log()[None]).abs().amax(dim=2)
        assert float(apart.amin(dim=1).max()) < 1e-4, "of one of the images"
        by_views += labels.tolist()
        by_view += single[:, : task.past].argmax(dim=1).tolist()
    assert by_views != by_view, "of single views others come out"


@pytest.mark.parametrize("coreset", [0, 6])
def test_the_energy_gate_accepts_what_scores_like_the_labelled_images(coreset: int) -> None:
    config = tiny_config(gate="energy", tasks=3, coreset=coreset, true_positive_rate=0.5)
    engine = engine_for(config)
    assert "detector" not in engine.method.networks
    for outcome in engine.run():
        if outcome.task.last:
            break
        seen, threshold = outcome.task.seen, engine.method.values["threshold"]
        passes = engine.task_data(outcome.task.number)
        if coreset:
            continue  # what is stored has changed since the threshold was set
        logits = passes.score(lambda i: {"z": engine.method.classifier(i)}, "labeled", 4)["z"]
        energies = logits[:, :seen].double().exp().sum(1).log()
        assert float((energies >= threshold - 1e-4).double().mean()) >= 0.5
        assert float((energies > threshold + 1e-4).double().mean()) <= 0.5
