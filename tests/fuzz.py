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
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from copy import deepcopy
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
WORDS = ("", "a", "none", "../x", "mine:Own", "\ud800", "\udce9", "\x1b[31m", "x" * 300, "a\0b",
         "-1", "nan", "1e29", "2020-13-45", "[", "cpu", "paper", "true", "--", "-", "=", "a=b",
         "\N{SNOWMAN}")  # fmt: skip
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 10**12, 10**30, 1e308, -0.5, float("nan"), float("inf")),
    *([], {}, [[]], [0], {"a": 1}, [None], {"": {"": []}}, *WORDS),
)
Damage = Callable[[Random, Path], str]


class Began(BaseException):
    """Training would begin now: all that was read has been accepted."""


class TooSlowError(BaseException):
    """A case did not end in time."""


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
    value = random.choice(VALUES)
    if not places or random.random() < 0.02:
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


def damage_text(random: Random, path: Path) -> str:
    """Change one value of a JSON or YAML file; that of a learner gets its checksum anew."""
    is_yaml, text = path.suffix == ".yaml", path.read_text()
    tree = yaml.safe_load(text) if is_yaml else json.loads(text)
    if path.name == "learner.json" and random.random() < 0.7:
        tree["learner"], what = damage_tree(random, tree["learner"])
        tree["checksum"] = checksum(json.dumps(tree["learner"], sort_keys=True), {})
    else:
        tree, what = damage_tree(random, tree)
    text = json.dumps(tree)
    if is_yaml:
        with suppress(UnicodeEncodeError):
            text = yaml.safe_dump(tree, allow_unicode=False)
            text.encode()
    path.write_text(text)
    return what


def damage_checkpoint(random: Random, path: Path) -> str:
    """Change one value or tensor of a checkpoint and renew its checksum."""
    whole = decode(path)
    values, tensors = whole.values, dict(whole.tensors)
    if random.random() < 0.5:
        what = _damage_tensors(random, tensors)
    else:
        values, what = damage_tree(random, values)
    path.write_bytes(encode(Checkpoint(values, tensors)))
    return what


def damage_weights(random: Random, path: Path) -> str:
    """Change one tensor of a file of weights; those of a learner get name and checksum anew."""
    is_learned = path.name.startswith("weights-")
    tensors = dict(read_safetensors(path)[1] if is_learned else make_weights())
    what = _damage_tensors(random, tensors)
    if is_learned:
        path.unlink()
        path = path.with_name(f"weights-{checksum('', tensors)}.safetensors")
        head = path.with_name("learner.json")
        head.write_text(json.dumps({**json.loads(head.read_text()), "weights": path.name}))
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        odd = (tensors, [tensors], {"model": tensors}, {"state_dict": 3}, 7, {"a": [1]}, {1: 2})
        torch.save(random.choice(odd), path)
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
    save_file(make_weights(), root / "weights.safetensors")
    torch.save(make_weights(), root / "weights.pt")
    must("stream --config stream.yaml --save stream.json")
    for name in ("run", "bound"):
        must(f"run --config {name}.yaml --out {name} --quiet")
    learn, tasks = Trainer.learn, 0

    def first_task(*given: Any) -> None:
        nonlocal tasks
        tasks += 1
        if tasks > 1:
            raise Began
        learn(*given)

    with patch.object(Trainer, "learn", first_task):
        must("run --config run.yaml --out stopped --quiet")
    with patch.object(RunFolder, "clear", began):
        must(STAGES)
    (root / "stages" / "result.json").unlink()
    must(f"learn state --labeled data --name first --quiet {SMALL}")
    shutil.copytree(root / "state", root / "unfinished")
    with patch.object(ContinualLearner, "write", began):
        must(f"{LEARN_ON} --checkpoint-seconds 1e-9")
    must("results add run --ledger ledger")
    (root / "ledger" / "archive").mkdir()
    entry = {"file": "folder-dm", "preset": "protocol"}
    index = {"format": "distillmatch archive", "version": 1, "runs": {"folder-dm": [entry]}}
    (root / "ledger" / "archive" / "index.json").write_text(json.dumps(index))


