"""The public names are frozen: whoever changes them changes this file and the changelog."""

import inspect
import subprocess
import sys
from typing import Any

import pytest
from conftest import make_dataset
from torch import Tensor
from torch.nn.functional import cross_entropy

import distillmatch
from distillmatch import Method, MethodOptions, RunConfig, run
from distillmatch.errors import ConfigError
from distillmatch.methods import Batch, TaskInfo

NAMES = {
    "ClassTree",
    "ContinualLearner",
    "Dataset",
    "DistillMatchError",
    "Method",
    "MethodOptions",
    "Part",
    "RunConfig",
    "Stream",
    "StreamConfig",
    "__version__",
    "build_stream",
    "load_source",
    "run",
}
TINY = RunConfig(tasks=3, epochs=1, network="wrn-10-1", batch=8, labels_per_class=4, device="cpu")


def test_the_package_shows_its_public_names_only() -> None:
    assert set(dir(distillmatch)) == NAMES == set(distillmatch.__all__)
    assert all(hasattr(distillmatch, name) for name in NAMES)
    with pytest.raises(AttributeError, match="no attribute 'Tasks'"):
        distillmatch.Tasks  # noqa: B018


def test_arguments_of_run_and_of_the_learner() -> None:
    assert list(inspect.signature(run).parameters) == [
        "config",
        "out",
        "method",
        "options",
        "dataset",
        "stream",
        "bound",
        "progress",
        "resume",
        "checkpoint_seconds",
        "tell",
        "stop",
        "at_once",
    ]
    learner: Any = distillmatch.ContinualLearner
    methods = {"fit", "partial_fit", "predict", "predict_proba", "score", "save", "load"}
    assert methods <= {name for name in dir(learner) if not name.startswith("_")}


def test_a_stream_needs_no_torch() -> None:
    names = "ClassTree, Dataset, RunConfig, Stream, StreamConfig, build_stream, load_source"
    code = f"import sys; from distillmatch import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_class_is_run_without_a_name() -> None:
    class Scaled(Method):
        class Options(MethodOptions):
            scale: float = 1.0

        unlabeled = False

        def loss(self, batch: Batch, task: TaskInfo) -> Tensor:
            logits = self.classifier(batch.images)[:, : task.seen]
            scale: float = self.options.scale
            return scale * cross_entropy(logits, batch.labels)

    dataset = make_dataset(9, 20, 6, noise=True)
    results = [
        run(TINY, dataset=dataset, method=Scaled, options={"scale": scale}) for scale in (1.0, 3.0)
    ]
    first = [result["tasks"][0]["losses"]["classifier"]["loss"][0] for result in results]
    assert results[0]["complete"] and first[1] > 1.5 * first[0]
    with pytest.raises(ConfigError, match="did you mean 'scale'"):
        run(TINY, dataset=dataset, method=Scaled, options={"scael": 2.0})
