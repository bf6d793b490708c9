"""`distillmatch demo own`: three months of a learner, by the same code as the commands."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from distillmatch.cli.learn import learn_task
from distillmatch.cli.own_world import Month, build_world
from distillmatch.sources.walk import shown
from distillmatch.terminal import plain_console

SETTINGS: dict[str, Any] = {
    "network": "wrn-10-1",
    "image_size": 16,
    "epochs": 45,
    "batch": 20,
    "unlabeled_batch": 60,
    "learning_rate": 0.03,
    "device": "cpu",
}
PICTURE = "learner.png"


def run_own(out: Path) -> None:
    """Write the world, learn its months, and end with the report and what to try next."""
    from distillmatch.learner.saved import HEAD
    from distillmatch.learner.state import read_state
    from distillmatch.report.learner_picture import TaskShown, draw_learner

    console = plain_console(highlight=False, soft_wrap=True)
    months, test = build_world(out)
    state = out / "learner"
    begun = (state / HEAD).exists()
    known = [record["name"] for record in read_state(state)["history"]] if begun else []
    examples: dict[str, Any] = {}
    for month in months:
        if month.name in known:
            continue
        console.print(f"\n$ {_command(state, month, test, month is months[0])}")
        told = learn_task(
            state,
            labeled=month.labeled,
            unlabeled=[month.camera],
            name=month.name,
            test=test,
            settings=SETTINGS,
        )
        examples[month.name] = told.examples
    if len(examples) == len(months):
        history = read_state(state)["history"]
        tasks = [
            TaskShown(record, _one_of_each(month), examples[month.name])
            for record, month in zip(history, months, strict=True)
        ]
        draw_learner(tasks, out / PICTURE)
    for line in _what_next(out, state, months[-1]):
        console.print(line)


def _command(state: Path, month: Month, test: Path, first: bool) -> str:
    """Return the command that does the same; only a new learner is told its settings."""
    words = ["distillmatch", "learn", str(state), "--labeled", str(month.labeled)]
    words += ["--unlabeled", str(month.camera), "--test", str(test), "--name", month.name]
    for name, value in SETTINGS.items() if first else ():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shown(shlex.join(words))


def _one_of_each(month: Month) -> list[Any]:
    folders = sorted(folder for folder in month.labeled.iterdir() if folder.is_dir())
    return [np.asarray(Image.open(folder / "001.png").convert("RGB")) for folder in folders]


def _what_next(out: Path, state: Path, last: Month) -> list[str]:
    place = shown(state)
    return [
        "\nThree months are learned, and no image of them was kept to learn from. Try next:",
        f"  open {shown(state / 'report.html')}",
        f"  distillmatch predict {place} {shown(last.camera)} --reject --csv",
        f"  distillmatch inspect {place}",
        f"  distillmatch export {place} --onnx {shown(out / 'learner.onnx')}",
        f"  distillmatch learn {place} --labeled YOURS --unlabeled YOUR_CAMERA",
    ]