def began(*_: Any) -> None:
    """Stand for the end of a process at this point."""
    raise Began


def must(command: str) -> None:
    """Run a command that has to succeed."""
    with suppress(Began):
        assert main(command.split()) == 0, command


BYTES, TEXT = damage_bytes, damage_text
SMALL = "--network wrn-10-1 --epochs 1 --batch 4 --unlabeled-batch 4 --image-size 8 --device cpu"
RUN_ON = "run --config run.yaml --out stopped --resume must --quiet"
STAGES = "run --config bound.yaml --out stages --at-once 2 --quiet"
LEARN_ON = "learn unfinished --labeled data --name next --again --quiet"
TUNE = "tune --config tune.yaml --out tuned"
PREDICT = "predict state photo.jpg --device cpu"
CASES: tuple[tuple[str, str, tuple[Damage, ...]], ...] = (
    ("stream --config stream.yaml --save out/s.json", "stream.yaml", (TEXT,)),
    ("stream --config stream.yaml --json", "stream.yaml", (TEXT, BYTES)),
    ("stream --config stream.yaml", "tree.yaml", (TEXT, BYTES)),
    ("stream --config stream.yaml --bad-images skip", "data/ant/0.png", (BYTES,)),
    ("stream --config stream.yaml", "cache/*.images", (BYTES,)),
    ("stream --read stream.json --save out/s.json", "stream.json", (TEXT, BYTES)),
    (f"run --stream stream.json {SMALL} --out out --quiet", "stream.json", (TEXT,)),
    ("run --config run.yaml --out out --quiet", "run.yaml", (TEXT, TEXT, BYTES)),
    *(
        (f"run --config run.yaml --pretrained {file} --out out --quiet", file, (damage, BYTES))
        for file, damage in dict.fromkeys(
            ("weights.safetensors", "weights.pt"), damage_weights
        ).items()
    ),
    (RUN_ON, "stopped/checkpoints/*.safetensors", (damage_checkpoint, damage_checkpoint, BYTES)),
    (RUN_ON, "stopped/result.json", (TEXT, BYTES)),
    (RUN_ON, "stopped/log.jsonl", (BYTES,)),
    (RUN_ON, "stopped/run.lock", (damage_lock,)),
    (STAGES, "stages/stages/01/checkpoints/*.safetensors", (damage_checkpoint, BYTES)),
    (STAGES, "stages/stages/*/log.jsonl", (BYTES,)),
    ("run --config run.yaml --out run --quiet", "run/result.json", (TEXT,)),
    ("run --config run.yaml --bound bound --out out --quiet", "bound/result.json", (TEXT,)),
    ("compare run bound", "run/result.json", (TEXT, BYTES)),
    ("results run", "run/result.json", (TEXT,)),
    ("results check run", "run/result.json", (TEXT,)),
    ("results add run --ledger out", "run/result.json", (TEXT, BYTES)),
    ("results --ledger ledger", "ledger/*.json", (TEXT, BYTES)),
    ("report suite.yaml --ledger ledger --out out", "ledger/*.json", (TEXT, BYTES)),
    ("suite list suite.yaml --ledger ledger", "ledger/archive/index.json", (TEXT, BYTES)),
    ("suite list suite.yaml --ledger out", "suite.yaml", (TEXT, BYTES)),
    ("suite run suite.yaml --dry-run --ledger out --work out", "suite.yaml", (TEXT,)),
    (TUNE, "tuned/trials.json", (TEXT, BYTES)),
    (LEARN_ON, "unfinished/checkpoints/*.safetensors", (damage_checkpoint, BYTES)),
    ("inspect state", "state/learner.json", (TEXT, TEXT, BYTES)),
    (f"{PREDICT} data/ant", "state/learner.json", (TEXT,)),
    (PREDICT, "state/weights-*.safetensors", (damage_weights, damage_weights, BYTES)),
    (PREDICT, "photo.jpg", (BYTES,)),
)
COMMAND_LINES = (
    "stream --source folder --data-dir data --image-size 8 --tasks 2",
    "stream --read stream.json --json --save out/s.json",
    "run --config run.yaml --seed 2 --momentum 0.9 --precision auto --out out --quiet",
    f"run --stream stream.json --method gd --learning-rate 0.1 {SMALL} --out out --quiet",
    "compare run bound --draw out/a.png",
    "results check run --where seed=3",
    "results run --method dm --seed 3",
    "suite list suite.yaml --seeds 1,2 --ledger out",
    "inspect state --json",
    "predict state photo.jpg --csv --reject --device cpu",
    f"learn out/state --labeled data --unlabeled data --name b {SMALL}",
    "views --source folder --data-dir data --image-size 8 --draw out/v.png",
)


