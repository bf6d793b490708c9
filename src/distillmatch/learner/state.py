"""A learner that lives in a folder: `learn` teaches it, `read_state` says what it is."""

import hashlib
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from distillmatch.engine import Progress
from distillmatch.errors import LearnerError
from distillmatch.learner.accuracy import TestImages, accuracy_by_class, hold_out, measure
from distillmatch.learner.environment import Place, paths_at, roots_of
from distillmatch.learner.estimator import ContinualLearner
from distillmatch.learner.explanation import Label
from distillmatch.learner.keeper import Keeper, unchanged
from distillmatch.learner.labels import Labeled, class_folders
from distillmatch.learner.saved import HEAD, UNFINISHED, Tell, alone_in, read_head, sweep
from distillmatch.learner.video import Camera, Video
from distillmatch.runs.checkpoints import Checkpoints
from distillmatch.runs.interruption import StopRequest
from distillmatch.runs.lock import is_held
from distillmatch.runs.schema import LearnerCheckpoint
from distillmatch.sources.walk import name_below, shown

HELD_OUT = 0.1
"""Share of each class that is measured with where there is no test folder."""
LABELED = ("labeled", "labelled", "labels")
GENERIC = (*LABELED, "images", "train")
"""Folder names that say nothing of the task: the folder above names it."""


def learn(
    state: Path,
    *,
    labeled: Path,
    unlabeled: Sequence[Place | Camera] = (),
    name: str | None = None,
    test: Path | None = None,
    held_out: float | None = None,
    settings: dict[str, Any] | None = None,
    progress: Progress | None = None,
    checkpoint_seconds: float = 60.0,
    tell: Tell | None = None,
    drop_unfinished: bool = False,
    again: bool = False,
    allow_import: Collection[str] = (),
) -> dict[str, Any]:
    """Learn one task from folders of images, creating the learner in `state` or continuing it.

    Accuracy is measured on the folder `test`, else on a share `held_out` of each class in
    `labeled` (a tenth where not given), which is not kept. A task that was interrupted is continued
    by the same call, or, with `drop_unfinished`, begun anew. If it fails, the state is as it
    was. Returns the record of the task, with the entries of `distillmatch.learner.schema.Record`.

    Folders that were learned already are not learned a second time: their record is returned. Other
    images under the name of a learned task are refused. `again` learns them in both cases.
    Code of your own that the saved learner names (`module:name`) must be in `allow_import`.
    """
    tell = tell or (lambda sentence: None)
    if test is not None and held_out is not None:
        raise LearnerError(
            f"held_out ({held_out}) cannot be given beside a test folder ({shown(test)}), which is "
            "what is measured with"
        )
    held_out = HELD_OUT if held_out is None else held_out
    if not 0 <= held_out < 1:
        raise LearnerError(f"held_out must be at least 0 and less than 1, not {held_out}")
    if not checkpoint_seconds >= 0:
        raise LearnerError(f"checkpoint_seconds must be at least 0, not {checkpoint_seconds}")
    with alone_in(state):
        learner = _open(state, settings or {}, allow_import)
        if test is not None:
            _refuse_overlap(test, labeled, unlabeled)
        name = shown(name or _task_name(labeled))
        images = _labeled_folders(labeled.expanduser())
        fingerprint = _fingerprint(images, unlabeled)
        if not again and (done := _learned_before(learner, name, fingerprint)):
            tell(
                f"task '{shown(done['name'])}' is learned already (number {done['number']}); "
                "nothing was changed"
            )
            return done
        _tell_of_twins(images, tell)
        checkpoints = Checkpoints(state, LearnerCheckpoint)
        checkpoints.sweep()
        with StopRequest(tell) as stop, ExitStack() as reading:
            reading.enter_context(stop.idle(f"before anything was learned; {unchanged(state)}"))
            reader = learner.reader_for(images.items)
            if test is not None:
                found = class_folders(test.expanduser(), may_lack=True)
                tests = TestImages.read("test", found, reader)
            else:
                held = hold_out(list(images.items), images.labels, held_out)
                new = np.flatnonzero(held & ~learner.learned_before(images)).tolist()
                found = images.part(new)._replace(problems=(), hidden=0)
                images = images.part(np.flatnonzero(~held).tolist())
                tests = TestImages.read("held-out", found, reader)
            before = {}
            if learner.__sklearn_is_fitted__():
                before = accuracy_by_class(learner, tests)
            keeper = Keeper(
                state, checkpoints, checkpoint_seconds, stop, tell, drop_unfinished, reading.close
            )
            learner.partial_fit(
                images, unlabeled=list(unlabeled), name=name, progress=progress, checkpoint=keeper
            )
            record = learner.history_[-1]
            record["fingerprint"] = fingerprint
            if any(one.get("fine_tuned") for one in learner.history_[-2:]):
                # The networks that read images may have changed.
                tests = TestImages.read(tests.on, found, learner.reader_for([]))
            if tests.labels or test is not None:
                record["test"] = measure(learner, tests, record["added"], before)
                record["left_out"]["test"] = len(tests.problems)
                record["left_out"]["hidden"] += tests.hidden
            learner.write(state)
        checkpoints.clear()
        return record


