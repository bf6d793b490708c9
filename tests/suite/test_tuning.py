"""Choosing hyperparameters: spaces, trials, folds, and that no test image is looked at."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from conftest import make_dataset
from learner_folders import content_of
from small_runs import PYTHONPATH

from distillmatch.cli import main
from distillmatch.config import RunConfig, StreamConfig
from distillmatch.errors import RunFolderError, TrainingError
from distillmatch.methods import with_options
from distillmatch.runs import read_result, run
from distillmatch.runs.side_by_side import Job
from distillmatch.sources import Dataset, Part
from distillmatch.streams import Stream, build_stream
from distillmatch.suite.tuning import (
    PAPER,
    SEARCHES,
    Space,
    Values,
    paper_space,
    parse_space,
    start_values,
    tune,
    with_values,
)

SETTINGS: dict[str, Any] = {
    "method": "base", "network": "wrn-10-1", "epochs": 1, "tasks": 4, "labels_per_class": 6,
    "unlabeled_per_task": 8, "batch": 16, "unlabeled_batch": 8, "device": "cpu",
}  # fmt: skip
TINY = RunConfig(**SETTINGS)
SPACE: Space = {"learning_rate": (0.01, 0.1, 1e30), "weight_decay": (0.0, 0.001)}


class Guarded(np.ndarray[Any, np.dtype[np.uint8]]):
    """Images that may be hashed, to know the data by, and looked at in no other way."""

    def __getitem__(self, key: Any) -> Any:
        if sys._getframe(1).f_code.co_name != "fingerprint":
            self.refuse()
        return self.view(np.ndarray)[key]

    def refuse(self, *given: Any, **options: Any) -> Any:
        raise AssertionError("a test image was looked at")

    __array__ = __array_ufunc__ = __array_function__ = refuse


def guarded(config: StreamConfig | None = None) -> Dataset:
    """A source too: `test_tuning:guarded`."""
    dataset = make_dataset(classes=8, noise=True)
    images = dataset.test.images.view(Guarded)
    return replace(dataset, test=Part(images, dataset.test.labels))


class Here:
    """Does runs in this process, and keeps which."""

    def __init__(self, dataset: Dataset, stop_after: int | None = None) -> None:
        self.dataset = dataset
        self.done: list[Job] = []
        self.stop_after = stop_after

    def __call__(self, jobs: Sequence[Job]) -> dict[str, str]:
        failures = {}
        for job in jobs:
            if len(self.done) == self.stop_after:
                raise KeyboardInterrupt
            assert job.stream is not None
            stream = Stream.load(job.stream, self.dataset)
            try:
                run(job.config, job.out, dataset=self.dataset, stream=stream)
            except TrainingError as error:
                failures[job.name] = str(error)
            self.done.append(job)
        return failures


def tuned(
    out: Path, work: Here, space: Space = SPACE, config: RunConfig = TINY, **options: Any
) -> dict[str, Any]:
    return tune(config, out, space, work, lambda sentence: None, dataset=work.dataset, **options)


def test_trials_are_ranked_by_their_folds_and_failures_come_last(tmp_path: Path) -> None:
    dataset = make_dataset(classes=8, noise=True)
    with pytest.raises(TrainingError, match="all trials failed, the first for: in task 1"):
        tuned(tmp_path, Here(dataset), {"learning_rate": (1e30,)})
    assert not (tmp_path / "best.yaml").exists()
    record = tuned(tmp_path, Here(dataset), search="grid")
    trials = record["trials"]
    assert len(trials) == 6
    folds = build_stream(dataset, TINY).validation_folds()
    for trial in trials[:4]:
        config = TINY.replace(**trial["values"])
        figures = [run(config, dataset=dataset, stream=fold)["metrics"]["A_N"] for fold in folds]
        assert trial["figures"] == pytest.approx(figures)
        assert trial["mean"] == pytest.approx(fmean(figures))
        assert trial["deviation"] == pytest.approx(stdev(figures))
    means = [trial["mean"] for trial in trials[:4]]
    assert means == sorted(means, reverse=True)
    for trial in trials[4:]:
        assert trial["values"]["learning_rate"] == 1e30
        assert "a lower learning_rate may help" in trial["failed"] and trial["mean"] is None
    assert json.loads((tmp_path / "trials.json").read_text()) == record
    best = RunConfig.from_yaml(tmp_path / "best.yaml")
    assert best == with_options(TINY.replace(**trials[0]["values"]))
    result = read_result(next((tmp_path / "trials").glob(f"{trials[0]['name']}/*")))
    assert len(result["task_sizes"]) == 2, "half of the tasks"


def test_an_interrupted_search_goes_on_and_only_results_of_its_own_folds_count(
    tmp_path: Path,
) -> None:
    dataset, out = make_dataset(classes=8, noise=True), tmp_path / "out"
    space: Space = {"learning_rate": (0.01, 0.1), "weight_decay": (0.0, 0.001)}

    def runs_of(given: Dataset = dataset, **options: Any) -> int:
        tuned(out, work := Here(given), space, **options)
        return len(work.done)

    expected = tuned(tmp_path / "never", Here(dataset), space)
    with pytest.raises(KeyboardInterrupt):
        tuned(out, Here(dataset, stop_after=7), space)
    assert runs_of() == 2 and json.loads((out / "trials.json").read_text()) == expected
    next((out / "trials").glob("*/*/result.json")).unlink()
    assert runs_of() == 1, "what is gone is run again"
    assert runs_of(search="grid") == 3, "what another search has run is not"
    assert runs_of(folds=2) == 6 and runs_of(tasks=3) == 9
    assert runs_of(make_dataset(classes=8, noise=False)) == 9


def test_the_folder_of_another_tuning_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    space: Space = {"learning_rate": (0.001, 0.1)}
    work = Here(make_dataset(classes=8, noise=True))
    tuned(tmp_path, work, space)
    before = content_of(tmp_path)
    sentence = "holds another tuning: seed is 1 there and 2 here; choose another folder"
    with pytest.raises(RunFolderError, match=sentence):
        tuned(tmp_path, work, space, TINY.replace(seed=2))
    assert content_of(tmp_path) == before
    tuned(tmp_path, work, space, TINY.replace(device="auto"))
    assert len(work.done) == 6, "the machine does not make it another tuning"
    (tmp_path / "trials.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"trials.json: expected a record of a tuning"):
        tuned(tmp_path, work, space)


def test_a_whole_tuning_looks_at_no_test_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command, in workers, with DM, whose detector is evaluated too."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    settings = {**SETTINGS, "method": "dm", "source": "test_tuning:guarded"}
    words = [w for k, v in settings.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    space = ["--space", "learning_rate=0.05,0.1", "--search", "grid", "--folds", "2"]
    out = tmp_path / "out"
    command = ["tune", "--out", str(out), "--jobs", "1", *space, *words]
    assert main(command) == 0, capsys.readouterr().err
    record = json.loads((out / "trials.json").read_text())
    assert len(record["trials"]) == 2 and not any(t["failed"] for t in record["trials"])
    with pytest.raises(AssertionError, match="looked at"):
        run(RunConfig.from_yaml(out / "best.yaml", allow_import={settings["source"]}))


def test_a_search_begins_where_the_paper_ended() -> None:
    """The paper's table has what it chose, with a coreset and without, and by its own words."""
    for recipe, threshold in (("paper", 0.85), ("as-written", 0.9)):
        for coreset, rate, baseline in ((400, 0.05, 0.1), (0, 0.5, 0.005)):
            dm = RunConfig(coreset=coreset, recipe=recipe)
            assert start_values(dm, PAPER) == {
                "learning_rate": 0.1, "consistency_weight": 1.0,
                "consistency_threshold": threshold, "true_positive_rate": rate,
            }  # fmt: skip
            gd = dm.replace(method="gd")
            assert start_values(gd, paper_space(gd)) == {"learning_rate": baseline}
    other = RunConfig(method="base", learning_rate=0.7)
    assert start_values(other, {"learning_rate": (1.0, 2.0, 3.0)}) == {"learning_rate": 2.0}


