"""A seeded fuzzer of every file format that is read and of the command line.

    python tests/fuzz.py --seconds 3600 --seed 7

Each case damages one file, or some words, and runs one command in this process. A command must
succeed, or say one sentence and return 2: no traceback, no hang, no half-written file.
"""

import argparse
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import torch
import yaml
from folder_images import save
from safetensors.torch import save_file

from distillmatch.cli import main
from distillmatch.config import RunConfig, StreamConfig
from distillmatch.engine.trainer import Trainer
from distillmatch.learner import ContinualLearner
from distillmatch.runs.checkpoints import Checkpoint, checksum, decode, encode, read_safetensors
from distillmatch.runs.folder import RunFolder
from distillmatch.runs.result import recorded_config
from distillmatch.sources import shapes
from distillmatch.suite.local import LocalWorkers

SECONDS_A_CASE = 60
EXTRA_MEMORY = 4 * 2**30
SMALL = ["--network", "wrn-10-1", "--epochs", "1", "--batch", "4", "--unlabeled-batch", "4"]
SMALL += ["--image-size", "8", "--device", "cpu"]
WORDS: tuple[Any, ...] = (
    *(
        "",
        "a",
        "none",
        "../x",
        "mine:Own",
        "\ud800",
        "\udce9",
        "\x1b[31m",
        "x" * 300,
        "a\0b",
        "-1",
        "nan",
    ),
    *("1e29", "2020-13-45", "[", "cpu", "paper", "true", "--", "-", "=", "a=b", "\N{SNOWMAN}"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 10**12, 10**30, 1e308, -0.5, float("nan"), float("inf")),
    *([], {}, [[]], [0], {"a": 1}, [None], {"": {"": []}}, *WORDS),
)


class Began(BaseException):
    """Training would begin now: all that was read has been accepted."""


class TooSlowError(BaseException):
    """A case did not end in time."""


@dataclass(frozen=True)
class Case:
    """A command, the file below the copied corpus that is damaged, and how."""

    words: tuple[str, ...]
    target: str = ""
    damages: tuple[Callable[[Random, Path], str], ...] = ()


@dataclass
class Outcome:
    """What a command returned and printed."""

    code: int | None = None
    out: str = ""
    said: str = ""
    problems: list[str] = field(default_factory=list)


# How files are damaged


def damage_bytes(random: Random, path: Path) -> str:
    """Change, remove, repeat or insert bytes."""
    content = bytearray(path.read_bytes())
    kind = random.choice(("cut", "flip", "remove", "repeat", "insert", "empty"))
    for _ in range(random.choice((1, 1, 3))):
        place = random.randrange(len(content) + 1)
        piece = content[place : place + random.choice((1, 8, 200))]
        if kind == "cut":
            del content[place:]
        elif kind == "flip" and piece:
            content[place] ^= 1 << random.randrange(8)
        elif kind == "remove":
            del content[place : place + len(piece)]
        elif kind == "repeat":
            content[place:place] = piece * random.choice((1, 50))
        elif kind == "insert":
            content[place:place] = random.choice((b"\0", b"\xff\xfe", b"\x1b[2J", b"{", b"9" * 30))
        elif kind == "empty":
            content.clear()
    path.write_bytes(content)
    return f"bytes: {kind}"


def damage_tree(random: Random, tree: Any) -> tuple[Any, str]:
    """Change one place of what JSON or YAML held."""
    tree = deepcopy(tree)
    places = list(_places(tree))
    if not places or random.random() < 0.02:
        value = random.choice(VALUES)
        return value, f"all of it: {value!r:.60}"
    holder, key = random.choice(places)
    kind = random.choice(("replace", "replace", "replace", "remove", "rename", "swap", "repeat"))
    if kind == "remove":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        holder[random.choice(WORDS)] = holder.pop(key)
    elif kind == "swap":
        other, its = random.choice(places)
        if not any(one is holder[key] for one in (other, holder)):
            holder[key], other[its] = deepcopy(other[its]), deepcopy(holder[key])
    elif kind == "repeat" and isinstance(holder, list):
        holder[key:key] = [deepcopy(holder[key])] * random.choice((1, 100))
    else:
        value = random.choice(VALUES)
        if type(holder[key]) is int and random.random() < 0.5:
            value = holder[key] + random.choice((-1, 1, 1000))
        holder[key] = value
        return tree, f"{key!r:.30} = {value!r:.60}"
    return tree, f"{kind} {key!r:.30}"


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def damage_json(random: Random, path: Path) -> str:
    """Change one value of a JSON file."""
    tree, what = damage_tree(random, json.loads(path.read_text()))
    path.write_text(json.dumps(tree))
    return what


