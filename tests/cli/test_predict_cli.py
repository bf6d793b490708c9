"""The command that labels images by a learner of one's own."""

import csv
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from learner_folders import COLORS, SMALL, make_world, picture

from distillmatch.cli import main
from distillmatch.learner import ContinualLearner


@pytest.fixture(name="world", scope="module")
def world_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(name="learner", scope="module")
def learner_fixture(world: Path) -> Any:
    return ContinualLearner.load(world / "state", device="cpu")


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
    assert main(["predict", str(world / "state"), str(world / "test"), "--json", "--reject"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    wanted = learner.predict([row["image"] for row in rows], reject=True)
    assert [row["label"] for row in rows] == list(wanted)


def test_rejection_by_a_method_without_scores_is_refused_before_anything_is_printed(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = str(tmp_path / "state")
    words = ["learn", state, "--labeled", str(world / "march"), *SMALL, "--method", "base"]
    assert main([*words, "--quiet"]) == 0
    assert main(["predict", state, str(world / "test"), "--csv", "--reject"]) == 2
    printed = capsys.readouterr()
    assert "'base' learned has no score" in printed.err and not printed.out
    assert printed.err.count("\n") == 1


@pytest.fixture(name="typed")
def typed_fixture(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def type_in(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return type_in


def test_names_come_from_standard_input_one_a_line(
    world: Path, typed: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(path) for path in sorted((world / "test" / "red").iterdir())]
    for given, names in (([], paths), (["-"], paths), (["-"], [])):
        typed("\r\n".join(names).encode())
        assert main(["predict", str(world / "state"), *given, "--csv"]) == 0
        printed = capsys.readouterr()
        assert [row["image"] for row in rows_of(printed.out)] == names and not printed.err


def test_a_folder_with_nothing_to_read_is_said_and_decides_the_exit_code(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, linked = tmp_path / "empty", tmp_path / "linked"
    for folder in (empty, linked):
        folder.mkdir()
    (linked / "gone.png").symlink_to(tmp_path / "nowhere.png")
    sentences = [f"{empty}: no files there", f"{linked / 'gone.png'}: a link to nothing"]
    words = ["predict", str(world / "state"), str(empty), str(linked), "--csv"]
    for more, code, end in (
        ([], 2, "2 places had nothing to read"),
        ([str(world / "test" / "red")], 1, "2 places had nothing to read"),
        ([str(tmp_path / "no.png")], 2, "1 image could not be read, 2 places had nothing to read"),
    ):
        assert main([*words, *more]) == code
        printed = capsys.readouterr()
        assert len(rows_of(printed.out)) == (4 if code == 1 else len(more))
        said = [line.removeprefix("distillmatch: ") for line in printed.err.splitlines()]
        assert said[:2] == sentences and said[-1] == end


def test_no_name_is_a_formula_or_steers_the_terminal(
    world: Path,
    typed: Callable[[bytes], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = b"=1+1.png\n\x1b[31m.png\n"
    typed(names)
    assert main(["predict", str(world / "state"), "--csv"]) == 2
    assert [row["image"] for row in rows_of(capsys.readouterr().out)] == [
        "'=1+1.png",
        "\x1b[31m.png",
    ]
    typed(names)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["predict", str(world / "state"), "--csv"]) == 2
    assert "\\x1b[31m.png" in capsys.readouterr().out


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
    typed(b"\n".join(paths[1:]))
    for given, named in (([], paths[1:]), ([str(tmp_path)], paths)):
        assert main(["predict", str(world / "state"), *given, "--csv"]) == 0
        text = capfdbinary.readouterr().out.decode("utf-8", "surrogateescape")
        assert {os.fsencode(row["image"]) for row in rows_of(text)} == set(named)
    assert main(["predict", str(world / "state"), str(tmp_path), "--json"]) == 0
    lines = capfdbinary.readouterr().out.splitlines()
    assert {os.fsencode(json.loads(line)["image"]) for line in lines} == set(paths)
    assert main(["predict", str(world / "state"), str(tmp_path)]) == 0
    assert len(capfdbinary.readouterr().out.decode("utf-8").splitlines()) == len(paths)


def test_an_unreadable_image_gets_a_row_and_the_others_go_on(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, missing = tmp_path / "broken.png", tmp_path / "nowhere.png"
    broken.write_bytes(b"no image")
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)  # which is not waited for
    good = sorted((world / "test" / "red").iterdir())
    for given, code in (((good[0], broken, pipe, good[1]), 1), ((broken, missing), 2)):
        assert main(["predict", str(world / "state"), *map(str, given), "--csv"]) == code
        printed = capsys.readouterr()
        errors = {broken: "unreadable", pipe: "unreadable", missing: "missing"}
        rows = rows_of(printed.out)
        assert [row["error"] for row in rows] == [errors.get(path, "") for path in given]
        assert [bool(row["label"]) for row in rows] == [path in good for path in given]
        assert "broken.png" in printed.err and "2 images could not be read" in printed.err
