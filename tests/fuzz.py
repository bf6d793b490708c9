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
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import torch
import yaml
from made_images import save
from safetensors.torch import save_file

from distillmatch.cli import main
from distillmatch.config import RunConfig, StreamConfig
from distillmatch.engine.trainer import Trainer
from distillmatch.learner import ContinualLearner
from distillmatch.networks import build_network, named_generator
from distillmatch.runs.checkpoints import Checkpoint, checksum, decode, encode, read_safetensors
from distillmatch.runs.folder import RunFolder
from distillmatch.runs.result import recorded_config
from distillmatch.sources import shapes
from distillmatch.suite.local import LocalWorkers

SECONDS_A_CASE = 60
EXTRA_MEMORY = 4 * 2**30
WORDS = ("", "a", "none", "../x", "mine:Own", "\udce9", "\x1b[31m", "x" * 300, "a\0b", "-1", "nan",
         "1e29", "2020-13-45", "[", "cpu", "paper", "true", "--", "-", "=", "a=b",
         "\N{SNOWMAN}")  # fmt: skip
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 10**12, 10**30, 1e308, -0.5, float("nan"), float("inf")),
    *([], {}, [[]], [0], {"a": 1}, [None], {"": {"": []}}, "\ud800", *WORDS),
)
Damage = Callable[[Random, Path], str]


class Began(BaseException):
    """Training would begin now: all that was read has been accepted."""


def began(*_: Any) -> None:
    """Stand for the end of a process at this point."""
    raise Began


class TooSlowError(BaseException):
    """A case did not end in time."""


def too_slow(*_: Any) -> None:
    raise TooSlowError


def damage_list(random: Random, found: Any, inserted: tuple[Any, ...]) -> str:
    """Change, cut, remove, repeat, insert, or move what words or bytes have at some place."""
    place, other = (random.randrange(len(found) + 1) for _ in range(2))
    piece = found[place : place + random.choice((1, 2, 8, 200))]
    before, after, rest = found[:place], found[place:], found[place + len(piece) :]
    new, often = random.choice(inserted), random.choice((1, 50))
    changed = {
        "cut": before,
        "remove": before + rest,
        "replace": before + new + found[place + 1 :],
        "repeat": before + piece * often + after,
        "insert": before + new + after,
        "move": (before + rest)[:other] + piece + (before + rest)[other:],
        "empty": found[:0],
    }
    kind = random.choice(list(changed))
    found[:] = changed[kind]
    return kind


def damage_bytes(random: Random, path: Path) -> str:
    """Change, remove, repeat or insert bytes."""
    content = bytearray(path.read_bytes())
    kind = "flip"
    if content and random.random() < 0.2:
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    else:
        kind = damage_list(random, content, (b"\0", b"\xff\xfe", b"\x1b[2J", b"{", b"9" * 30))
    path.write_bytes(content)
    return f"bytes: {kind}"


def damage_tree(random: Random, tree: Any) -> tuple[Any, str]:
    """Change one place of what JSON or YAML held."""
    tree = deepcopy(tree)
    places, value = list(_places(tree)), random.choice(VALUES)
    if not places or random.random() < 0.02:
        return value, f"all of it: {value!r:.60}"
    (holder, key), (other, its) = random.choice(places), random.choice(places)
    kind = random.choice(("replace", "replace", "replace", "remove", "rename", "swap", "repeat"))
    if kind == "remove":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        holder[random.choice(WORDS)] = holder.pop(key)
    elif kind == "swap" and not any(one is holder[key] for one in (other, holder)):
        holder[key], other[its] = deepcopy(other[its]), deepcopy(holder[key])
    elif kind == "repeat" and isinstance(holder, list):
        holder[key:key] = [deepcopy(holder[key])] * random.choice((1, 100))
    else:
        is_near = type(holder[key]) is int and random.random() < 0.5
        holder[key] = holder[key] + random.choice((-1, 1, 1000)) if is_near else value
        return tree, f"{key!r:.30} = {holder[key]!r:.60}"
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
    with suppress(UnicodeEncodeError):
        text = yaml.safe_dump(tree, allow_unicode=False) if is_yaml else text
        text.encode()
    path.write_text(text, errors="replace")
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


