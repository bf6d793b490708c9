"""The commands for a learner of one's own images: learn, predict, inspect, demo own."""

import csv
import hashlib
import io
import json
import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from distillmatch.cli import main, own_demo, own_world
from distillmatch.learner import ContinualLearner, read_state
from distillmatch.run.lock import FolderLock

SIDE = 8
SMALL = ["--network", "wrn-10-1", "--epochs", "2", "--batch", "8", "--unlabeled-batch", "8"]
SMALL += ["--image-size", str(SIDE), "--device", "cpu"]
ODD = "<b>[red]&amp;"
COLORS = {"red": (220, 30, 30), "green": (30, 200, 40), ODD: (30, 40, 220), "white": (240,) * 3}


def picture(color: tuple[int, ...], number: int) -> Image.Image:
    """Return a noisy square of one colour."""
    noise = np.random.default_rng(number).integers(-25, 26, (SIDE, SIDE, 3))
    return Image.fromarray(np.clip(np.array(color) + noise, 0, 255).astype(np.uint8))


def write_class(folder: Path, name: str, count: int, first: int = 0) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        picture(COLORS[name], number).save(folder / name / f"{number}.png")


def content_of(folder: Path) -> dict[str, str]:
    """Return what tells one content of a folder from another."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.lock"
    }


@pytest.fixture(name="world", scope="module")
def world_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return folders of two months, a test folder, and a learner of the first month."""
    world = tmp_path_factory.mktemp("world")
    for name in ("red", "green"):
        write_class(world / "march", name, 6)
    write_class(world / "april", ODD, 6)
    for name in COLORS:
        write_class(world / "test", name, 4, first=100)
    for name in COLORS:
        write_class(world / "camera", name, 6, first=200)
    words = ["learn", str(world / "state"), "--labeled", str(world / "march"), "--name", "march"]
    words += ["--unlabeled", str(world / "camera"), "--test", str(world / "test"), *SMALL]
    assert main([*words, "--quiet"]) == 0
    return world


@pytest.fixture(name="learner", scope="module")
def learner_fixture(world: Path) -> Any:
    return ContinualLearner.load(world / "state", device="cpu")


