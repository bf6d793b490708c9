"""State that earlier versions wrote is read by this one."""

import shutil
from pathlib import Path

from interrupted_runs import interrupted, said, session
from small_runs import SOURCE, TESTS

from distillmatch.runs import read_result, run
from distillmatch.runs.result import config_of

FIXTURE = TESTS / "fixtures" / "run_in_task_2"
"""A run of DM by version 0.2.0 that was killed in its second task: its checkpoint and result."""
CONFIG = interrupted(source=SOURCE, network="small_runs:smallest_network")


def test_a_run_of_version_0_2_is_resumed_from_its_checkpoint(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE, tmp_path / "run")
    before = read_result(FIXTURE)
    assert config_of(before) == CONFIG and not before["complete"]
    said.clear()
    result = session(CONFIG, tmp_path / "run", resume="must")
    assert said[0].startswith("continuing in task 2 of 3 after epoch 2 of training 1")
    assert result is not None and result["complete"]
    assert result["tasks"][0] == before["tasks"][0] and result["R"][0][0] == before["R"][0][0]
    fresh = run(CONFIG)
    assert [t["losses"].keys() for t in result["tasks"]] == [
        t["losses"].keys() for t in fresh["tasks"]
    ]