def damage_yaml(random: Random, path: Path) -> str:
    """Change one value of a YAML file."""
    tree, what = damage_tree(random, yaml.safe_load(path.read_text()))
    try:
        path.write_text(yaml.safe_dump(tree, allow_unicode=False))
    except UnicodeEncodeError:
        path.write_text(json.dumps(tree))
    return what


def damage_learner(random: Random, path: Path) -> str:
    """Change one value of a learner and renew its checksum."""
    record = json.loads(path.read_text())
    record["learner"], what = damage_tree(random, record["learner"])
    record["checksum"] = checksum(json.dumps(record["learner"], sort_keys=True), {})
    path.write_text(json.dumps(record))
    return what


def damage_checkpoint(random: Random, path: Path) -> str:
    """Change one value or tensor of a checkpoint and renew its checksum."""
    whole = decode(path)
    values, tensors, what = whole.values, dict(whole.tensors), ""
    if random.random() < 0.5:
        what = _damage_tensors(random, tensors)
    else:
        values, what = damage_tree(random, values)
    path.write_bytes(encode(Checkpoint(values, tensors)))
    return what


def damage_weights(random: Random, path: Path) -> str:
    """Change one tensor of a file of weights."""
    tensors = dict(make_weights())
    what = _damage_tensors(random, tensors)
    if path.suffix == ".safetensors":
        save_file(tensors, path)
        return what
    odd = (tensors, [tensors], {"model": tensors}, {"state_dict": 3}, 7, {"a": [1]}, {1: 2})
    torch.save(random.choice(odd), path)
    return what


def damage_learned_weights(random: Random, path: Path) -> str:
    """Change one tensor of a learner and renew its name and checksum."""
    _, tensors = read_safetensors(path)
    what = _damage_tensors(random, tensors)
    path.unlink()
    path = path.with_name(f"weights-{checksum('', tensors)}.safetensors")
    save_file(tensors, path)
    head = path.with_name("learner.json")
    head.write_text(json.dumps({**json.loads(head.read_text()), "weights": path.name}))
    return what


def damage_lock(random: Random, path: Path) -> str:
    """Leave a lock behind."""
    content = random.choice((b"", b"1", b"1 \x1b[2J", b"-1 a", b"9" * 500, b"\xff\0", b"1 a b"))
    path.write_bytes(content)
    return repr(content)


def _damage_tensors(random: Random, tensors: dict[str, torch.Tensor]) -> str:
    name = random.choice(sorted(tensors))
    tensor = tensors.pop(name)
    kind = random.choice(("gone", "renamed", "longer", "flat", "half", "integers", "nan", "scalar"))
    changed = {
        "renamed": tensor,
        "longer": torch.cat([tensor.reshape(-1), tensor.reshape(-1)]),
        "flat": tensor.reshape(-1).clone(),
        "half": tensor.to(torch.bfloat16),
        "integers": tensor.to(torch.int64),
        "nan": torch.full(tensor.shape, float("nan")),
        "scalar": torch.zeros(()),
    }
    if kind in changed:
        tensors["other" if kind == "renamed" else name] = changed[kind]
    return f"{name} {kind}"


# What is damaged


@cache
def make_weights() -> dict[str, torch.Tensor]:
    """Return weights that fit the small network."""
    from distillmatch.networks import build_network, named_generator

    network = build_network("wrn-10-1", 4, "linear", named_generator(0, "fuzz"), image_size=8)
    return {key: value.clone() for key, value in network.state_dict().items()}


