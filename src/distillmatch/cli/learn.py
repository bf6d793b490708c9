"""`distillmatch learn`: one more task for a learner of one's own images."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distillmatch.cli.learner_options import add_setting_options, settings_of
from distillmatch.cli.progress import LiveProgress
from distillmatch.sources.walk import shown
from distillmatch.terminal import plain_console, tell

if TYPE_CHECKING:
    from distillmatch.learner.explanation import Explanation


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "learn",
        help="feed a learner of your own the next folder of images",
        usage="%(prog)s STATE --labeled DIR [--unlabeled DIR ...] [options]",
    )
    parser.add_argument(
        "state", type=Path, metavar="STATE", help="folder of the learner; a new one is made there"
    )
    parser.add_argument(
        "--labeled",
        type=Path,
        required=True,
        metavar="DIR",
        help="labelled images of this task, a folder a class",
    )
    parser.add_argument(
        "--unlabeled",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="DIR",
        help="folders of unlabelled images, nested as they come",
    )
    parser.add_argument("--name", metavar="NAME", help="what to call the task")
    parser.add_argument(
        "--test", type=Path, metavar="DIR", help="labelled images to test with, a folder a class"
    )
    parser.add_argument(
        "--held-out",
        type=float,
        metavar="X",
        help="without --test: share of each class that is kept for testing (default: 0.1)",
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=60.0,
        metavar="X",
        help="how often what was learned is kept, to continue from (default: 60)",
    )
    parser.add_argument(
        "--drop-unfinished",
        action="store_true",
        help="forget a task that was interrupted, instead of continuing it",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress and no report")
    add_setting_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Learn the task and report on it."""
    from distillmatch.runs import Interrupted
    from distillmatch.runs.threads import end_process

    try:
        learn_task(
            arguments.state,
            labeled=arguments.labeled,
            unlabeled=arguments.unlabeled,
            name=arguments.name,
            test=arguments.test,
            held_out=arguments.held_out,
            settings=settings_of(arguments),
            checkpoint_seconds=arguments.checkpoint_seconds,
            drop_unfinished=arguments.drop_unfinished,
            quiet=arguments.quiet,
        )
    except Interrupted as stop:
        tell(str(stop))
        end_process(stop)


def learn_task(
    state: Path,
    *,
    labeled: Path,
    unlabeled: Sequence[Path],
    name: str | None,
    test: Path | None = None,
    held_out: float | None = None,
    settings: dict[str, Any],
    checkpoint_seconds: float = 60.0,
    drop_unfinished: bool = False,
    quiet: bool = False,
) -> "Explanation":
    """Learn one task with progress shown, write and print the report; return what it shows."""
    from distillmatch.learner.estimator import ContinualLearner
    from distillmatch.learner.state import learn, read_state
    from distillmatch.report.learner_page import write_learner_page
    from distillmatch.report.learner_text import (
        environment_sentence,
        forgotten_sentence,
        history_table,
        lead_sentence,
        test_sentence,
    )

    progress = None if quiet else LiveProgress(shown(name or labeled.name))
    try:
        record = learn(
            state,
            labeled=labeled,
            unlabeled=unlabeled,
            name=name,
            test=test,
            held_out=held_out,
            settings=settings,
            progress=progress,
            checkpoint_seconds=checkpoint_seconds,
            tell=tell,
            drop_unfinished=drop_unfinished,
        )
    finally:
        if progress is not None:
            progress.stop()
    summary = read_state(state)
    explanation = ContinualLearner.load(state, device="cpu").explain()
    page = write_learner_page(state, summary, explanation)
    if quiet:
        return explanation
    console = plain_console()
    console.print(history_table(summary["history"]))
    for sentence in (
        lead_sentence(summary),
        test_sentence(record),
        forgotten_sentence(record),
        environment_sentence(record),
        f"report: {page}",
    ):
        if sentence:
            console.print(sentence, highlight=False, soft_wrap=True)
    return explanation
