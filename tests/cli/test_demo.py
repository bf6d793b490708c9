"""The demo: five methods, or three months of a learner, in folders that a person can open."""

import json
import re
from pathlib import Path

import pytest
from learner_folders import content_of
from PIL import Image

from distillmatch.cli import demo, main
from distillmatch.learner import read_state
from distillmatch.report.pages import SHOWN
from distillmatch.runs.log import read_log


def test_the_demo_ends_in_a_page_with_its_pictures_and_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"epochs": 1, "labels_per_class": 4, "unlabeled_per_task": 60}
    monkeypatch.setattr(demo, "SETTINGS", {**demo.SETTINGS, **short})
    assert main(["demo", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    files = re.findall(r' (?:src|href)="(?!data:)([^"]+)"', page)
    assert len(files) == 4 + len(demo.RATES)
    for link in files:
        assert (tmp_path / link).is_file()
        if link.endswith("png"):
            assert Image.open(tmp_path / link).size[0] > 300
    reached = {}
    for method in demo.RATES:
        result = json.loads((tmp_path / method / "result.json").read_text())
        assert result["complete"] and len(result["task_sizes"]) == demo.SETTINGS["tasks"]
        reached[method] = result["metrics"]["A_N"]
    assert all(f"{value:.1f} %" in page for value in reached.values())
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("Base", "GD", "DM", "WorldMatch", "UB"))
    examples = [e for e in read_log(tmp_path / "dm") if e["event"] == "task" and "examples" in e]
    assert examples and all(f"<h3>Task {one['task']}</h3>" in page for one in examples)
    right = sum(e["label"] == e["truth"] for one in examples for e in one["examples"][:SHOWN])
    assert page.count('<li class="right">') == right


def test_the_demo_learns_three_months_and_does_not_repeat_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"epochs": 1, "batch": 8, "unlabeled_batch": 8}
    monkeypatch.setattr(demo, "OWN_SETTINGS", {**demo.OWN_SETTINGS, **short})
    for name, count in (("LABELS", 4), ("SEEN", 3), ("UNKNOWN_SEEN", 1), ("TESTS", 2)):
        monkeypatch.setattr(demo, name, count)
    assert main(["demo", "own", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "knows 6 classes" in printed and "distillmatch predict" in printed
    history = read_state(tmp_path / "learner")["history"]
    assert [record["name"] for record in history] == ["march", "april", "may"]
    assert [len(record["added"]) for record in history] == [2, 2, 2]
    assert (tmp_path / "learner" / "report.html").is_file()
    assert Image.open(tmp_path / "learner.png").size[0] > 600
    before = content_of(tmp_path / "learner")
    assert main(["demo", "own", "--out", str(tmp_path)]) == 0
    assert content_of(tmp_path / "learner") == before