def make_corpus(root: Path) -> None:
    """Write a sound file of every format."""
    for name, red in (("ant", 10), ("bee", 90), ("cat", 160), ("dog", 220)):
        for number in range(6):
            save(root / "data" / name / f"{number}.png", (red, number, 0), size=8)
    save(root / "photo.jpg", (10, 20, 30), size=8)
    tree = "small: {insects: [ant, bee]}\nbig: {pets: [cat, dog]}\n"
    (root / "tree.yaml").write_text(tree)
    own = {"source": "folder", "data-dir": "data", "cache-dir": "cache", "image-size": 8}
    stream = {**own, "tasks": 2, "unlabeled": "uniform", "coreset": 4, "seed": 3}
    (root / "stream.yaml").write_text(yaml.safe_dump({**stream, "tree": "tree.yaml"}))
    training = {"network": "wrn-10-1", "epochs": 1, "batch": 4, "unlabeled-batch": 4}
    run = {**stream, **training, "device": "cpu", "method": "dm"}
    run["options"] = {"consistency_threshold": 0.9, "class_balancing": False}
    (root / "run.yaml").write_text(yaml.safe_dump(run))
    bound = {**run, "method": "offline", "options": {}}
    (root / "bound.yaml").write_text(yaml.safe_dump(bound))
    suite = {
        "title": "Own",
        "metrics": ["A_N", "fgt"],
        "seeds": [1],
        "common": {key: value for key, value in run.items() if key not in ("seed", "options")},
        "rows": {"DM": {"method": "dm"}, "Base": {"method": "base"}},
        "columns": {"2 tasks": {"tasks": 2}, "4 tasks": {"tasks": 4}},
        "only": {"Base": ["2 tasks"]},
        "published": {"DM": {"A_N": ["30.1 ± 0.2", None]}},
    }
    (root / "suite.yaml").write_text(yaml.safe_dump(suite))
    tune = {**run, "labels-per-class": 4, "options": {}}
    (root / "tune.yaml").write_text(yaml.safe_dump(tune))
    (root / "tuned").mkdir()
    config = recorded_config(RunConfig.from_yaml(root / "tune.yaml"))
    record = {"format": "distillmatch tuning", "version": 1, "config": config}
    (root / "tuned" / "trials.json").write_text(json.dumps(record))
    (root / "space.yaml").write_text("learning_rate: [0.1, 0.2]\nweight_decay: [0.0005]\n")
    save_file(make_weights(), root / "weights.safetensors")
    torch.save(make_weights(), root / "weights.pt")
    must(["stream", "--config", "stream.yaml", "--save", "stream.json"])
    must(["suite", "list", "suite.yaml", "--ledger", "none"])
    for name in ("run", "bound"):
        must(["run", "--config", f"{name}.yaml", "--out", name, "--quiet"])
    learn, tasks = Trainer.learn, 0

    def first_task(*given: Any) -> None:
        nonlocal tasks
        tasks += 1
        if tasks > 1:
            raise Began
        learn(*given)

    with patch.object(Trainer, "learn", first_task):
        must(["run", "--config", "run.yaml", "--out", "stopped", "--quiet"])
    with patch.object(RunFolder, "clear", began):
        must(["run", "--config", "bound.yaml", "--out", "stages", "--at-once", "2", "--quiet"])
    (root / "stages" / "result.json").unlink()
    must(["learn", "state", "--labeled", "data", "--name", "first", "--quiet", *SMALL])
    shutil.copytree(root / "state", root / "unfinished")
    with patch.object(ContinualLearner, "write", began):
        must([*LEARN_ON, "--checkpoint-seconds", "1e-9"])
    must(["results", "add", "run", *LEDGER])
    (root / "ledger" / "archive").mkdir()
    entry = {"file": "folder-dm", "preset": "protocol"}
    index = {"format": "distillmatch archive", "version": 1, "runs": {"folder-dm": [entry]}}
    (root / "ledger" / "archive" / "index.json").write_text(json.dumps(index))


def began(*_: Any) -> None:
    """Stand for the end of a process at this point."""
    raise Began


def must(words: list[str]) -> None:
    """Run a command that has to succeed."""
    try:
        code = main(words)
    except Began:
        return
    assert code == 0, words


