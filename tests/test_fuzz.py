"""Damaged files and command lines: a short, seeded round of the fuzzer (`make fuzz` runs long)."""

import sys

import pytest
from fuzz import fuzz

CASES = 300


@pytest.mark.skipif(sys.platform == "win32", reason="limits the time and memory of a process")
def test_damaged_files_and_command_lines_end_in_success_or_one_sentence() -> None:
    count, failures = fuzz(seed=0, seconds=float("inf"), most=CASES)
    assert not failures, failures[0]
    assert count == CASES
