"""The engine on a GPU: a captured step is the eager step, and every method can be captured."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_dataset

from distillmatch.config import RunConfig
from distillmatch.engine import Engine
from distillmatch.engine import steps as steps_module
from distillmatch.engine.steps import Step
from distillmatch.methods import Batch, method_names
from distillmatch.streams import build_stream

pytestmark = pytest.mark.gpu


class EagerStep:
    """Stands in for the captured step."""

    def __init__(self, step: Step, example: Any) -> None:
        self.step = step

    def __call__(self, batch: Batch) -> torch.Tensor:
        return self.step(batch)


def losses_of(config: RunConfig) -> list[dict[str, dict[str, list[float]]]]:
    dataset = make_dataset(classes=6, per_class=20, parents=3, noise=True)
    return [o.losses for o in Engine(config, dataset, build_stream(dataset, config)).run()]


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in method_names()),
    *((name, {"recipe": "as-written"}) for name in ("base", "e2e", "dr", "gd", "dm")),
    *((name, {"strong_labels": True}) for name in ("base", "e2e", "dr", "gd", "dm", "offline")),
    ("dm", {"weight_averaging": 0.8, "optimizer": "adamw", "schedule": "cosine"}),
    ("gd", {"stored_share": 0.5, "coreset": 6}),
    *(("worldmatch", {"options": {"accept": accept}}) for accept in ("newness", "truth")),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_captured_step_does_what_the_eager_step_does(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(
        method=name, network="wrn-10-1", epochs=3, tasks=3, batch=16, unlabeled_batch=16,
        device="cuda", precision="float32", **{"coreset": 6, "learning_rate": 0.01, **options},
    )  # fmt: skip
    captured = losses_of(config)
    monkeypatch.setattr(steps_module, "CapturedStep", EagerStep)
    eager = losses_of(config)
    for one, other in zip(captured, eager, strict=True):
        assert one.keys() == other.keys()
        for phase, terms in one.items():
            for term, means in terms.items():
                np.testing.assert_allclose(means, other[phase][term], rtol=0.05, atol=0.02)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in method_names()),
        ("dm", {"recipe": "as-written", "coreset": 6}),
        *((name, {"strong_labels": True}) for name in ("gd", "offline")),
    ],
)
def test_every_method_learns_in_bfloat16(name: str, options: dict[str, Any]) -> None:
    losses = losses_of(
        RunConfig(method=name, network="wrn-10-1", epochs=3, tasks=2, device="cuda", **options)
    )
    terms = [terms for task in losses for terms in task.values()]
    assert all(np.isfinite(means).all() for one in terms for means in one.values())