BYTES, JSON, YAML = damage_bytes, damage_json, damage_yaml
RUN = ("--out", "out", "--quiet")
RUN_ON = ("run", "--config", "run.yaml", "--out", "stopped", "--resume", "must", "--quiet")
STAGES = ("run", "--config", "bound.yaml", "--out", "stages", "--at-once", "2", "--quiet")
LEARN_ON = ("learn", "unfinished", "--labeled", "data", "--name", "next", "--again", "--quiet")
LEDGER = ("--ledger", "ledger")
CASES: tuple[Case, ...] = (
    Case(("stream", "--config", "stream.yaml", "--save", "out/s.json"), "stream.yaml", (YAML,)),
    Case(("stream", "--config", "stream.yaml", "--json"), "stream.yaml", (YAML, BYTES)),
    Case(("stream", "--config", "stream.yaml"), "tree.yaml", (YAML, BYTES)),
    Case(("stream", "--config", "stream.yaml", "--bad-images", "skip"), "data/ant/0.png", (BYTES,)),
    Case(("stream", "--read", "stream.json", "--save", "out/s.json"), "stream.json", (JSON, BYTES)),
    Case(("run", "--stream", "stream.json", *SMALL, *RUN), "stream.json", (JSON,)),
    Case(("run", "--config", "run.yaml", *RUN), "run.yaml", (YAML, YAML, BYTES)),
    Case(
        ("run", "--config", "run.yaml", "--pretrained", "weights.safetensors", *RUN),
        "weights.safetensors",
        (damage_weights, BYTES),
    ),
    Case(
        ("run", "--config", "run.yaml", "--pretrained", "weights.pt", *RUN),
        "weights.pt",
        (damage_weights, BYTES),
    ),
    Case(
        RUN_ON, "stopped/checkpoints/*.safetensors", (damage_checkpoint, damage_checkpoint, BYTES)
    ),
    Case(RUN_ON, "stopped/result.json", (JSON, BYTES)),
    Case(RUN_ON, "stopped/log.jsonl", (BYTES,)),
    Case(RUN_ON, "stopped/run.lock", (damage_lock,)),
    Case(STAGES, "stages/stages/01/stage.json", (JSON, JSON, BYTES)),
    Case(STAGES, "stages/stages/*/log.jsonl", (BYTES,)),
    Case(("stream", "--config", "stream.yaml"), "cache/*.images", (BYTES,)),
    Case(("suite", "list", "suite.yaml", *LEDGER), "ledger/archive/index.json", (JSON, BYTES)),
    Case(("report", "suite.yaml", *LEDGER, "--out", "out"), "ledger/*.json", (JSON, BYTES)),
    Case(("results", *LEDGER), "ledger/*.json", (JSON, BYTES)),
    Case(("tune", "--config", "tune.yaml", "--out", "tuned"), "tuned/trials.json", (JSON, BYTES)),
    Case(
        ("tune", "--config", "tune.yaml", "--out", "tuned", "--space", "space.yaml"),
        "space.yaml",
        (YAML, BYTES),
    ),
    Case(LEARN_ON, "unfinished/checkpoints/*.safetensors", (damage_checkpoint, BYTES)),
    Case(
        ("predict", "state", "photo.jpg", "--device", "cpu"),
        "state/weights-*.safetensors",
        (damage_learned_weights, damage_learned_weights, BYTES),
    ),
    Case(("run", "--config", "run.yaml", "--out", "run", "--quiet"), "run/result.json", (JSON,)),
    Case(("run", "--config", "run.yaml", "--bound", "bound", *RUN), "bound/result.json", (JSON,)),
    Case(("compare", "run", "bound"), "run/result.json", (JSON, BYTES)),
    Case(("results", "run"), "run/result.json", (JSON,)),
    Case(("results", "check", "run"), "run/result.json", (JSON,)),
    Case(("results", "add", "run", "--ledger", "out"), "run/result.json", (JSON, BYTES)),
    Case(("suite", "list", "suite.yaml", "--ledger", "out"), "suite.yaml", (YAML, BYTES)),
    Case(
        ("suite", "run", "suite.yaml", "--dry-run", "--ledger", "out", "--work", "out"),
        "suite.yaml",
        (YAML,),
    ),
    Case(("inspect", "state"), "state/learner.json", (damage_learner, JSON, BYTES)),
    Case(
        ("predict", "state", "data/ant", "photo.jpg", "--device", "cpu"),
        "state/learner.json",
        (damage_learner, damage_learner, JSON),
    ),
    Case(("predict", "state", "photo.jpg", "--device", "cpu"), "photo.jpg", (BYTES,)),
)
COMMAND_LINES: tuple[tuple[str, ...], ...] = (
    ("stream", "--source", "folder", "--data-dir", "data", "--image-size", "8", "--tasks", "2"),
    ("stream", "--read", "stream.json", "--json", "--save", "out/s.json"),
    (
        "run",
        "--config",
        "run.yaml",
        "--seed",
        "2",
        "--momentum",
        "0.9",
        "--precision",
        "auto",
        *RUN,
    ),
    ("run", "--stream", "stream.json", "--method", "gd", "--learning-rate", "0.1", *SMALL, *RUN),
    ("compare", "run", "bound", "--draw", "out/a.png"),
    ("results", "check", "run", "--where", "seed=3"),
    ("results", "run", "--method", "dm", "--seed", "3"),
    ("suite", "list", "suite.yaml", "--seeds", "1,2", "--ledger", "out"),
    ("inspect", "state", "--json"),
    ("predict", "state", "photo.jpg", "--csv", "--reject", "--device", "cpu"),
    ("learn", "out/state", "--labeled", "data", "--unlabeled", "data", "--name", "b", *SMALL),
    (
        "views",
        "--source",
        "folder",
        "--data-dir",
        "data",
        "--image-size",
        "8",
        "--draw",
        "out/v.png",
    ),
)