def test_a_second_month_continues_the_learner_and_reports_on_both(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    for month, extra in (("march", SMALL), ("april", [])):
        words = [
            "learn",
            str(state),
            "--labeled",
            str(world / month),
            "--test",
            str(world / "test"),
        ]
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
    assert all(address.startswith("data:") for address in addresses), "the page needs nothing else"
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


def test_settings_that_differ_from_the_learners_are_refused(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content_of(world / "state")
    words = ["learn", str(world / "state"), "--labeled", str(world / "april")]
    assert main([*words, "--network", "wrn-16-1"]) == 2
    refusal = capsys.readouterr().err
    assert "wrn-16-1" in refusal and "wrn-10-1" in refusal and refusal.count("\n") == 1
    assert content_of(world / "state") == before


def test_an_empty_unlabelled_folder_is_learned_without(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dark").mkdir()
    words = ["learn", str(tmp_path / "state"), "--labeled", str(world / "march"), *SMALL]
    assert main([*words, "--unlabeled", str(tmp_path / "dark")]) == 0
    assert "No unlabelled images were found" in capsys.readouterr().out
    assert read_state(tmp_path / "state")["history"][0]["seen"] == 0


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_predictions_are_the_learners_own_for_files_and_folders(
    world: Path, learner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, single = world / "test" / "red", world / "test" / "green" / "100.png"
    assert main(["predict", str(world / "state"), str(folder), "--csv", str(single)]) == 0
    rows = rows_of(capsys.readouterr().out)
    paths = [*sorted(folder.iterdir()), single]
    assert [row["image"] for row in rows] == [str(path) for path in paths]
    for row, path in zip(rows, paths, strict=True):
        (chances,) = learner.predict_proba([path])
        assert row["label"] == learner.classes_[chances.argmax()] == learner.predict([path])[0]
        assert float(row["probability"]) == pytest.approx(chances.max(), abs=2e-6)
        assert row["error"] == ""


def test_rejection_answers_as_the_learner_does(
    world: Path, learner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(world / "state"), str(world / "test"), "--json", "--reject"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    wanted = learner.predict([row["image"] for row in rows], reject=True)
    assert [row["label"] for row in rows] == list(wanted)


def test_rejection_by_a_method_without_detector_is_refused_before_anything_is_printed(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = str(tmp_path / "state")
    words = ["learn", state, "--labeled", str(world / "march"), "--method", "base", *SMALL]
    assert main([*words, "--quiet"]) == 0
    assert main(["predict", state, str(world / "test"), "--csv", "--reject"]) == 2
    printed = capsys.readouterr()
    assert "'base' has no detector" in printed.err and not printed.out


@pytest.fixture(name="typed")
def typed_fixture(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def type_in(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return type_in


def test_names_come_from_standard_input_one_a_line(
    world: Path, typed: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = sorted((world / "test" / "red").iterdir())
    for given in ([], ["-"]):
        typed("\r\n".join(map(str, paths)).encode())
        assert main(["predict", str(world / "state"), *given, "--csv"]) == 0
        assert [row["image"] for row in rows_of(capsys.readouterr().out)] == list(map(str, paths))


def test_a_slow_writer_of_names_is_answered_before_it_is_done(world: Path) -> None:
    path = str(next((world / "test" / "red").iterdir()))
    with subprocess.Popen(
        [sys.executable, "-m", "distillmatch", "predict", str(world / "state"), "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for _ in range(2):
            process.stdin.write(f"{path}\n".encode())
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], 60)
            assert ready, "no answer within a minute"
            assert json.loads(process.stdout.readline())["image"] == path
        process.stdin.close()
        assert process.wait(60) == 0 and process.stdout.read() == b""


def test_a_folder_without_images_is_said(world: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["predict", str(world / "state"), str(tmp_path), "--csv"]) == 0
    printed = capsys.readouterr()
    assert rows_of(printed.out) == [] and f"{tmp_path}: no files there" in printed.err


def test_odd_file_names_survive_every_way_through(
    world: Path,
    tmp_path: Path,
    typed: Callable[[bytes], None],
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    names = [b'with\nnewline,"and" comma.png', b"not utf-8 \xff\xfe.png", "ümläut.png".encode()]
    paths = [os.fsencode(tmp_path) + b"/" + name for name in names]
    for number, path in enumerate(paths):
        picture(COLORS["red"], number).save(os.fsdecode(path), format="PNG")
    typed(b"\0".join(paths) + b"\0")
    assert main(["predict", str(world / "state"), "-0", "--csv"]) == 0
    text = capfdbinary.readouterr().out.decode("utf-8", "surrogateescape")
    assert [os.fsencode(row["image"]) for row in rows_of(text)] == paths
    assert main(["predict", str(world / "state"), str(tmp_path), "--json"]) == 0
    lines = capfdbinary.readouterr().out.splitlines()
    assert {os.fsencode(json.loads(line)["image"]) for line in lines} == set(paths)
    assert main(["predict", str(world / "state"), str(tmp_path)]) == 0
    assert len(capfdbinary.readouterr().out.decode("utf-8").splitlines()) == len(paths)


def test_an_unreadable_image_gets_a_row_and_the_others_go_on(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    good = sorted((world / "test" / "red").iterdir())
    given = [str(good[0]), str(broken), str(tmp_path / "nowhere.png"), str(good[1])]
    assert main(["predict", str(world / "state"), *given, "--csv"]) == 1
    printed = capsys.readouterr()
    rows = rows_of(printed.out)
    assert [row["error"] for row in rows] == ["", "unreadable", "missing", ""]
    assert [bool(row["label"]) for row in rows] == [True, False, False, True]
    assert "broken.png" in printed.err and "2 images could not be read" in printed.err


def test_other_kinds_of_pixels_are_converted(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RGBA, grey, sixteen-bit grey and CMYK are predicted as the same picture in RGB is."""
    red, grey = picture(COLORS["red"], 1), picture(COLORS["red"], 1).convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    pairs = {
        "rgba.png": (red.convert("RGBA"), red),
        "cmyk.tif": (red.convert("CMYK"), red.convert("CMYK").convert("RGB")),
        "grey.png": (grey, grey.convert("RGB")),
        "deep.png": (deep, grey.convert("RGB")),
    }
    for name, (image, same) in pairs.items():
        image.save(tmp_path / name)
        same.save(tmp_path / f"{name}.rgb.png")
    assert main(["predict", str(world / "state"), str(tmp_path), "--csv"]) == 0
    rows = {Path(row["image"]).name: row for row in rows_of(capsys.readouterr().out)}
    for name in pairs:
        assert rows[name]["label"] == rows[f"{name}.rgb.png"]["label"]
        assert rows[name]["probability"] == rows[f"{name}.rgb.png"]["probability"]


def test_inspect_shows_what_is_known(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(world / "state"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == read_state(world / "state")
    assert main(["inspect", str(world / "state")]) == 0
    printed = capsys.readouterr().out
    for said in ("green, red", "march", "dm", "wrn-10-1", "8 px", "threshold", "on disk"):
        assert said in printed


def no_class_folders(world: Path, made: Path) -> list[str]:
    (made / "flat").mkdir()
    picture(COLORS["red"], 1).save(made / "flat" / "1.png")
    return ["--labeled", str(made / "flat")]


def empty_class_folder(world: Path, made: Path) -> list[str]:
    write_class(made / "holed", "red", 2)
    (made / "holed" / "void").mkdir()
    return ["--labeled", str(made / "holed")]


def broken_label(world: Path, made: Path) -> list[str]:
    write_class(made / "torn", "white", 3)
    (made / "torn" / "white" / "torn\nup.png").write_bytes(b"no image")
    return ["--labeled", str(made / "torn")]


def no_such_folder(world: Path, made: Path) -> list[str]:
    return ["--labeled", str(made / "nowhere")]


def impossible_rhythm(world: Path, made: Path) -> list[str]:
    return ["--labeled", str(world / "april"), "--checkpoint-seconds", "nan"]


def impossible_share(world: Path, made: Path) -> list[str]:
    return ["--labeled", str(world / "april"), "--held-out", "1.5"]


BAD = [no_class_folders, empty_class_folder, broken_label, no_such_folder]


@pytest.mark.parametrize(
    "bad", [*BAD, impossible_rhythm, impossible_share], ids=lambda bad: bad.__name__
)
def test_bad_input_gets_one_sentence_and_leaves_the_learner_as_it_was(
    bad: Callable[[Path, Path], list[str]],
    world: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = content_of(world / "state")
    words = bad(world, tmp_path)
    assert main(["learn", str(world / "state"), *words]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("distillmatch: error: ") and printed.err.count("\n") == 1
    assert content_of(world / "state") == before


@pytest.mark.parametrize("command", ["predict", "inspect", "export"])
def test_what_is_no_learner_is_refused(
    command: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = {"predict": [str(world / "test")], "export": ["--torch", str(tmp_path / "x.pt2")]}
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no learner")
    for name in ("nowhere", "empty", "file"):
        assert main([command, str(tmp_path / name), *extra.get(command, [])]) == 2
        printed = capsys.readouterr()
        assert name in printed.err and printed.err.count("\n") == 1 and not printed.out
    assert not (tmp_path / "x.pt2").exists()


def test_a_half_written_learner_is_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every file of the state is cut in half, one at a time."""
    source = world / "state"
    for name in content_of(source):
        if name == "report.html":
            continue
        broken = tmp_path / name.replace("/", "-")
        for path in source.rglob("*"):
            if path.is_file():
                (broken / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
                (broken / path.relative_to(source)).write_bytes(path.read_bytes())
        content = (broken / name).read_bytes()
        (broken / name).write_bytes(content[: len(content) // 2])
        assert main(["predict", str(broken), str(world / "test"), "--csv"]) == 2, name
        refusal = capsys.readouterr().err
        assert refusal.startswith("distillmatch: error: ") and refusal.count("\n") == 1


def test_a_second_process_is_refused_while_one_learns(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content_of(world / "state")
    lock = FolderLock(world / "state", lambda sentence: None)
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


def test_the_demo_learns_three_months_and_does_not_repeat_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"epochs": 1, "batch": 8, "unlabeled_batch": 8}
    monkeypatch.setattr(own_demo, "SETTINGS", {**own_demo.SETTINGS, **short})
    for name, count in (("LABELS", 4), ("SIGHTS", 3), ("STRANGE_SIGHTS", 1), ("TESTS", 2)):
        monkeypatch.setattr(own_world, name, count)
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
