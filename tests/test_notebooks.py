"""The notebooks run from the first cell to the last, on less data than they show."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SMALL: dict[str, dict[str, Any]] = {
    "reproduce-a-cell": {
        "CHANGES": {"tasks": 2, "epochs": 2, "labels_per_class": 2, "unlabeled_per_task": 32}
    },
    "your-own-images": {"EPOCHS": 2, "LABELS": 6},
}


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in code_cells(notebook):
        exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            changed = SMALL[notebook.stem]
            assert changed.keys() <= names.keys()
            names.update(changed)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(notebook: Path) -> None:
    for cell in code_cells(notebook):
        assert not cell["outputs"] and cell["execution_count"] is None