def _damage_tensors(random: Random, tensors: dict[str, torch.Tensor]) -> str:
    name = random.choice(sorted(tensors))
    tensor = tensors.pop(name)
    changed = {
        "renamed": tensor,
        "longer": torch.cat([tensor.reshape(-1), tensor.reshape(-1)]),
        "flat": tensor.reshape(-1).clone(),
        "half": tensor.to(torch.bfloat16),
        "integers": tensor.to(torch.int64),
        "nan": torch.full(tensor.shape, float("nan")),
        "scalar": torch.zeros(()),
    }
    kind = random.choice(("gone", *changed))
    if kind in changed:
        tensors["other" if kind == "renamed" else name] = changed[kind]
    return f"{name} {kind}"


def damage_lock(random: Random, path: Path) -> str:
    """Leave a lock behind."""
    content = random.choice((b"", b"1", b"1 \x1b[2J", b"-1 a", b"9" * 500, b"\xff\0", b"1 a b"))
    path.write_bytes(content)
    return repr(content)


@cache
def make_weights() -> dict[str, torch.Tensor]:
    """Return weights that fit the small network."""
    network = build_network("wrn-10-1", 4, "linear", named_generator(0, "fuzz"), image_size=8)
    return {key: value.clone() for key, value in network.state_dict().items()}


def make_corpus(root: Path) -> None:
    """Write a sound file of every format."""
    for name, red in (("ant", 10), ("bee", 90), ("cat", 160), ("dog", 220)):
        for number in range(6):
            save(root / "data" / name / f"{number}.png", (red, number, 0), size=8)
    save(root / "photo.jpg", (10, 20, 30), size=8)
    stream = {"source": "folder", "data-dir": "data", "cache-dir": "cache", "image-size": 8,
              "tasks": 2, "unlabeled": "uniform", "coreset": 4, "seed": 3}  # fmt: skip
    run = {**stream, "network": "wrn-10-1", "epochs": 1, "batch": 4, "unlabeled-batch": 4,
           "device": "cpu", "method": "dm",
           "options": {"consistency_threshold": 0.9, "class_balancing": False}}  # fmt: skip
    tune = {**run, "labels-per-class": 4, "options": {}}
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
    trials = {"format": "distillmatch tuning", "version": 1}
    entry = {"file": "folder-dm", "preset": "protocol"}
    config = recorded_config(RunConfig.from_mapping(tune, "tune"))
    for name, content in {
        "stream.yaml": stream,
        "run.yaml": run,
        "bound.yaml": {**run, "method": "offline", "options": {}},
        "suite.yaml": suite,
        "tune.yaml": tune,
        "tuned/trials.json": {**trials, "config": config},
        "ledger/archive/index.json": {
            "format": "distillmatch archive", "version": 1, "runs": {"folder-dm": [entry]}
        },
    }.items():  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(content) if "json" in name else yaml.safe_dump(content))
    save_file(make_weights(), root / "weights.safetensors")
    torch.save(make_weights(), root / "weights.pt")
    must("stream --config stream.yaml --save stream.json")
    for name in ("run", "bound"):
        must(f"run --config {name}.yaml --out {name} --quiet")
    learn, tasks = Trainer.learn, iter((True, False))
    with patch.object(Trainer, "learn", lambda *a: learn(*a) if next(tasks) else began()):
        must("run --config run.yaml --out stopped --quiet")
    with patch.object(RunFolder, "clear", began):
        must(STAGES)
    (root / "stages" / "result.json").unlink()
    must(f"learn state --labeled data --name first --quiet {SMALL}")
    shutil.copytree(root / "state", root / "unfinished")
    with patch.object(ContinualLearner, "write", began):
        must(f"{LEARN_ON} --checkpoint-seconds 1e-9")
    must("results add run --ledger ledger")


def must(command: str) -> None:
    """Run a command that has to succeed."""
    with suppress(Began):
        assert main(command.split()) == 0, command