def damage_words(random: Random, words: list[str]) -> list[str]:
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
    return [first, *rest]


# Running a case


def run_case(random: Random, corpus: Path, work: Path) -> list[str]:
    """Damage something, run a command in `work`, and return what is wrong with how it ended."""
    shutil.copytree(corpus, work)
    what = "its words"
    if random.random() < 0.3:
        words = damage_words(random, random.choice(COMMAND_LINES).split())
    else:
        command, target, damages = random.choice(CASES)
        words, damage = command.split(), random.choice(damages)
        places = sorted(work.glob(target)) or [work / target]
        what = f"{target}: {damage(random, random.choice(places))}"
    problems = judged(words, work, (0, 2))
    if problems:
        problems = [f"distillmatch {' '.join(map(repr, words))}", what, *problems]
    return problems


def judged(words: list[str], work: Path, codes: tuple[int, ...]) -> list[str]:
    """Run a command in a folder; return what is wrong with how it ended, and what it said."""
    problems: list[str] = []
    code: int | None = None
    out = work / "out"
    out.mkdir()
    os.chdir(work)
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        try:
            with time_limit(SECONDS_A_CASE):
                code = main(words)
        except Began:
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except TooSlowError:
            return [f"did not end within {SECONDS_A_CASE} s"]
        except BaseException:
            return [traceback.format_exc()]
        for stream in streams:
            stream.flush()
    printed, said = [one.buffer.getvalue().decode(errors="surrogateescape") for one in streams]
    if code not in codes and words[:1] != ["predict"]:  # 1: some images were read
        problems.append(f"exit code {code}")
    last = said.splitlines()[-1:] or [""]
    if code == 2 and not last[0].startswith("distillmatch: "):
        problems.append("exit code 2 without a sentence")
    printed = "" if "--csv" in words else printed  # data, names of files as they are
    if any(sign in text for text in (printed, said) for sign in ("\x1b", "\udce9", "Traceback")):
        problems.append("a control character, a broken one, or a traceback was printed")
    for file in (path for path in out.rglob("*") if path.is_file() and path.suffix != ".lock"):
        if code == 2:
            problems.append(f"{file.name} was left behind")
        elif file.suffix == ".json":
            json.loads(file.read_text())
    return [*problems, said[-500:]] if problems else []


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
        corpus, work = Path(folder) / "corpus", Path(folder) / "work"
        corpus.mkdir()
        with sandbox(corpus):
            for command in {*(case[0] for case in CASES), *COMMAND_LINES}:
                shutil.copytree(corpus, work)
                problems = judged(command.split(), work, (0,))
                failures += ["\n".join(["undamaged:", command, *problems])] * bool(problems)
                os.chdir(corpus)
                shutil.rmtree(work)
            end = time.monotonic() + seconds
            while count < most and time.monotonic() < end and len(failures) < stop_at:
                failures += one_case(f"{seed}/{count}", corpus, work)
                count += 1
    return count, failures


def one_case(name: str, corpus: Path, work: Path) -> list[str]:
    """Run the case of this name; return a text for it if something is wrong."""
    try:
        problems = run_case(Random(name), corpus, work)
    finally:
        os.chdir(corpus)
        shutil.rmtree(work, ignore_errors=True)
    repeat = f"repeat it with: python tests/fuzz.py --case {name}"
    return ["\n".join([*problems, repeat])] if problems else []


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