def damage_words(random: Random, words: tuple[str, ...]) -> tuple[str, ...]:
    """Change some words of a command line, but not the command."""
    first, *rest = words
    possible = [word for word in WORDS if word != "\ud800"]  # what a shell can give
    for _ in range(random.choice((1, 1, 2, 3))):
        place = random.randrange(len(rest)) if rest else 0
        kind = random.choice(("replace", "remove", "repeat", "insert", "swap", "joined"))
        if kind == "replace" and rest:
            rest[place] = random.choice(possible)
        elif kind == "remove" and rest:
            del rest[place]
        elif kind == "repeat":
            rest[place:place] = rest[place : place + 2]
        elif kind == "insert":
            rest.insert(place, random.choice(possible))
        elif kind == "swap" and rest:
            other = random.randrange(len(rest))
            rest[place], rest[other] = rest[other], rest[place]
        elif kind == "joined" and rest:
            rest[place : place + 2] = ["=".join(rest[place : place + 2])]
    return (first, *rest)


# Running a case


def run_case(random: Random, corpus: Path, work: Path) -> tuple[tuple[str, ...], str, Outcome]:
    """Damage something, run a command in `work`, and return what was done and what came of it."""
    shutil.copytree(corpus, work)
    what = "its words"
    if random.random() < 0.3:
        words = damage_words(random, random.choice(COMMAND_LINES))
    else:
        case = random.choice(CASES)
        words = case.words
        damage = random.choice(case.damages)
        places = sorted(work.glob(case.target)) or [work / case.target]
        what = f"{case.target}: {damage(random, random.choice(places))}"
    os.chdir(work)
    (work / "out").mkdir()
    return words, what, judged(words, work / "out")