BYTES, TEXT, CHECKPOINT = damage_bytes, damage_text, damage_checkpoint
SMALL = "--network wrn-10-1 --epochs 1 --batch 4 --unlabeled-batch 4 --image-size 8 --device cpu"
RUN_ON = "run --config run.yaml --out stopped --resume must --quiet"
STAGES = "run --config bound.yaml --out stages --at-once 2 --quiet"
LEARN_ON = "learn unfinished --labeled data --name next --again --quiet"
TUNE = "tune --config tune.yaml --out tuned"
PREDICT = "predict state photo.jpg --device cpu"
RUN, OUT = "run --config run.yaml", "--out out --quiet"
CASES: tuple[tuple[str, str, tuple[Damage, ...]], ...] = (
    ("stream --config stream.yaml --save out/s.json", "stream.yaml", (TEXT,)),
    ("stream --config stream.yaml --json", "stream.yaml", (TEXT, BYTES)),
    ("stream --config stream.yaml --bad-images skip", "data/ant/0.png", (BYTES,)),
    ("stream --config stream.yaml", "cache/*.images", (BYTES,)),
    ("stream --read stream.json --save out/s.json", "stream.json", (TEXT, BYTES)),
    (f"run --stream stream.json {SMALL} {OUT}", "stream.json", (TEXT,)),
    (f"{RUN} {OUT}", "run.yaml", (TEXT, TEXT, BYTES)),
    (f"{RUN} --pretrained weights.pt {OUT}", "weights.pt", (damage_weights, BYTES)),
    (f"{RUN} --pretrained weights.safetensors {OUT}", "*.safetensors", (damage_weights, BYTES)),
    (RUN_ON, "stopped/checkpoints/*.safetensors", (CHECKPOINT, CHECKPOINT, BYTES)),
    (RUN_ON, "stopped/result.json", (TEXT, BYTES)),
    (RUN_ON, "stopped/log.jsonl", (BYTES,)),
    (RUN_ON, "stopped/run.lock", (damage_lock,)),
    (STAGES, "stages/stages/01/checkpoints/*.safetensors", (CHECKPOINT, BYTES)),
    (STAGES, "stages/stages/*/log.jsonl", (BYTES,)),
    (f"{RUN} --out run --quiet", "run/result.json", (TEXT,)),
    (f"{RUN} --bound bound {OUT}", "bound/result.json", (TEXT,)),
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
    (LEARN_ON, "unfinished/checkpoints/*.safetensors", (CHECKPOINT, BYTES)),
    ("inspect state", "state/learner.json", (TEXT, TEXT, BYTES)),
    (f"{PREDICT} data/ant", "state/learner.json", (TEXT,)),
    (PREDICT, "state/weights-*.safetensors", (damage_weights, damage_weights, BYTES)),
    (PREDICT, "photo.jpg", (BYTES,)),
)
COMMAND_LINES = (
    "stream --source folder --data-dir data --image-size 8 --tasks 2",
    "stream --read stream.json --json --save out/s.json",
    f"{RUN} --seed 2 --momentum 0.9 --precision auto {OUT}",
    f"run --stream stream.json --method gd --learning-rate 0.1 {SMALL} {OUT}",
    "compare run bound --draw out/a.png",
    "results check run --where seed=3",
    "results run --method dm --seed 3",
    "suite list suite.yaml --seeds 1,2 --ledger out",
    "inspect state --json",
    "predict state photo.jpg --csv --reject --device cpu",
    f"learn out/state --labeled data --unlabeled data --name b {SMALL}",
    "views --source folder --data-dir data --image-size 8 --draw out/v.png",
)


def run_case(random: Random, corpus: Path, work: Path) -> list[str]:
    """Damage something, run a command in `work`, and return what is wrong with how it ended."""
    shutil.copytree(corpus, work)
    if random.random() < 0.3:
        words, what = random.choice(COMMAND_LINES).split(), "its words"
        for _ in range(random.choice((1, 1, 2, 3))):
            rest, place = words[1:], random.randrange(len(words))
            rest[place : place + 2] = ["=".join(rest[place : place + 2])]
            if random.random() < 0.8:
                rest = words[1:]
                damage_list(random, rest, tuple([word] for word in WORDS))
            words[1:] = rest
    else:
        command, target, damages = random.choice(CASES)
        words, damage = command.split(), random.choice(damages)
        places = sorted(work.glob(target)) or [work / target]
        what = f"{target}: {damage(random, random.choice(places))}"
    problems = judged(words, work, (0, 2))
    return [f"distillmatch {' '.join(map(repr, words))}", what, *problems] if problems else []


