"""Damaged files and command lines: two short rounds of the fuzzer.

Their seeds are fixed, so that what fails, fails for everybody; `make fuzz` tries others for long.
"""

import sys

import pytest
from fuzz import fuzz

CASES = 300


@pytest.mark.skipif(sys.platform == "win32", reason="limits the time and memory of a process")
@pytest.mark.parametrize("seed", [0, 1])
def test_damaged_files_and_command_lines_end_in_success_or_one_sentence(seed: int) -> None:
    count, failures = fuzz(seed, seconds=float("inf"), most=CASES)
    assert not failures, failures[0]
    assert count == CASES
