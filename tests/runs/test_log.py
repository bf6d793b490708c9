"""The log of a run, and the event files that are made from it."""

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from interrupted_runs import DiesAfter, Killed, interrupted, session
from small_runs import SOURCE, as_words, six_classes, tiny

from distillmatch.cli import main
from distillmatch.errors import DiskError, TrainingError
from distillmatch.runs import read_result, run
from distillmatch.runs.log import RunLog, event_files_in, history, read_log
from distillmatch.streams import build_stream

Points = dict[str, list[tuple[int, float]]]


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [entry for entry in read_log(folder) if entry["event"] == name]


def losses_in(entries: list[dict[str, Any]]) -> dict[tuple[int, str, int], float]:
    found: dict[tuple[int, str, int], float] = {}
    for entry in entries:
        if entry["event"] == "epoch":
            place = entry["task"], entry["training"], entry["epoch"]
            assert place not in found, "an epoch is there twice"
            found[place] = entry["loss"]
    return found


def losses_of(result: dict[str, Any]) -> dict[tuple[int, str, int], float]:
    return {
        (task["task"], name, number + 1): loss
        for task in result["tasks"]
        for name, terms in task["losses"].items()
        for number, loss in enumerate(terms["loss"])
    }


def scalars_in(folder: Path) -> Points:
    """Read the event files as TensorBoard does, points that are there twice included."""
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    seen = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    seen.Reload()
    return {
        tag: [(point.step, point.value) for point in seen.Scalars(tag)]
        for tag in seen.Tags()["scalars"]
    }


def test_the_log_has_every_epoch_and_task_of_the_result(tmp_path: Path) -> None:
    result = session(interrupted(coreset=0), tmp_path)
    assert result is not None
    entries = read_log(tmp_path)
    assert losses_in(entries) == losses_of(result)
    assert all(datetime.fromisoformat(entry["time"]).tzinfo is not None for entry in entries)
    assert (entries[0]["event"], entries[-1]["event"]) == ("begun", "finished")
    tasks = events(tmp_path, "task")
    for noted, task in zip(tasks, result["tasks"], strict=True):
        assert {key: noted[key] for key in task.keys() - {"losses"}} == {
            key: value for key, value in task.items() if key != "losses"
        }
    assert tasks[-1]["metrics"]["A_N"] == result["metrics"]["A_N"]
    epochs = [e for e in events(tmp_path, "epoch") if e["training"] == "classifier"]
    assert [e["step"] for e in epochs] == list(range(1, 13)), "counted over all tasks"
    for entry in epochs:
        means = result["tasks"][entry["task"] - 1]["losses"]["classifier"]
        terms = {name: of_epoch[entry["epoch"] - 1] for name, of_epoch in means.items()}
        assert {"loss": entry["loss"], **entry["terms"]} == terms
    assert epochs[4]["terms"].keys() == {"labels", "consistency", "distillation"}
    # A tenth after 0.6, 0.8 and 0.9 of four epochs, as far as these fall between epochs.
    assert [e["learning_rate"] for e in epochs[:4]] == pytest.approx([0.1, 0.1, 0.01, 0.001])


def test_the_log_names_accepted_images_with_pseudo_label_and_truth(tmp_path: Path) -> None:
    config = tiny(options={"true_positive_rate": 1.0})
    dataset = six_classes()
    stream = build_stream(dataset, config)
    result = run(config, tmp_path, dataset=dataset)
    slots = stream.slots(dataset.train.labels)
    for number, task in enumerate(events(tmp_path, "task")):
        shown, past = task.get("examples", []), sum(stream.task_sizes[:number])
        accepted = result["tasks"][number]["detector"]["accepted"]
        assert bool(shown) == bool(accepted)
        for example in shown:
            assert example["image"] in stream.tasks[number].unlabeled
            assert example["label"] < past
            assert example["truth"] == slots[example["image"]]
    assert "examples" in events(tmp_path, "task")[-1]


