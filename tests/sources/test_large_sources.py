"""Folders of very many images: decoded once, in little memory, and resumed after a kill."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from distillmatch.config import StreamConfig
from distillmatch.errors import DiskError
from distillmatch.sources import Dataset, decoding, folder
from distillmatch.sources.decoding import IMAGES, JOURNAL, decode_in_pieces
from distillmatch.sources.images import ImageFile

COUNT, PIECE = 60, 16

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills and limits processes")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamConfig:
    """Describe a folder of two classes of 30 images, one of them bad; a piece has 16 files."""
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(COUNT // 2):
            Image.new("RGB", (8, 8), (number, 0, ord(name))).save(
                tmp_path / "data" / name / f"{number:02}.png"
            )
    (tmp_path / "data" / "a" / "05.png").write_bytes(b"no image")
    monkeypatch.setattr(decoding, "_PIECE_BYTES", 0)
    return StreamConfig(
        source="folder",
        data_dir=tmp_path / "data",
        cache_dir=tmp_path / "cache",
        image_size=8,
        bad_images="skip",
    )


KILLED = """
import os, signal, sys
from distillmatch.config import StreamConfig
from distillmatch.sources import decoding, folder
decoding._PIECE_BYTES = 0
note, notes = decoding._note, 1 + int(sys.argv[2])
def killing(journal, record):
    global notes
    if notes == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    notes -= 1
    note(journal, record)
