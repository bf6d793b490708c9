"""Stages: a run's independent tasks, such as those of the upper bound, learned side by side."""

from dataclasses import replace
from functools import partial

from distillmatch.errors import RunFolderError
from distillmatch.runs.checkpoints import Checkpoint
from distillmatch.runs.folder import OTHERWISE, Record
from distillmatch.runs.log import RunLog, epochs_of, history, read_log, steps_of
from distillmatch.runs.session import Session
from distillmatch.runs.side_by_side import SharedProgress, Work, work_side_by_side


def learn_stages(run: Session, checkpoint: Checkpoint | None, at_once: int) -> None:
    """Learn the tasks of a run in sessions of their own, `at_once` of them, longest first.

    Each has a folder below `stages/`, with checkpoints until it is finished and one with its row of
    the result then. When all are finished, they are joined as if they had been learned in a row.
    """
    is_new = checkpoint is None and (run.folder is None or not run.folder.has_stages)
    if checkpoint is not None:  # of tasks in a row; the one that was begun starts over
        run.take_up(checkpoint.values)
    tasks, first = range(len(run.stream)), len(run.tally.tasks)
    left = list(tasks[first:])
    folders = {} if run.folder is None else {number: run.folder.stage(number) for number in left}
    given = run.config, run.described["fingerprint"], run.head["pretrained_sha256"]
    found = {number: own.find("auto", *given)[1] for number, own in folders.items()}
    done, rows = run.engine.work_of(range(first)), {}
    for number, stage in found.items():
        if stage is not None:
            run.count_used(stage.values)
            done += stage.values["engine"]["work"]
            if (row := stage.values.get("row")) is not None:
                if any(len(row[key]) != number + 1 for key in "RAP"):
                    where = folders[number].path
                    raise RunFolderError(
                        f"{where}: its row is not of task {number + 1}; {OTHERWISE}"
                    )
                rows[number] = row
                left.remove(number)
    if is_new:
        run.note_begun()
    elif run.folder is not None:
        run.folder.log.note("continued", task=first + 1, steps=steps_of(run.tally.tasks))
    whole = run.engine.trainer.progress
    whole.start(run.engine.work_of(tasks), done)
    progress = SharedProgress(whole)

    def learn(number: int) -> None:
        own = replace(run, folder=folders.get(number), progress=progress, only=number)
        own.before["seconds"] = run.before["seconds"]  # one clock for the whole run
        own.learn(found.pop(number, None))
        assert own.row is not None
        rows[number] = own.row

    def next_stage() -> Work | None:
        return partial(learn, left.pop()) if left else None

    work_side_by_side(next_stage, at_once, run.stop)
    whole.stop()
    for number in tasks[first:]:
        if run.folder is not None:
            _copy_epochs(folders[number].log, run.folder.log, run.tally.tasks)
        run.add(rows[number], [])


def _copy_epochs(stage: RunLog, log: RunLog, before: list[Record]) -> None:
    """Note the epochs of a stage as if the tasks before it had come before it."""
    for entry in history(read_log(stage.path)) if stage.path.exists() else ():
        log.note(**{**entry, "step": epochs_of(entry["training"], before) + entry["step"]})