def test_grid_and_coordinate_propose_what_they_say() -> None:
    space = {name: PAPER[name] for name in ("learning_rate", "consistency_weight")}
    rates, weights = space.values()

    def batches(search: str, score: Callable[[Values], Any]) -> list[list[Values]]:
        tried: list[list[Values]] = []

        def try_points(points: list[Values]) -> list[float | None]:
            tried.append(points)
            return [score(point) for point in points]

        SEARCHES[search](space, start, try_points)
        return tried

    def hill(point: Values) -> float | None:
        """Fail at the highest rate; the top is at the one before, and at the second weight."""
        place = rates.index(point["learning_rate"])
        return None if place == 4 else place - abs(float(point["consistency_weight"]) - 0.5)

    start = {"learning_rate": 0.01, "consistency_weight": 5.0}
    (points,) = batches("grid", hill)
    assert [tuple(p.values()) for p in points] == list(product(rates, weights))
    first, second = batches("coordinate", hill)
    assert first == [{**start, "learning_rate": rate} for rate in rates]
    assert second == [{"learning_rate": rates[3], "consistency_weight": w} for w in weights]
    tried = {tuple(p.values()) for p in first + second}
    assert len(tried) == 1 + 4 + 3
    _, second = batches("coordinate", lambda point: None)
    assert start in second, "where all fail, it goes on from where it began"


def test_spaces_are_read_from_words() -> None:
    words = ["learning-rate=5e-3,0.1", "optimizer=sgd,adamw", "consistency-weight=1,1.0,2"]
    assert parse_space(words, RunConfig()) == {
        "learning_rate": (0.005, 0.1), "optimizer": ("sgd", "adamw"),
        "consistency_weight": (1.0, 2.0),
    }  # fmt: skip
    config = with_values(RunConfig(), {"consistency_weight": 2, "optimizer": "adamw"})
    assert config.options == {"consistency_weight": 2.0} and config.optimizer == "adamw"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["learning_rat=0.1"], "did you mean 'learning_rate'"),
        (["coreset=0,400"], "coreset is part of the setting, not a hyperparameter"),
        (["optimizer=[1"], "is no list of values"),
        (["learning_rate=0.1,,0.5"], "without empty values, not 'learning_rate=0.1,,0.5'"),
        (["weight-decay=0.1", "weight_decay=0.2"], "weight_decay is given twice"),
    ],
)
def test_a_wrong_space_is_refused_in_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--out", str(tmp_path / "out"), "--space", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line and not (tmp_path / "out").exists()