def test_what_was_lost_with_a_killed_process_is_noted_again_but_is_history_once(
    tmp_path: Path,
) -> None:
    config = interrupted(method="gd")
    for epochs in (3, 9, 5):
        # Checkpoints after tasks only, so that a task's epochs are lost and learned again.
        assert session(config, tmp_path, epochs=epochs, checkpoint_seconds=0) is None
    result = session(config, tmp_path, checkpoint_seconds=0)
    assert result is not None
    entries = read_log(tmp_path)
    noted = [entry for entry in entries if entry["event"] == "epoch"]
    assert len(noted) > len(losses_of(result))
    assert losses_in(history(entries)) == losses_of(result)
    tasks = [entry["task"] for entry in history(entries) if entry["event"] == "task"]
    assert tasks == [1, 2, 3]
    session(config, tmp_path, resume="no", epochs=2)
    assert len(history(read_log(tmp_path))) <= 2, "a run that starts over has a history of its own"


def test_half_a_line_is_passed_over_and_the_next_begins_on_its_own(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.note("begun", method="dm")
    log.note("told", sentence="grüße\nzwei")
    path = tmp_path / "log.jsonl"
    for cut in (1, 2, 20):
        os.truncate(path, path.stat().st_size - cut)
        assert next(e["event"] for e in read_log(path)) == "begun"
        RunLog(tmp_path).note("told", sentence=f"after {cut}")
        assert read_log(path)[-1]["sentence"] == f"after {cut}"
    with path.open("ab") as file:
        file.write(b'\xff\xfe{"event"\n[1]\n17\n')
    assert all(isinstance(entry, dict) for entry in read_log(path))
    with pytest.raises(DiskError, match="reading the log"):
        read_log(tmp_path / "nothing")


def test_how_a_run_ended_is_noted(tmp_path: Path) -> None:
    with pytest.raises(TrainingError):
        run(interrupted(method="base", learning_rate=1e30), tmp_path, dataset=six_classes())
    last = read_log(tmp_path)[-1]
    assert (last["event"], last["error"]) == ("failed", "TrainingError")
    assert "the loss became" in last["reason"]


OF_GD = interrupted(method="gd", source=SOURCE)


def command(out: Path) -> list[str]:
    given = as_words(OF_GD.model_dump(mode="json", exclude_defaults=True))
    return ["run", "--out", str(out), "--quiet", "--tensorboard", *given]


def check_events(out: Path) -> None:
    """Each epoch's loss at its place over all tasks, each task's figures at the task, once."""
    result, points = read_result(out), scalars_in(out)
    by_training: dict[str, list[float]] = {}
    for task in result["tasks"]:
        for name, terms in task["losses"].items():
            by_training.setdefault(name, []).extend(terms["loss"])
    for name, means in by_training.items():
        found = points[f"loss/{name}"]
        assert [step for step, _ in found] == list(range(1, len(means) + 1))
        assert [value for _, value in found] == pytest.approx(means)
    accuracies = list(enumerate(result["metrics"]["accuracies"], 1))
    assert points["accuracy/classes seen"] == [pytest.approx(pair) for pair in accuracies]
    assert points["metrics/A_N"][-1] == pytest.approx((3, result["metrics"]["A_N"]))
    assert "metrics/omega" not in points


def test_event_files_hold_the_same_after_an_interruption_and_after_the_fact(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with event_files_in(out), pytest.raises(Killed):
        run(OF_GD, out, checkpoint_seconds=0, progress=DiesAfter(15))
    assert scalars_in(out)["loss/classifier"]
    assert main(command(out)) == 0
    check_events(out)
    for path in (out / "tensorboard").iterdir():
        path.unlink()
    assert main(command(out)) == 0, "a finished run"
    check_events(out)


def test_a_refused_run_leaves_no_event_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command(tmp_path / "run"), "--network", "wrn-11-1"]) == 2
    assert not (tmp_path / "run").exists()
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(command(tmp_path / "run")) == 2
    assert "pip install 'distillmatch[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
