"""What people read on a terminal: names as they stand, whatever a user has called things."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from learner_world import SHARK, small_learner, task
from made_images import save
from made_up import made_up_run

from distillmatch.cli import main
from distillmatch.runs.checkpoints import checksum
from distillmatch.terminal import LiveProgress, show_progress, without_progress

NAME = "[red]a [/x] :cat:"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


def of_a_folder(folder: Path, name: str) -> list[str]:
    for number in range(4):
        save(folder / name / f"{number}.png", (9, 9, number))
        save(folder / "other" / f"{number}.png", (number, 9, 9))
    return ["stream", "--source", "folder", "--data-dir", str(folder), "--tasks", "1"]


def of_a_run(folder: Path, name: str) -> list[str]:
    (folder / name).mkdir(parents=True)
    (folder / name / "result.json").write_text(json.dumps(made_up_run("base")))
    return ["results", str(folder / name)]


def of_an_experiment(folder: Path, name: str) -> list[str]:
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({"title": name, "rows": {name: {}}, "columns": {name: {}}}))
    return ["suite", "list", str(path)]


def of_a_learner(folder: Path, name: str) -> list[str]:
    small_learner(epochs=1).partial_fit(*task(SHARK, count=2)).save(folder / "it")
    record = json.loads((folder / "it" / "learner.json").read_text())
    record["learner"]["network"] = name
    record["checksum"] = checksum(json.dumps(record["learner"], sort_keys=True), {})
    (folder / "it" / "learner.json").write_text(json.dumps(record))
    return ["inspect", str(folder / "it")]


def of_a_stream(folder: Path, name: str) -> list[str]:
    path = folder / "stream.json"
    assert main(["stream", "--tasks", "1", "--save", str(path)]) == 0
    saved = json.loads(path.read_text())
    saved["config"]["source"] = name
    path.write_text(json.dumps(saved))
    return ["stream", "--read", str(path)]


def of_a_yaml_key(folder: Path, name: str) -> list[str]:
    (folder / "run.yaml").write_text(yaml.safe_dump({name: 1}))
    return ["run", "--config", str(folder / "run.yaml")]


NAMES = [of_a_folder, of_a_run, of_an_experiment]
CONTENTS = [of_a_learner, of_a_stream, of_a_yaml_key]


@pytest.mark.parametrize("place", [*NAMES, *CONTENTS])
def test_names_are_shown_as_they_are_with_control_characters_written_out(
    place: Callable[[Path, str], list[str]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = place(tmp_path, "[red]a [b] :cat:\x1b]0;gone\x07\x1b[31mred\u202e")
    capfd.readouterr()
    main(words)
    said = "".join(capfd.readouterr())
    assert "[31mred" in said and (place in CONTENTS or "[red]a [b] :cat:" in said)
    assert not set(said) & set("\x1b\x07\u202e")


def test_progress_on_a_terminal_shows_names_as_they_stand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    progress = LiveProgress(NAME)
    progress.start(2)
    progress.advance(1, "epoch [/b]")
    progress.stop()
    shown = capsys.readouterr().err
    assert NAME in shown and "epoch [/b]" in shown
    monkeypatch.setattr("distillmatch.terminal.PATIENCE", 0.0)
    with show_progress(NAME, 2) as update:
        update(1)
    assert NAME in capsys.readouterr().err


def test_reading_images_off_a_terminal_says_a_line_a_minute_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("distillmatch.terminal.time.monotonic", lambda: now[0])

    def told(total: int | None, in_bytes: bool = False, done: int = 0) -> list[str]:
        with show_progress("decoding [/b]", total, in_bytes, done) as update:
            for _ in range(4):
                now[0] += 40.0
                update(done := done + 1500)
        return capsys.readouterr().err.splitlines()

    assert told(12_000, done=3000) == [
        "decoding [/b]: 6,000 of 12,000, about 3 min left",
        "decoding [/b]: 9,000 of 12,000, about 80 s left",
    ]
    assert told(None, in_bytes=True) == ["decoding [/b]: 3.0 kB", "decoding [/b]: 6.0 kB"]
    with without_progress():
        assert told(12_000) == []


def test_quiet_commands_draw_no_bar_while_they_read_images_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("distillmatch.terminal.PATIENCE", 0.0)
    for number in range(20):
        save(tmp_path / "photos" / "ab"[number % 2] / f"{number}.png", (number, 9, 9), 8)
    words = ["run", "--source", "folder", "--data-dir", str(tmp_path / "photos"), "--tasks", "1"]
    words += ["--image-size", "8", "--network", "wrn-10-1", "--epochs", "1", "--device", "cpu"]
    for name, more in (("loud", []), ("quiet", ["--quiet"])):
        cache = ["--cache-dir", str(tmp_path / f"cache {name}")]
        assert main([*words, *more, *cache, "--out", str(tmp_path / name)]) == 0
        said = capsys.readouterr()
        assert ("decoding" in said.err) == ("A_N" in said.out) == (name == "loud")


def test_letters_that_the_terminal_lacks_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "result.json").write_text(json.dumps(made_up_run("base")))
    for words, shown in ((["compare", str(tmp_path)], b"A_N"), (["run", "--help"], b"--batch")):
        written = io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
            try:
                assert main(words) == 0
            except SystemExit as end:
                assert not end.code
            sys.stdout.flush()
            assert shown in written.getvalue() and b"?" in written.getvalue()


def test_progress_off_a_terminal_is_a_line_every_tenth_of_the_way_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, now = LiveProgress("dm"), [1000.0]
    monkeypatch.setattr("distillmatch.terminal.time.monotonic", lambda: now[0])
    progress.start(100.0, done=20.0)
    for seconds, done in ((5, 5.0), (5, 5.0), (20, 35.0), (0, 35.0)):
        now[0] += seconds
        progress.advance(done, "task 1")
    progress.stop()
    assert capsys.readouterr().err.splitlines() == [
        "dm: 30 % done, about 70 s left, task 1",
        "dm: 65 % done, about 23 s left, task 1",
        "dm: 100 % done, task 1",
    ]