def judged(words: tuple[str, ...], out: Path) -> Outcome:
    """Run a command and say what is wrong with how it ended."""
    outcome = Outcome()
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        try:
            with time_limit(SECONDS_A_CASE):
                outcome.code = main(words)
        except Began:
            outcome.code = 0
        except SystemExit as end:
            outcome.code = end.code if isinstance(end.code, int) else 0
        except TooSlowError:
            outcome.problems.append(f"did not end within {SECONDS_A_CASE} s")
        except BaseException:
            outcome.problems.append(traceback.format_exc())
        for stream in streams:
            stream.flush()
    printed = [stream.buffer.getvalue().decode(errors="surrogateescape") for stream in streams]
    outcome.out, outcome.said = printed
    if outcome.problems:
        return outcome
    if outcome.code not in (0, 2) and words[:1] != ("predict",):  # 1: some images were read
        outcome.problems.append(f"exit code {outcome.code}")
    last = outcome.said.splitlines()[-1:] or [""]
    if outcome.code == 2 and not last[0].startswith("distillmatch: "):
        outcome.problems.append("exit code 2 without a sentence")
    printed[0] = "" if "--csv" in words else printed[0]  # data, names of files as they are
    if any(sign in text for text in printed for sign in ("\x1b", "\udce9", "Traceback")):
        outcome.problems.append("a control character, a broken one, or a traceback was printed")
    for file in (path for path in out.rglob("*") if path.is_file() and path.suffix != ".lock"):
        if outcome.code == 2:
            outcome.problems.append(f"{file.name} was left behind")
        elif file.suffix == ".json":
            json.loads(file.read_text())
    return outcome


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlowError` in the block after so many seconds."""

    def stop(*_: Any) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def sandbox(root: Path) -> Iterator[None]:
    """Train nothing, download nothing, and take little memory."""

    torch.set_num_threads(1)
    draw = shapes.load
    drawn = cache(lambda side: draw(StreamConfig(image_size=side)))
    here = Path.cwd()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:1")
    with ExitStack() as changed:
        changed.enter_context(patch.dict(os.environ, {**nowhere, "XDG_CACHE_HOME": str(root)}))
        changed.enter_context(patch.object(shapes, "load", lambda config: drawn(config.image_size)))
        changed.enter_context(patch.object(sys, "path", list(sys.path)))
        os.chdir(root)
        try:
            make_corpus(root)
            changed.enter_context(patch.object(Trainer, "learn", began))
            changed.enter_context(patch.object(LocalWorkers, "start", began))
            if pages:
                soft = pages * resource.getpagesize() + EXTRA_MEMORY
                resource.setrlimit(resource.RLIMIT_AS, (soft, limits[1]))
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
            os.chdir(here)


def fuzz(seed: int, seconds: float, most: int = 10**9, stop_at: int = 1) -> tuple[int, list[str]]:
    """Run cases until the time is over; return how many, and what was wrong, with its seed."""
    failures: list[str] = []
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        with sandbox(corpus):
            failures += undamaged_cases(corpus, Path(folder) / "work")
            end = time.monotonic() + seconds
            while count < most and time.monotonic() < end and len(failures) < stop_at:
                failures += one_case(f"{seed}/{count}", corpus, Path(folder) / "work")
                count += 1
    return count, failures


def undamaged_cases(corpus: Path, work: Path) -> list[str]:
    """Run every command on undamaged files; return a text for each that does not succeed."""
    failures = []
    for words in {*(case.words for case in CASES), *COMMAND_LINES}:
        shutil.copytree(corpus, work)
        os.chdir(work)
        (work / "out").mkdir()
        outcome = judged(words, work / "out")
        os.chdir(corpus)
        shutil.rmtree(work)
        if outcome.code != 0 or outcome.problems:
            said = "\n".join([*outcome.problems, outcome.said[-500:]])
            failures.append(f"undamaged: distillmatch {' '.join(words)}\n{said}")
    return failures


def one_case(name: str, corpus: Path, work: Path) -> list[str]:
    """Run the case of this name; return a text for it if something is wrong."""
    try:
        words, what, outcome = run_case(Random(name), corpus, work)
    finally:
        os.chdir(corpus)
        shutil.rmtree(work, ignore_errors=True)
    if not outcome.problems:
        return []
    said = "\n".join([*outcome.problems, outcome.said[-500:]])
    return [
        f"distillmatch {' '.join(map(repr, words))}\n{what}\n{said}\n"
        f"repeat it with: python tests/fuzz.py --case {name}"
    ]


def fuzz_by_hand() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", help="repeat this one case, as SEED/NUMBER")
    parser.add_argument("--failures", type=int, default=20, help="stop after so many")
    given = parser.parse_args()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if given.case:
        with tempfile.TemporaryDirectory() as folder, sandbox(Path(folder)):
            failures = one_case(given.case, Path(folder), Path(folder).with_name("fuzz-work"))
            count = 1
    else:
        count, failures = fuzz(given.seed, given.seconds, stop_at=given.failures)
    print("\n\n".join(failures))
    print(f"{count} cases, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(fuzz_by_hand())