def judged(words: list[str], work: Path, codes: tuple[int, ...]) -> list[str]:
    """Run a command in a folder; return what is wrong with how it ended, and what it said."""
    problems: list[str] = []
    code: int | None = 0
    (work / "out").mkdir()
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with chdir(work), redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        signal.alarm(SECONDS_A_CASE)
        try:
            code = main(words)
        except Began:
            pass
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:
            return [traceback.format_exc()]
        finally:
            signal.alarm(0)
        for stream in streams:
            stream.flush()
    printed, said = [one.buffer.getvalue().decode(errors="surrogateescape") for one in streams]
    if code not in codes and words[:1] != ["predict"]:  # 1: some images were read
        problems.append(f"exit code {code}")
    if code == 2 and not (said.splitlines() or [""])[-1].startswith("distillmatch: "):
        problems.append("exit code 2 without a sentence")
    printed = "" if "--csv" in words else printed  # data, names of files as they are
    if any(sign in text for text in (printed, said) for sign in ("\x1b", "\udce9", "Traceback")):
        problems.append("a control character, a broken one, or a traceback was printed")
    for file in (work / "out").rglob("*"):
        if file.is_file() and file.suffix != ".lock" and code == 2:
            problems.append(f"{file.name} was left behind")
        elif file.suffix == ".json":
            json.loads(file.read_text())
    return [*problems, said[-500:]] if problems else []


@contextmanager
def sandbox(root: Path) -> Iterator[None]:
    """Train nothing, download nothing, and take little memory and time."""
    torch.set_num_threads(1)
    draw, limits = shapes.load, resource.getrlimit(resource.RLIMIT_AS)
    drawn = cache(lambda side: draw(StreamConfig(image_size=side)))
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:1")
    with ExitStack() as changed:
        changed.enter_context(patch.dict(os.environ, {**nowhere, "XDG_CACHE_HOME": str(root)}))
        changed.enter_context(patch.object(shapes, "load", lambda config: drawn(config.image_size)))
        changed.enter_context(patch.object(sys, "path", list(sys.path)))
        changed.enter_context(chdir(root))
        make_corpus(root)
        changed.enter_context(patch.object(Trainer, "learn", began))
        changed.enter_context(patch.object(LocalWorkers, "start", began))
        changed.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, too_slow))
        if sys.platform == "linux":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_MEMORY, limits[1]))
            changed.callback(resource.setrlimit, resource.RLIMIT_AS, limits)
        yield


def fuzz(
    seed: int, seconds: float, most: int = 10**9, stop_at: int = 1, first: int = 0
) -> tuple[int, list[str]]:
    """Run cases until the time is over; return how many, and what was wrong, with its seed."""
    failures: list[str] = []
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        corpus, work = Path(folder) / "corpus", Path(folder) / "work"
        corpus.mkdir()
        with sandbox(corpus):
            for command in {*(case[0] for case in CASES), *COMMAND_LINES} if not first else ():
                shutil.copytree(corpus, work)
                problems = judged(command.split(), work, (0,))
                failures += ["\n".join(["undamaged:", command, *problems])] * bool(problems)
                shutil.rmtree(work)
            end = time.monotonic() + seconds
            while count < most and time.monotonic() < end and len(failures) < stop_at:
                name = f"{seed}/{first + count}"
                if problems := run_case(Random(name), corpus, work):
                    again = f"repeat it with: python tests/fuzz.py --case {name}"
                    failures.append("\n".join([*problems, again]))
                shutil.rmtree(work, ignore_errors=True)
                count += 1
    return count, failures


def fuzz_by_hand() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", help="repeat this one case, as SEED/NUMBER")
    given = parser.parse_args()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    seed, number = map(int, given.case.split("/")) if given.case else (given.seed, 0)
    count, failures = fuzz(seed, given.seconds, 1 if given.case else 10**9, 20, number)
    print("\n\n".join(failures))
    print(f"{count} cases, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(fuzz_by_hand())
