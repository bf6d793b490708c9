"""Without the folder of kernels the product computes the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import distillmatch

TESTS = Path(__file__).parents[1]
CHOSEN = [
    f"{TESTS}/test_golden.py::test_a_tiny_run_is_as_recorded[paper-{name}]"
    for name in ("base, coreset", "gd, coreset", "dm, coreset")
]
CHOSEN += [f"{TESTS}/networks/test_networks.py", f"{TESTS}/engine/test_optimizer.py"]
PROGRAM = """
import sys
from pathlib import Path
import distillmatch, distillmatch.networks.acceleration as acceleration, pytest
assert Path(distillmatch.__file__).is_relative_to(sys.argv[1]), distillmatch.__file__
assert acceleration._fast() is None
sys.exit(pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def test_without_the_kernels_tests_pass_and_runs_have_the_recorded_losses(tmp_path: Path) -> None:
    package = Path(distillmatch.__file__).parent
    left_out = shutil.ignore_patterns("fast", "__pycache__")
    shutil.copytree(package, tmp_path / "distillmatch", ignore=left_out)
    assert (package / "fast").is_dir() and not (tmp_path / "distillmatch" / "fast").exists()
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path, *CHOSEN],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
