from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_world import (
    CLOWNFISH,
    GOLDFISH,
    SHARK,
    TROUT,
    images_of,
    names_of,
    small_learner,
    task,
)

from distillmatch import ContinualLearner

ENVIRONMENT = images_of(GOLDFISH, CLOWNFISH, TROUT, SHARK, count=8, first=40)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["dm", "gd"])
def test_learned_on_a_gpu_and_loaded_on_a_cpu(method: str, tmp_path: Path) -> None:
    learner = small_learner(method, device="cuda", coreset=4)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=6))
    learner.partial_fit(*task(TROUT, count=6), unlabeled=ENVIRONMENT)
    learner.partial_fit(*task(GOLDFISH, count=6, first=9), unlabeled=ENVIRONMENT)
    learner.save(tmp_path)
    loaded = ContinualLearner.load(tmp_path, device="cpu")
    assert loaded.classes_.tolist() == names_of(CLOWNFISH, GOLDFISH, TROUT)
    np.testing.assert_allclose(
        loaded.predict_proba(ENVIRONMENT), learner.predict_proba(ENVIRONMENT), atol=0.05
    )
    loaded.partial_fit(*task(SHARK, count=2), unlabeled=ENVIRONMENT)
    assert len(loaded.classes_) == 4


@pytest.mark.gpu
def test_features_of_a_gpu_and_of_a_cpu_tell_the_same(cache: Path, tmp_path: Path) -> None:
    tiny: dict[str, Any] = {"network": "learner_methods:TinyBackbone", "image_size": 16}
    learner = ContinualLearner("features", device="cuda", **tiny)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=8), unlabeled=ENVIRONMENT)
    learner.save(tmp_path)
    loaded = ContinualLearner.load(tmp_path, device="cpu", allow_import=tiny["network"])
    np.testing.assert_allclose(
        loaded.predict_proba(ENVIRONMENT), learner.predict_proba(ENVIRONMENT), atol=0.1
    )
