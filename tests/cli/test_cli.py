"""The command line: what it prints and writes, and how it refuses wrong input."""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_runs import SOURCE, TINY, as_words

from distillmatch.cli import main, make_parser
from distillmatch.cli.options import config_from
from distillmatch.config import RunConfig

COMMAND = [sys.executable, "-m", "distillmatch"]


def test_a_stream_is_drawn_saved_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, saved = tmp_path / "a" / "stream.png", tmp_path / "stream.json"
    words = ["stream", "--task-sizes", "10,20", "30", "--seed", "3", "--json"]
    assert main([*words, "--draw", str(picture), "--save", str(saved)]) == 0
    first = json.loads(capsys.readouterr().out)
    for task, size in zip(first["tasks"], (10, 20, 30), strict=True):
        assert len(task["classes"]) == size and len(task["unlabeled_classes"]) == 60
        assert (task["labeled"], task["unlabeled"]) == (30 * size, 2400)
    assert np.asarray(Image.open(picture)).std() > 10
    assert main(["stream", "--read", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert main(["stream", "--read", str(saved), "--image-size", "32"]) == 2
    assert "fingerprint" in capsys.readouterr().err


def test_options_that_contradict_a_saved_stream_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "stream.json")
    assert main(["stream", "--seed", "3", "--task-sizes", "50", "10", "--save", saved]) == 0
    (tmp_path / "other.yaml").write_text("coreset: 60")
    for words, said in (
        (["--tasks", "3"], "tasks is 2"),
        (["--task-sizes", "30,30"], "task_sizes is [50, 10]"),
        (["--config", str(tmp_path / "other.yaml")], "coreset is 0"),
    ):
        capsys.readouterr()
        assert main(["stream", "--read", saved, *words]) == 2
        printed = capsys.readouterr()
        assert f"{said} in {saved}, not " in printed.err and printed.err.count("\n") == 1
        assert not printed.out
    for words in (["--tasks", "2"], ["--task-sizes", "50,10"], ["--image-size", "16"]):
        assert main(["stream", "--read", saved, *words]) == 0


def test_a_sheet_of_views_is_drawn(tmp_path: Path) -> None:
    assert main(["views", "--draw", str(tmp_path / "views.jpg")]) == 0
    with Image.open(tmp_path / "views.jpg") as page:
        assert page.format == "JPEG" and min(page.size) > 350


def test_the_benchmarks_measure_views_and_both_loops(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seconds", "0.2", "--device", "cpu", "--json"]
    assert main(["bench", "views", *words]) == 0
    views = json.loads(capsys.readouterr().out)
    assert views["weak"] > 0 and views["strong"] > 0
    words += ["--batch", "8", "--unlabeled-batch", "8", "--labels-per-class", "4", "--tasks", "5"]
    assert main(["bench", "train", *words]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["network"] == "wrn-10-1" and measured["images_per_step"] == 24
    for speed in (measured["plain"], measured["engine"]):
        per_second = 24 / speed["milliseconds_per_step"] * 1000
        assert speed["images_per_second"] == pytest.approx(per_second)


WRONG = [
    ("stream --tasks 61", "tasks must be at most the 60 classes"),
    ("stream --color red", "unknown option '--color'"),
    ("stream --task 5", "unknown option '--task' (did you mean '--tasks'?)"),
    ("stream more", "unexpected argument 'more'"),
    ("stream --source moon", "source must be one of cifar100, folder, shapes"),
    ("stream --draw stream.doc", "a picture's name must end in one of .png"),
    ("stream --config missing.yaml", "missing.yaml: No such file"),
    ("run --out x --mehtod gd", "did you mean '--method'?"),
    ("run --out x --consistency-wieght 2", "did you mean '--consistency-weight'?"),
    ("run --out x --method base --calibration true", "unknown option '--calibration'"),
    ("run --out x --consistency-weight -1", "--consistency-weight must be at least 0, not '-1'"),
    ("run --out x --pseudo-labels perhaps", "--pseudo-labels must be true or false"),
    ("run --out x --at-once 2", "at_once must be 1 with method 'dm', not 2: each of its tasks"),
    ("run --out ''", "--out must be a path, not ''"),
    ("run --method --learning-rate 1", "--method: expected one argument"),
    ("suite list tabel-2a", "did you mean 'table-2a'?"),
    ("suite", "the following arguments are required: list|run"),
    ("learn x --labeled y --options a", "--options takes key=value, not 'a'"),
    ("predict x ''", "expected files or folders of images, not an empty name"),
    ("predict x y --accept 0.9", "--accept is for --reject, which was not given"),
    ("compare missing", "missing: No such file"),
    ("results --ledger none", "none: expected results of runs, found none"),
    ("results --where tasks", "--where takes key=value, not 'tasks'"),
    ("results --where tasks=[1", "'[1' is not a value"),
    ("results x.json --ledger y", "takes files or --ledger, not both"),
    ("results add", "results add needs result files or folders of runs"),
    ("compere x", "did you mean 'compare'?"),
    ("", "required: COMMAND"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_wrong_input_gets_one_sentence_and_exit_code_2(
    words: str,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(words)) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1 and printed.err.startswith("distillmatch: error: ")
    assert not printed.out
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not left, "nothing half-written is left"


def config_of(words: list[str]) -> RunConfig:
    return config_from(make_parser().parse_args(["run", "--out", "x", *words]), RunConfig)


def test_options_of_the_method_and_rare_ones_are_given_like_those_of_a_run(tmp_path: Path) -> None:
    words = ["--consistency-weight", "0.5", "--pseudo-labels", "false", "--momentum", "0.5"]
    options = {"consistency_weight": 0.5, "pseudo_labels": False}
    assert config_of(words) == RunConfig(momentum=0.5, options=options)
    file = tmp_path / "run.yaml"
    file.write_text("method: gd\ncoreset: 9\noptions: {calibration: false}\n")
    from_file = ["--config", str(file)]
    assert config_of(from_file) == RunConfig(method="gd", coreset=9, options={"calibration": False})
    assert config_of([*from_file, "--calibration", "true", "--coreset", "3"]) == RunConfig(
        method="gd", coreset=3, options={"calibration": True}
    )


def test_files_may_stand_among_options_and_after_two_dashes() -> None:
    parse = make_parser().parse_args
    given = parse(["compare", "a", "--draw", "x.png", "b"])
    assert (given.results, given.draw) == ([Path("a"), Path("b")], Path("x.png"))
    given = parse(["predict", "state", "a", "--csv", "b", "--", "-c"])
    assert given.images == ["a", "b", "-c"] and given.csv


@pytest.mark.parametrize(
    "words", ["stream --json", "suite list", "run --tasks 0", "run --method magic"]
)
def test_torch_is_not_loaded_for_a_stream_or_before_options_are_found_right(
    words: str, tmp_path: Path
) -> None:
    code = 2 * words.startswith("run")
    program = (
        "import sys; from distillmatch.cli import main; "
        f"code = main({words.split()!r}); sys.exit(1 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, cwd=tmp_path
    )
    assert done.returncode == code, done.stderr


def test_an_interruption_while_modules_are_imported_leaves_no_traceback() -> None:
    program = """
import sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "pydantic":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
import distillmatch
assert not {"numpy", "yaml", "rich"} & set(sys.modules), "nothing slow comes before main"
from distillmatch.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"distillmatch: interrupted\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        (">&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("| true", 0, ""),
        (">/dev/full", 2, "distillmatch: error: no space left for the output\n"),
    ],
)
def test_output_that_nobody_takes_is_no_traceback(redirected: str, code: int, said: str) -> None:
    command = f"{shlex.join([*COMMAND, 'stream', '--json'])} {redirected}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def parsers(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from parsers(below, f"{path} {name}".strip())


def test_the_examples_of_every_command_parse(capsys: pytest.CaptureFixture[str]) -> None:
    for path, parser in parsers(make_parser()):
        lines = re.findall(r"^  distillmatch (.*)$", parser.epilog or "", re.MULTILINE)
        for line in lines:
            words = shlex.split(re.split(" >>? ", line)[0])
            assert " ".join(words).startswith(path)
            if "--help" not in words:
                make_parser().parse_args(words)
        assert lines or parser._subparsers is not None, f"{path} has no example"


COMPLETED = [
    (["ru"], {"run"}),
    (["run", "--meth"], {"--method"}),
    (["run", "--method", "d"], {"dm", "dr"}),
    (["run", "--recipe", ""], {"paper", "as-written"}),
    (["suite", ""], {"list", "run"}),
    (["suite", "run", "table-2"], {"table-2a", "table-2b", "table-2c"}),
]


def test_shells_complete_commands_options_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    (function,) = re.findall(r"complete .*-F (\S+) distillmatch", script)
    for words, _ in COMPLETED:
        script += (
            f"\nCOMP_WORDS=({shlex.join(['distillmatch', *words])}); COMP_CWORD={len(words)}\n"
        )
        script += f'{function}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    for line, (words, completed) in zip(done.stdout.splitlines(), COMPLETED, strict=True):
        assert completed <= set(line.split()) <= completed | {"-h", "--help"}, words
    for shell in ("zsh", "fish"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(word in script for word in ("unlabeled-batch", "table-2a", "worldmatch"))
        if shutil.which(shell):
            subprocess.run([shell, "-n"], input=script, text=True, check=True)


CUDA_MEMORY = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.80 GiB\n"
)
NEEDS_LESS = "; a smaller --batch, --unlabeled-batch or --network needs less"


def fail_with(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("work", "sentence"),
    [
        (
            lambda: torch.empty(2**60, dtype=torch.uint8),
            "the machine ran out of memory when 1152921",
        ),
        (lambda: np.empty(2**60, np.uint8), "the machine ran out of memory when 1.00 EiB"),
        (lambda: fail_with(CUDA_MEMORY), "the GPU ran out of memory when 2.50 GiB"),
    ],
)
def test_memory_that_runs_out_is_one_sentence_that_says_what_needs_less(
    work: Callable[[], object],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("run.run", "stream.run_views"):
        monkeypatch.setattr(f"distillmatch.cli.{command}", lambda parsed: work())
    for words, end in ((["run"], NEEDS_LESS), (["views"], " more were requested")):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"distillmatch: error: {sentence}") and line.endswith(end)


def test_a_network_that_wants_to_exit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys\nfrom torch import nn\nclass Net(nn.Module):\n"
    code += "    feature_count = 3\n    calls = 0\n\n    def forward(self, images):\n"
    code += "        Net.calls += 1\n        if Net.calls > 3:\n            sys.exit(0)\n"
    code += "        return images.mean((2, 3))\n"
    (tmp_path / "leaving.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = as_words({**TINY, "network": "leaving:Net", "source": SOURCE, "method": "base"})
    assert main(["run", "--out", "it", "--quiet", *words]) == 2
    assert "leaving.py, forward() raised SystemExit (0)" in capsys.readouterr().err
