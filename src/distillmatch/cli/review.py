"""`distillmatch review`: label camera images in a browser."""

import argparse
import contextlib
import secrets
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from distillmatch.cli.options import add_common
from distillmatch.cli.parser import Commands, Parser, add_command, option
from distillmatch.config.base import Place
from distillmatch.errors import ConfigError
from distillmatch.sources.walk import OF_REVIEW, shown
from distillmatch.terminal import say, tell

Port = Annotated[int, Field(ge=1, le=65535)]


def add_parser(commands: Commands) -> Parser:
    """Describe the command."""
    parser = add_command(
        commands, "review", run, usage="%(prog)s STATE --unlabeled PLACE [PLACE ...] [options]"
    )
    add_common(parser, "state")
    group = parser.add_argument_group("images and labels")
    said = "camera images: folders, files, and patterns ('camera/**/*.jpg')"
    option(group, "--unlabeled PLACE ...", said, Place, required=True)
    said = "folder for labels, one folder per class, for `learn --labeled` (default: STATE-labels)"
    option(group, "--out DIR", said, Place)
    group = parser.add_argument_group(
        "page", "Only this machine can open the page, and its address holds a secret token."
    )
    option(group, "--port N", "port of the page (default: a free one)", Port)
    option(group, "--no-browser", "print the address of the page, do not open it")
    add_common(parser.add_argument_group("learner"), "device", "allow_import")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Label camera images in your browser.

    distillmatch review learner --unlabeled camera
    distillmatch review learner --unlabeled camera --out may --port 8080 --no-browser
    """
    from distillmatch.serve.server import check_installed, open_browser, open_socket

    check_installed()
    state = arguments.state if arguments.state.name not in ("", "..") else arguments.state.resolve()
    out: Path = arguments.out or state.with_name(f"{state.name}-labels")
    with open_socket(arguments.port or 0) as listening, _alone_in(out):
        from distillmatch.learner import ContinualLearner
        from distillmatch.serve.app import Review, make_app
        from distillmatch.serve.camera import look
        from distillmatch.serve.labels import Labels
        from distillmatch.serve.server import hosts_of, serve

        learner = ContinualLearner.load(
            arguments.state, device=arguments.device, allow_import=arguments.allow_import
        )
        if learner.classes_.dtype.kind != "U":
            raise ConfigError(
                f"{shown(arguments.state)}: its labels are whole numbers, but the review writes "
                "folders named after classes"
            )
        camera = look(learner, arguments.unlabeled, out)
        found = f"{len(camera.shots):,} camera images"
        if camera.copies:
            found += f", {camera.copies:,} with the same content as another"
        if camera.problems:
            found += f", {len(camera.problems):,} not usable ({camera.problems[0]})"
        tell(found)
        labels = Labels(out, list(learner.classes_), camera.shots)
        hosts = hosts_of(listening)
        token, once = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        app = make_app(Review(learner, camera, labels), token, once, hosts)
        say(f"http://{hosts[0]}/{token}/")
        tell(f"labels go to {shown(out)}; Ctrl-C ends the review")
        if not arguments.no_browser:
            open_browser(f"http://{hosts[0]}/{once}")
        stop = serve(app, listening)
    stop.message = "the review ended without labels"
    if labels.labeled:
        words = ["distillmatch", "learn", arguments.state, "--labeled", out]
        words += ["--unlabeled", *arguments.unlabeled]
        several = "s are" if labels.labeled > 1 else " is"
        stop.message = (
            f"{labels.labeled:,} label{several} in {shown(out)}; learn with: "
            f"{shown(shlex.join(map(str, words)))}"
        )
    raise stop


@contextlib.contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Hold the lock of the labels; leave no folder behind in which there are none."""
    from distillmatch.learner.saved import HEAD
    from distillmatch.runs.lock import FolderLock

    if (out / HEAD).exists():
        raise ConfigError(f"--out {shown(out)}: a learner's folder; labels need one of their own")
    lock = FolderLock(out / OF_REVIEW)
    try:
        yield
    finally:
        lock.release()
        with contextlib.suppress(OSError):
            out.rmdir()
