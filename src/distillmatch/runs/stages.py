"""Stages: a run's independent tasks, such as those of the upper bound, learned side by side."""

from dataclasses import replace
from functools import partial

from distillmatch.runs.folder import Found, Record, RunFolder
from distillmatch.runs.log import epochs_of, history, read_log, steps_of
from distillmatch.runs.session import Session
from distillmatch.runs.side_by_side import SharedProgress, Work, work_side_by_side


def learn_stages(run: Session, found: Found, at_once: int) -> None:
    """Learn the tasks of a run in sessions of their own, `at_once` of them, longest first.

    Each has a folder below `stages/`, with checkpoints until it is finished and one with its row of
    the result then. When all are finished, they are joined as if they had been learned in a row.
    """
    if found.checkpoint is not None:  # of tasks in a row; the one that was begun starts over
        run.take_up(found.checkpoint.values)
    for stage in found.stages.values():
        run.count_used(stage)
    first, folder = len(run.tally.tasks), run.folder
    if found == Found():
        run.note_begun()
    elif folder is not None:
        folder.log.note("continued", task=first + 1, steps=steps_of(run.tally.tasks))
    rows = {n: stage["row"] for n, stage in found.stages.items() if stage.get("row") is not None}
    tasks = range(len(run.stream))
    left = [number for number in tasks if number >= first and number not in rows]
    whole = run.engine.trainer.progress
    whole.start(run.engine.work_of(tasks), run.engine.work_of(set(tasks) - set(left)))
    progress = SharedProgress(whole)

    def learn(number: int) -> None:
        own = None if folder is None else folder.stage(number)
        stage = replace(run, folder=own, progress=progress, only=number)
        stage.before["seconds"] = run.before["seconds"]  # one clock for the whole run
        given = run.config, run.described["fingerprint"], run.head["pretrained_sha256"]
        stage.learn(None if own is None else own.find("auto", *given).checkpoint)
        assert stage.row is not None
        rows[number] = stage.row

    def next_stage() -> Work | None:
        return partial(learn, left.pop()) if left else None

    work_side_by_side(next_stage, at_once, run.stop)
    whole.stop()
    for number in tasks[first:]:
        if folder is not None:
            _copy_epochs(folder, number, run.tally.tasks)
        run.add(rows[number], [])


def _copy_epochs(folder: RunFolder, number: int, before: list[Record]) -> None:
    """Note the epochs of a stage as if the tasks before it had come before it."""
    path = folder.stage(number).log.path
    for entry in history(read_log(path)) if path.exists() else ():
        step = epochs_of(entry["training"], before) + entry["step"]
        folder.log.note(**{**entry, "step": step})
