"""Images that exceed the memory of the process are decoded, and learned."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from distillmatch.config import StreamConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what counts differs elsewhere")

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
