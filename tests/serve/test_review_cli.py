"""`distillmatch review` as a process: what it prints, how it ends, and its real server."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from learner_world import BOAT, GOLDFISH, SHARK, small_learner, task, write_classes

from distillmatch.cli import main
from distillmatch.learner.labels import class_folders
from distillmatch.serve import server


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_classes(folder / "camera", GOLDFISH, SHARK, BOAT, count=4, first=20)
    (folder / "camera" / "notes.txt").write_text("no image")
    (folder / "secret.txt").write_text("nobody may read this")
    learner = small_learner(epochs=1, device="cpu")
    learner.partial_fit(*task(GOLDFISH, SHARK, count=8)).save(folder / "state")
    return folder


def raw(port: int, text: str) -> bytes:
    """Send a request as it is and return the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(text.replace("\n", "\r\n").encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def test_a_review_from_its_start_to_ctrl_c(world: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "distillmatch", "review", str(world / "state")]
    words += ["--unlabeled", str(world / "camera"), "--out", str(tmp_path / "may")]
    with subprocess.Popen(
        [*words, "--no-browser", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout and process.stderr
        address = process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{43})/", address)
        assert found, process.stderr.read()
        port, token = int(found[1]), found[2]
        host = f"Host: 127.0.0.1:{port}\nConnection: close\n\n"
        assert b" 200 " in raw(port, f"GET /{token}/ HTTP/1.1\n{host}").splitlines()[0]
        for target in ("../secret.txt", "%2e%2e/secret.txt", "thumb/..%2f..%2fsecret.txt"):
            answer = raw(port, f"GET /{token}/{target} HTTP/1.1\n{host}")
            assert b" 404 " in answer.splitlines()[0] and b"nobody" not in answer
        evil = f"GET /{token}/ HTTP/1.1\n{host}".replace("127.0.0.1", "evil.example")
        assert b" 403 " in raw(port, evil).splitlines()[0]
        twice = f"GET /{token}/ HTTP/1.1\nHost: evil.example\n{host}"
        assert raw(port, twice).split()[1] in (b"400", b"403")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Authorization": f"Bearer {token}"}
        for path, body, status in (
            ("/predict", next((world / "camera").rglob("*.png")).read_bytes(), 200),
            ("/label", json.dumps({"images": [0, 1], "label": "boat"}).encode(), 200),
            ("/predict", b"no image", 400),
        ):
            connection.request("POST", path, body, headers)
            reply = connection.getresponse()
            assert reply.status == status
            json.loads(reply.read())
        connection.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT and out == ""
    assert [line.split(": ")[0] for line in err.splitlines()] == ["distillmatch"] * 3
    assert "12 camera images, 1 not usable" in err and "notes.txt" in err
    assert f"2 labels are in {tmp_path / 'may'}; learn with: distillmatch learn" in err
    assert class_folders(tmp_path / "may").labels == ["boat"] * 2
    assert not list(tmp_path.rglob("run.lock"))


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["review", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("distillmatch: error: ") and said.count("\n") == 1
    return said


def test_what_cannot_be_reviewed_is_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, camera = str(world / "state"), str(world / "camera")
    given = [state, "--unlabeled", camera, "--no-browser", "--out", str(tmp_path / "out")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port {port}: " in refused([*given, "--port", port], capsys)
    for port in ("0", "65536", "http"):
        assert "--port must be" in refused([*given, "--port", port], capsys)
    assert "unknown option '--host'" in refused([*given, "--host", "0.0.0.0"], capsys)
    assert "expected a learner" in refused([camera, *given[1:]], capsys)
    assert "learner's folder" in refused([*given, "--out", state], capsys)
    assert "found nothing" in refused([*given, "--unlabeled", str(tmp_path / "no")], capsys)
    numbers = small_learner(epochs=1, device="cpu")
    numbers.partial_fit(task(GOLDFISH, SHARK, count=2)[0], [1, 1, 2, 2]).save(tmp_path / "numbers")
    assert "whole numbers" in refused([str(tmp_path / "numbers"), *given[1:]], capsys)
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    assert "pip install 'distillmatch[serve]'" in refused(given, capsys)
    assert not (tmp_path / "out").exists(), "nothing is left where nothing was labeled"
