"""The examples: DM in plain torch gives the engine's losses, and all keep the contract."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_dataset
from test_golden import Float64
from torch import Tensor

from distillmatch import RunConfig, StreamConfig, build_stream
from distillmatch.checks import check_method, check_source
from distillmatch.engine import Engine, Placement

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

TINY = RunConfig(
    tasks=3,
    epochs=4,
    network="wrn-10-1",
    batch=8,
    unlabeled_batch=12,
    device="cpu",
    labels_per_class=4,
)


def test_dm_in_plain_torch_gives_the_losses_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64: in float32 rounding decides who is accepted after a few steps."""
    import dm_minimal

    plain: Any = dm_minimal.DistillMatch

    class InFloat64(plain):  # type: ignore[misc]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            for name in ("theta", "phi"):
                setattr(self, name, getattr(self, name).double())

        def views(self, *given: Any) -> Tensor:
            made: Tensor = super().views(*given)
            return made.double()

    placement = Float64(torch.device("cpu"), torch.float64)
    monkeypatch.setattr(Placement, "of", lambda *_: placement)
    dataset = make_dataset(9, 20, 6, noise=True)
    stream = build_stream(dataset, TINY)
    minimal: Any = InFloat64(TINY, dataset, stream)
    engine = Engine(TINY, dataset, stream)
    for number, outcome in enumerate(engine.run()):
        of_engine = {name: terms["loss"] for name, terms in outcome.losses.items()}
        of_minimal = minimal.learn(number)
        assert of_engine.keys() == of_minimal.keys()
        for name, losses in of_engine.items():
            assert of_minimal[name] == pytest.approx(losses, rel=1e-5), (number, name)


def test_dm_in_plain_torch_is_under_150_lines() -> None:
    assert len((EXAMPLES / "dm_minimal.py").read_text().splitlines()) < 150


def test_the_example_of_a_method_keeps_the_contract_in_25_lines() -> None:
    import own_method

    check_method(own_method.LwfMatch)
    check_method(own_method.LwfMatch, past_weight=2.0)
    text = (EXAMPLES / "own_method.py").read_text()
    lines = [line for line in text[text.index("class ") :].splitlines() if line.strip()]
    assert len(lines) <= 25


def test_the_example_of_a_source_keeps_the_contract() -> None:
    import own_source

    check_source(own_source.stripes)
    check_source(own_source.stripes(StreamConfig(image_size=8)))
