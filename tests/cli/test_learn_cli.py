"""The commands for a learner of one's own images: learn, inspect, demo own."""

import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from learner_folders import COLORS, ODD, SMALL, content_of, make_world, picture, write_class

from distillmatch.cli import main
from distillmatch.learner import read_state
from distillmatch.runs.lock import FolderLock


@pytest.fixture(name="world", scope="module")
def world_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def test_a_second_month_continues_the_learner_and_reports_on_both(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    for month, extra in (("march", SMALL), ("april", [])):
        words = ["learn", str(state), "--labeled", str(world / month)]
        words += ["--test", str(world / "test")]
        assert main([*words, "--unlabeled", str(world / "camera"), "--name", month, *extra]) == 0
    printed = capsys.readouterr()
    assert "knows 3 classes" in printed.out and "report.html" in printed.out
    assert "100 % done" in printed.err
    assert "never learned: white" in printed.out
    history = read_state(state)["history"]
    assert [record["name"] for record in history] == ["march", "april"]
    assert history[1]["added"] == [ODD] and history[1]["seen"] == 24
    page = (state / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;[red]&amp;amp;" in page and "<b>[red]" not in page
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert all(one.startswith(("data:", "#")) for one in addresses), "the page needs nothing else"
    for record in history:
        for figure in ("all", "old", "new"):
            if record["test"][figure] is not None:
                assert f"{record['test'][figure]:.1f}" in page


def test_the_report_opens_in_a_browser_and_fits_a_phone(world: Path) -> None:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium here")
    address = (world / "state" / "report.html").as_uri()
    complaints: list[str] = []
    asked: list[str] = []
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        page = browser.new_context(viewport={"width": 390, "height": 800}).new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator("#history tbody tr").count() == 1
        browser.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith("data:")] == [address]


def test_unlabeled_images_may_be_named_by_patterns_and_on_standard_input(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_class(tmp_path / "may", "white", 6)
    (tmp_path / "may" / "white" / "notes.txt").write_text("rain")
    (tmp_path / "may" / "white" / ".DS_Store").write_text("x")
    names = sorted((world / "camera" / "green").iterdir())[:4]
    listed = "".join(f"{name}\r\n" for name in names).encode()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(listed)))
    words = ["learn", str(tmp_path / "state"), "--labeled", str(tmp_path / "may"), *SMALL]
    words += ["--unlabeled", str(world / "camera" / "r*" / "**"), "-", "--epochs", "1"]
    assert main([*words, "--held-out", "0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "10 unlabeled images seen" in said
    assert "1 file in the labeled folder, 1 hidden entry. For example: " in said
    assert "notes.txt: not an image" in said
    record = read_state(tmp_path / "state")["history"][0]
    assert (record["labeled"], record["seen"], record["unreadable"]) == (6, 10, 0)


def test_inspect_shows_what_is_known(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(world / "state"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == read_state(world / "state")
    assert main(["inspect", str(world / "state")]) == 0
    printed = capsys.readouterr().out
    for said in ("green, red", "march", "dm", "wrn-10-1", "8 px", "threshold", "on disk"):
        assert said in printed


def test_bad_input_gets_one_sentence_and_leaves_the_learner_as_it_was(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, april = content_of(world / "state"), str(world / "april")
    for name in ("flat", "holed/void", "torn/white"):
        (tmp_path / name).mkdir(parents=True)
    picture(COLORS["red"], 1).save(tmp_path / "flat" / "1.png")
    for name in ("holed", "torn", "test"):
        write_class(tmp_path / name, "red", 2)
    (tmp_path / "torn" / "white" / "torn\nup.png").write_bytes(b"no image")
    for words in (
        *([str(tmp_path / name)] for name in ("flat", "holed", "torn", "nowhere")),
        [april, "--checkpoint-seconds", "nan"],
        [april, "--held-out", "1.5"],
        [april, "--test", str(tmp_path / "test"), "--held-out", "0.2"],
        [april, "--network", "wrn-16-1"],
    ):
        assert main(["learn", str(world / "state"), "--labeled", *words]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("distillmatch: error: ") and printed.err.count("\n") == 1
        assert content_of(world / "state") == before
    assert "wrn-16-1" in printed.err and "wrn-10-1" in printed.err


@pytest.mark.parametrize("command", ["predict", "inspect", "export"])
def test_what_is_no_learner_is_refused(
    command: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = {"predict": [str(world / "test")], "export": ["--onnx", str(tmp_path / "x.onnx")]}
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no learner")
    for name in ("nowhere", "empty", "file"):
        assert main([command, str(tmp_path / name), *extra.get(command, [])]) == 2
        printed = capsys.readouterr()
        assert name in printed.err and printed.err.count("\n") == 1 and not printed.out
    assert not (tmp_path / "x.onnx").exists()


def test_a_second_process_is_refused_while_one_learns(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content_of(world / "state")
    lock = FolderLock(world / "state")
    try:
        assert main(["learn", str(world / "state"), "--labeled", str(world / "april")]) == 2
        refusal = capsys.readouterr().err
        assert "state" in refusal and refusal.count("\n") == 1
        assert main(["inspect", str(world / "state")]) == 0
        assert "another process works with it now" in capsys.readouterr().out
        assert main(["predict", str(world / "state"), str(world / "test")]) == 0
    finally:
        lock.release()
    assert content_of(world / "state") == before