decoding._note = killing
folder.load(StreamConfig.from_yaml(sys.argv[1]))
"""


def killed_after(pieces: int, config: StreamConfig, tmp_path: Path) -> Path:
    """Let a process be killed after so many pieces, and return the folder that it left."""
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    arguments = [sys.executable, "-c", KILLED, str(tmp_path / "config.yaml"), str(pieces)]
    assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
    (left,) = (tmp_path / "cache").iterdir()
    assert left.name.endswith(".decoding")
    return left


def assert_as_if_never_killed(dataset: Dataset, config: StreamConfig, tmp_path: Path) -> None:
    other = folder.load(config.replace(cache_dir=tmp_path / "other cache"))
    assert (dataset.fingerprint, dataset.problems) == (other.fingerprint, other.problems)


def leave_it(left: Path) -> None:
    pass


def cut_journal(left: Path) -> None:
    content = (left / JOURNAL).read_bytes()
    (left / JOURNAL).write_bytes(content[:-1])


def another_journal(left: Path) -> None:
    (left / JOURNAL).write_bytes(b'{"version": 1}\n[]\n')


def journal_of_other_files(left: Path) -> None:
    lines = (left / JOURNAL).read_bytes().splitlines(keepends=True)
    (left / JOURNAL).write_bytes(lines[0] + b'[[9999, "no image"]]\n' + lines[2])


def half_a_piece(left: Path) -> None:
    with (left / IMAGES).open("ab") as file:
        file.write(b"half a piece")


@pytest.mark.parametrize(
    ("damage", "pieces"),
    [
        (leave_it, 2),
        (cut_journal, 1),
        (another_journal, 0),
        (journal_of_other_files, 0),
        (half_a_piece, 2),
    ],
)
def test_a_killed_build_resumes_after_the_last_whole_piece(
    config: StreamConfig, tmp_path: Path, decoded: list[int], damage: Any, pieces: int
) -> None:
    damage(killed_after(2, config, tmp_path))
    dataset = folder.load(config)
    assert len(decoded) == COUNT - pieces * PIECE
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert_as_if_never_killed(dataset, config, tmp_path)
    assert len(dataset.train) + len(dataset.test) == COUNT - 1
    assert [problem.split(": ")[0][-8:] for problem in dataset.problems] == ["a/05.png"]


def test_pieces_of_a_folder_that_has_changed_are_not_used(
    config: StreamConfig, tmp_path: Path, decoded: list[int]
) -> None:
    killed_after(2, config, tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "data" / "a" / "new.png")
    dataset = folder.load(config)
    assert len(decoded) == COUNT + 1
    assert_as_if_never_killed(dataset, config, tmp_path)


def test_a_disk_that_is_too_full_is_reported_before_the_work_begins(
    config: StreamConfig, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=2 * COUNT * 192 - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DiskError, match=r"that takes [\d.]+ kB, 1 byte more than is free"):
        folder.load(config)
    assert decoded == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=usage.free + 1))
    assert len(folder.load(config).train) == 47


def test_only_some_pieces_are_decoded_ahead() -> None:
    opened: list[int] = []

    def file(number: int) -> ImageFile:
        def open_() -> Any:
            opened.append(number)
            raise OSError("none")

        return ImageFile("nowhere", open_)

    files = [file(number) for number in range(200)]
    with decode_in_pieces(files, 2048) as pieces:
        for done, _ in enumerate(pieces, 1):
            assert len(opened) <= 16 * (done + 1)
    assert sorted(opened) == list(range(200))


LIMITED = """
import json, resource, sys
from distillmatch.config import {config}
{setup}
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
{work}
"""


def under_limit(limit: int, config: str, setup: str, work: str, *arguments: str) -> Any:
    """Run something in a process that may have so many bytes of memory of its own.

    Files that are mapped read-only do not count: the system can drop them at any time.
    """
    script = LIMITED.format(config=config, setup=setup, work=work)
    done = subprocess.run(
        [sys.executable, "-c", script, arguments[0], str(limit), *arguments[1:]],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


MEGABYTE = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="what counts differs between systems")
def test_more_images_than_memory_are_decoded(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(500):
            file = tmp_path / "data" / name / f"{number}.png"
            if number:
                os.link(file.with_name("0.png"), file)
            else:
                Image.new("RGB", (2, 2), (ord(name), 0, 0)).save(file)
    config = StreamConfig(
        source="folder", data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", image_size=256
    )
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    found = under_limit(
        144 * MEGABYTE,
        "StreamConfig",
        "from distillmatch.sources import folder\nfrom distillmatch.sources.dataset import verify",
        "dataset = folder.load(StreamConfig.from_yaml(sys.argv[1]))\n"
        "verify(dataset)\n"
        "images = dataset.train.images\n"
        "print(json.dumps([len(images), images.nbytes, int(images[-1, 9, 9, 0])]))\n"
        "try:\n    images.copy()\nexcept MemoryError:\n    pass\nelse:\n    sys.exit('no limit')",
        str(tmp_path / "config.yaml"),
    )
    assert found == [800, 800 * 256 * 256 * 3, ord("b")]
    assert found[1] > 144 * MEGABYTE


SOURCE = """
import numpy as np
from distillmatch.sources import Dataset, Part
def load(config):
    images = np.memmap(config.data_dir, np.uint8, "r", shape=(%d, 32, 32, 3))
    labels = np.full(len(images), -1)
    labels[:80] = np.arange(80) %% 2
    return Dataset("large", Part(images, labels), Part(images[:20], labels[:20]), ("a", "b"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what counts differs between systems")
def test_a_source_larger_than_memory_is_learned(tmp_path: Path) -> None:
    count = 135_000
    limit = 384 * MEGABYTE
    assert count * 3072 > limit
    with (tmp_path / "images").open("wb") as file:
        file.write(np.random.default_rng(0).bytes(100 * 3072))
        file.truncate(count * 3072)
    (tmp_path / "large_source.py").write_text(SOURCE % count)
    options = {
        "source": "large_source:load",
        "data_dir": str(tmp_path / "images"),
        "method": "e2e",
        "tasks": 1,
        "network": "wrn-10-1",
        "epochs": 1,
        "batch": 8,
        "unlabeled_batch": 8,
        "label_fraction": 1.0,
        "device": "cpu",
        "resident_bytes": 8 * MEGABYTE,
    }
    result = under_limit(
        limit,
        "RunConfig",
        "sys.path.insert(0, sys.argv[3])\n"
        "import numpy as np\nimport torch\ntorch.set_num_threads(1)\n"
        "from distillmatch.runs import run",
        "config = RunConfig(**json.loads(sys.argv[1]))\n"
        "print(json.dumps(run(config)))\n"
        "try:\n    np.fromfile(config.data_dir, np.uint8)\n"
        "except MemoryError:\n    pass\nelse:\n    sys.exit('no limit')",
        json.dumps(options),
        str(tmp_path),
    )
    assert result["complete"]
    assert len(result["tasks"][0]["losses"]["classifier"]["loss"]) == 1
