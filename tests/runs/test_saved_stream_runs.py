"""Learning a saved stream, or a validation fold, instead of one that a configuration describes."""

import json
from pathlib import Path

import pytest
from conftest import make_dataset

from distillmatch.cli import main
from distillmatch.config import RunConfig
from distillmatch.errors import RunFolderError, StreamError
from distillmatch.runs import run
from distillmatch.streams import build_stream

TINY = RunConfig(method="base", network="wrn-10-1", epochs=1, tasks=4, device="cpu")


def test_folds_are_learned_and_evaluated_on_what_they_hold_out(tmp_path: Path) -> None:
    dataset = make_dataset(noise=True)
    folds = build_stream(dataset, TINY).validation_folds()
    results = [
        run(TINY, tmp_path / str(number), dataset=dataset, stream=fold)
        for number, fold in enumerate(folds)
    ]
    for result, fold in zip(results, folds, strict=True):
        assert len(result["R"]) == 2, "half of the tasks"
        held_out = [len(task.test) for task in fold.tasks]
        assert [task["test_images"] for task in result["tasks"]] == held_out
    assert len({result["stream"]["fingerprint"] for result in results}) == 3
    with pytest.raises(RunFolderError, match="other data"):
        run(TINY, tmp_path / "0", dataset=dataset, stream=folds[1])


def test_a_stream_of_other_data_is_not_learned() -> None:
    stream = build_stream(make_dataset(noise=True), TINY)
    with pytest.raises(StreamError, match="fingerprint"):
        run(TINY, dataset=make_dataset(per_class=21), stream=stream)


def test_the_command_learns_a_saved_stream_as_it_was_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, out = str(tmp_path / "stream.json"), tmp_path / "out"
    describe = ["--task-sizes", "50", "10", "--labels-per-class", "3", "--unlabeled-per-task", "20"]
    assert main(["stream", *describe, "--seed", "5", "--save", saved]) == 0
    train = ["run", "--method", "base", "--network", "wrn-10-1", "--epochs", "1", "--quiet"]
    train += ["--stream", saved, "--out", str(out)]
    assert main([*train, "--tasks", "5"]) == 2
    assert f"tasks is 2 in {saved}, not 5" in capsys.readouterr().err
    (tmp_path / "run.yaml").write_text("coreset: 60\ntask-sizes: [50, 10]")
    assert main([*train, "--config", str(tmp_path / "run.yaml"), "--tasks", "2"]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["task_sizes"] == [50, 10]
    assert result["config"]["labels_per_class"] == 3 and result["seed"] == 5
    assert result["config"]["coreset"] == 60 and result["config"]["tasks"] is None
    assert "/" in result["stream"]["fingerprint"]
