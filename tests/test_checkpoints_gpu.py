"""Runs that survive on a GPU: the captured step goes on with the momentum that was kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupted_runs import interrupted, session
from small_runs import six_classes

from distillmatch.methods import method_names
from distillmatch.runs import run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", method_names())
def test_a_run_killed_in_every_epoch_learns_the_same_on_a_gpu(name: str, tmp_path: Path) -> None:
    """Not to the last bit: some sums on a GPU are added in the order in which they happen to end.

    What would be missing if momentum, weights or values were lost is far larger than that.
    """
    on_gpu: dict[str, Any] = {"device": "cuda", "precision": "float32", "learning_rate": 0.01}
    config = interrupted(method=name, **on_gpu)
    never_killed = run(config, dataset=six_classes())
    while (result := session(config, tmp_path, epochs=2)) is None:
        pass
    for one, other in zip(result["tasks"], never_killed["tasks"], strict=True):
        assert one["losses"].keys() == other["losses"].keys()
        for phase, terms in one["losses"].items():
            found, expected = terms["loss"], other["losses"][phase]["loss"]
            np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.01)
