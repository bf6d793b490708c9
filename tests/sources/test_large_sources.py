"""Images that exceed the memory of the process are learned."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MEGABYTE, COUNT, LIMIT = 2**20, 135_000, 384 * 2**20

SOURCE = f"""
import numpy as np
from distillmatch.sources import Dataset, Part
def load(config):
    images = np.memmap(config.data_dir, np.uint8, "r", shape=({COUNT}, 32, 32, 3))
    labels = np.full(len(images), -1)
    labels[:80] = np.arange(80) % 2
    return Dataset("large", Part(images, labels), Part(images[:20], labels[:20]), ("a", "b"))
"""
# Files that are mapped read-only do not count: the system can drop them at any time.
PROGRAM = f"""
import json, resource, sys
import numpy as np, torch
from distillmatch.config import RunConfig
from distillmatch.runs import run
torch.set_num_threads(1)
resource.setrlimit(resource.RLIMIT_DATA, ({LIMIT}, {LIMIT}))
config = RunConfig(**json.loads(sys.argv[1]))
print(json.dumps(run(config)))
try:
    np.fromfile(config.data_dir, np.uint8)
except MemoryError:
    sys.exit()
sys.exit("no limit")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what counts differs elsewhere")
def test_a_source_larger_than_memory_is_learned(tmp_path: Path) -> None:
    assert COUNT * 3072 > LIMIT
    with (tmp_path / "images").open("wb") as file:
        file.write(np.random.default_rng(0).bytes(100 * 3072))
        file.truncate(COUNT * 3072)
    (tmp_path / "large_source.py").write_text(SOURCE)
    sizes = {"tasks": 1, "epochs": 1, "batch": 8, "unlabeled_batch": 8, "label_fraction": 1.0}
    options = {
        **{"source": "large_source:load", "data_dir": str(tmp_path / "images"), **sizes},
        **{"method": "e2e", "network": "wrn-10-1", "device": "cpu"},
        "resident_bytes": 8 * MEGABYTE,
    }
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["complete"]
    assert len(result["tasks"][0]["losses"]["classifier"]["loss"]) == 1
