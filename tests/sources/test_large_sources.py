"""Folders of very many images: decoded once, in little memory, and on from where it stopped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from distillmatch.config import StreamConfig
from distillmatch.errors import DiskError
from distillmatch.sources import Dataset, decoders, folder
from distillmatch.sources.decoders import WorkerProcess, decode_in_pieces
from distillmatch.sources.decoding import IMAGES, JOURNAL
from distillmatch.sources.images import ImageFile
from distillmatch.sources.walk import FileTable, ScannedFolder, list_files

COUNT, PIECE = 60, 16

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills and limits processes")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamConfig:
    """Describe a folder of two classes of 30 images, of which one is none; pieces hold 16 files."""
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(COUNT // 2):
            Image.new("RGB", (8, 8), (number, 0, ord(name))).save(
                tmp_path / "data" / name / f"{number:02}.png"
            )
    (tmp_path / "data" / "a" / "05.png").write_bytes(b"no image")
    monkeypatch.setattr(decoders, "_CHUNK_BYTES", 0)
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
from distillmatch.sources import decoders, decoding, folder
decoders._CHUNK_BYTES = 0
add, pieces = decoding._Spool.add, int(sys.argv[2])
def killing(spool, results):
    global pieces
    if pieces == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    pieces -= 1
    add(spool, results)
decoding._Spool.add = killing
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


def same(one: Dataset, other: Dataset) -> bool:
    return one.fingerprint == other.fingerprint and one.problems == other.problems


def loaded_elsewhere(config: StreamConfig, tmp_path: Path) -> Dataset:
    return folder.load(config.replace(cache_dir=tmp_path / "other cache"))


def test_a_killed_build_goes_on_where_it_stopped(
    config: StreamConfig, tmp_path: Path, decoded: list[int]
) -> None:
    killed_after(2, config, tmp_path)
    dataset = folder.load(config)
    assert len(decoded) == COUNT - 2 * PIECE
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert same(dataset, loaded_elsewhere(config, tmp_path))
    assert len(dataset.train) + len(dataset.test) == COUNT - 1
    assert [problem.split(": ")[0][-8:] for problem in dataset.problems] == ["a/05.png"]


def cut_journal(left: Path) -> None:
    content = (left / JOURNAL).read_bytes()
    (left / JOURNAL).write_bytes(content[:-7])


def cut_images(left: Path) -> None:
    os.truncate(left / IMAGES, (left / IMAGES).stat().st_size - 7)


def change_an_image(left: Path) -> None:
    content = bytearray((left / IMAGES).read_bytes())
    content[-1] ^= 1
    (left / IMAGES).write_bytes(content)


def more_images(left: Path) -> None:
    with (left / IMAGES).open("ab") as file:
        file.write(b"half a piece")


@pytest.mark.parametrize(
    ("damage", "pieces"),
    [(cut_journal, 1), (cut_images, 1), (change_an_image, 1), (more_images, 2)],
)
def test_only_whole_pieces_are_believed(
    config: StreamConfig, tmp_path: Path, decoded: list[int], damage: Any, pieces: int
) -> None:
    damage(killed_after(2, config, tmp_path))
    dataset = folder.load(config)
    assert len(decoded) == COUNT - pieces * PIECE
    assert same(dataset, loaded_elsewhere(config, tmp_path))


def test_pieces_of_a_folder_that_has_changed_are_not_used(
    config: StreamConfig, tmp_path: Path, decoded: list[int]
) -> None:
    killed_after(2, config, tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "data" / "a" / "new.png")
    dataset = folder.load(config)
    assert len(decoded) == COUNT + 1
    assert same(dataset, loaded_elsewhere(config, tmp_path))


def test_too_full_a_disk_is_said_before_the_work_begins(
    config: StreamConfig, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=2 * COUNT * 192 - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DiskError, match=r"that takes [\d.]+ kB, 1 byte more than is free"):
        folder.load(config)
    assert decoded == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=usage.free + 1))
    assert len(folder.load(config).train) == 47


def test_processes_decode_the_same_as_threads(
    config: StreamConfig, tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_threads = loaded_elsewhere(config, tmp_path)
    assert len(decoded) == COUNT
    monkeypatch.setattr(decoders, "PROCESSES_FROM", 1)
    monkeypatch.setattr(decoders, "_processors", lambda: 2)
    by_processes = folder.load(config)
    assert len(decoded) == COUNT, "nothing is decoded in this process"
    assert same(by_threads, by_processes)


POISONED = """
import json, os, sys
from distillmatch.sources import decode_worker
decode = decode_worker.decode_file
def poisoned(file, side):
    if "poison" in file.path:
        os._exit(3)
    if "unlucky" in file.path and not os.path.exists(file.path + ".tried"):
        open(file.path + ".tried", "w").close()
        os._exit(4)
    return decode(file, side)
decode_worker.decode_file = poisoned
decode_worker.main()
"""


def test_an_image_that_ends_the_process_is_a_bad_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def poisoned(words: list[str], **options: Any) -> Any:
        return start([words[0], "-c", POISONED, words[-1]], **options)

    monkeypatch.setattr(subprocess, "Popen", poisoned)
    names = ["a", "poison", "b", "unlucky", "new\nline", "poison again"]
    for number, name in enumerate(names):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / name, "png")
    process = WorkerProcess(4)
    results = process.decode([str(tmp_path / name) for name in names])
    process.end()
    said = "decoding it ended the process that did so (exit code 3)"
    assert [r if isinstance(r, str) else int(r[0, 0, 0]) for r in results] == [
        *(0, said, 2, 3, 4, said)
    ]


def test_only_some_pieces_are_decoded_ahead(tmp_path: Path) -> None:
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


def test_a_listed_file_takes_about_fifty_bytes() -> None:
    count, each = 200, 1_000
    tracemalloc.start()
    folders = []
    for number in range(count):
        names = b"".join(b"image-%08d.jpeg\0" % n for n in range(each))
        stamps = np.full((each, 3), number, np.int64)
        folders.append(ScannedFolder(f"/images/class-{number:04}", f"{number}/", names, stamps))
    table = FileTable(folders)
    folders.clear()
    size = tracemalloc.get_traced_memory()[0] / len(table)
    tracemalloc.stop()
    assert size < 64
    # By name the folders come as 0/, 1/, 10/, 100/ and so on.
    assert table[2_017].path == "/images/class-0010/image-00000017.jpeg"
    assert table[2_017].name == "10/image-00000017.jpeg"
    assert table[199_999].path == "/images/class-0099/image-00000999.jpeg"


def test_the_table_is_what_the_folders_hold(tmp_path: Path) -> None:
    for name in ("b/1", "b/a/2", "a", "b.c/3", "ü/ä\n", "b/0"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    files = list(list_files(tmp_path).files)
    assert [file.name for file in files] == ["a", "b.c/3", "b/0", "b/1", "b/a/2", "ü/ä\n"]
    for file in files:
        assert Path(file.path).read_text() == file.name
        status = Path(file.path).stat()
        assert (file.size, file.modified) == (status.st_size, status.st_mtime_ns)


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