def read_state(state: Path) -> dict[str, Any]:
    """Return what a state holds, without loading its weights.

    That is format_version, settings (with the method and network that were chosen), labels (in
    order), image_size, history, bytes (on the disk), unfinished (a task can be continued) and busy
    (a process works in the folder).
    """
    head = read_head(state)
    body = head["learner"]
    return {
        "format_version": head["version"],
        "settings": {**body["settings"], "method": body["method"], "network": body["network"]},
        "labels": body["labels"],
        "image_size": body["image_size"],
        "history": body["history"],
        "bytes": head["bytes"],
        "unfinished": any((state / "checkpoints").glob("*.safetensors")),
        "busy": is_held(state),
    }


def _task_name(labeled: Path) -> str:
    """Return what a task is called by its folder: `march` for `march/labeled`, too."""
    folder = labeled.expanduser().absolute()
    return folder.parent.name if folder.name in GENERIC and folder.parent.name else folder.name


def _labeled_folders(labeled: Path) -> Labeled:
    """Return the images of a task; refuse the folder around the one that has the classes."""
    for inner in (labeled / name for name in LABELED):
        if any(path.is_dir() for path in inner.glob("*")):
            raise LearnerError(
                f"{shown(labeled)}: expected one folder of images for each class there, found a "
                f"folder of such folders; did you mean {shown(inner)}?"
            )
    return class_folders(labeled).with_contents()


def _contents(images: Labeled) -> list[tuple[str, Label, str]]:
    """Return the name, the label, and the hash of the content of each labeled file, in order."""
    files = (file.where for file in images.items)
    return sorted(zip(files, images.labels, images.contents, strict=True))


def _tell_of_twins(images: Labeled, tell: Tell) -> None:
    """Name an image that is in the folders of two classes, if any is."""
    first: dict[str, tuple[str, Label]] = {}
    twins = []
    for where, label, content in _contents(images):
        other = first.setdefault(content, (where, label))
        if label != other[1]:
            twins.append((other[1], shown(str(label)), other[0], where))
    if twins:
        label, other_label, where, other_where = twins[0]
        more = f" (and {len(twins) - 1:,} more such images)" if len(twins) > 1 else ""
        tell(
            f"the same image is labeled '{label}' and '{other_label}': {where} and "
            f"{other_where}{more}; both labels are learned"
        )


def _fingerprint(images: Labeled, unlabeled: Sequence[Place | Camera]) -> str:
    """Return what identifies a task: labeled files by content, unlabeled ones by name and size."""
    digest = hashlib.sha256()
    for _, label, content in _contents(images):
        digest.update(repr((label, content)).encode("utf-8", "surrogateescape"))
    for place in unlabeled:
        digest.update(repr(_named(place)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _named(place: Place | Camera) -> Any:
    """Return what identifies unlabeled images: names and sizes of files, a camera by its name."""
    if isinstance(place, Camera):
        return place.name
    files = paths_at(place).files
    root = None if isinstance(place, Video) else Path(place).expanduser()
    if root is None or not root.is_dir():
        return sorted((Path(file).name, Path(file).lstat().st_size) for file in files)
    return sorted((name_below(root, file), Path(file).stat().st_size) for file in files)


def _learned_before(
    learner: ContinualLearner, name: str, fingerprint: str
) -> dict[str, Any] | None:
    """Return the record of the task that has this fingerprint; refuse another one of its name."""
    history = learner.history_ if learner.__sklearn_is_fitted__() else []
    for record in history:
        if record.get("fingerprint") == fingerprint:
            return record
    if any(record.get("fingerprint") and record["name"] == name for record in history):
        raise LearnerError(
            f"a task '{name}' was learned from other images; give this one a name of its "
            "own (--name), or learn it under the same name (--again, in Python again=True)"
        )
    return None


def _open(state: Path, settings: dict[str, Any], allow_import: Collection[str]) -> ContinualLearner:
    """Return the learner of a state, or a new one in an empty folder."""
    given = {name: value for name, value in settings.items() if value is not None}
    if not (state / HEAD).exists():
        ours = ("run.lock", "checkpoints", "weights-", *UNFINISHED)
        for path in state.iterdir():
            if not path.name.startswith(ours):
                raise LearnerError(
                    f"{shown(state)}: expected a learner or an empty folder, found {shown(path)}"
                )
        sweep(state, kept="")
        return ContinualLearner().set_params(**given)
    head = read_head(state)
    sweep(state, kept=head["weights"])
    saved = head["learner"]
    allowed = {*allow_import, *(given[key] for key in ("method", "network") if key in given)}
    learner = ContinualLearner.load(state, given.get("device", "auto"), allow_import=allowed)
    checkpoints = Checkpoints(state, LearnerCheckpoint)
    checkpoint, problems = checkpoints.load()
    if checkpoint is None:
        finished = not problems
    else:
        finished = checkpoint.values["engine"]["task"] < len(saved["sizes"])
    if finished:
        checkpoints.clear()  # of a task that was finished just before its process died
    if isinstance(given.get("options"), dict):
        given["options"] = {**(saved["settings"]["options"] or {}), **given["options"]}
    return learner.set_params(**given)


def _refuse_overlap(test: Path, labeled: Path, unlabeled: Sequence[Place | Camera]) -> None:
    """Refuse a test folder whose images would be learned from."""
    tested = test.expanduser().resolve()
    on_disk = [("unlabeled", place) for place in unlabeled if not isinstance(place, Camera)]
    for kind, place in [("labeled", labeled), *on_disk]:
        for learned in roots_of(place):
            if tested.is_relative_to(learned) or learned.is_relative_to(tested):
                raise LearnerError(
                    f"the test folder must lie apart from the {kind} one, or images that are "
                    f"learned from would be tested with: {shown(tested)} and {shown(learned)}"
                )
