"""The documents: their commands parse, what their code imports exists, their links resolve."""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from small_runs import ROOT

from distillmatch.cli import make_parser
from distillmatch.config import RunConfig, StreamConfig

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
each_page = pytest.mark.parametrize(
    "page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES]
)


def blocks(page: Path, kind: str) -> Iterator[str]:
    return (text for found, text in FENCE.findall(page.read_text("utf-8")) if found == kind)


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of `distillmatch`, whatever starts it."""
    for line in text.replace("\\\n", " ").splitlines():
        if re.match(r"(\S+=\S+ |srun )?distillmatch ", line):
            words = shlex.split(line, comments=True)
            yield words[words.index("distillmatch") + 1 :]


def find(name: str) -> object:
    """Import as much of a dotted name as is a module, and look up the rest."""
    words = name.split(".")
    for count in range(len(words), 0, -1):
        try:
            found: object = importlib.import_module(".".join(words[:count]))
        except ModuleNotFoundError:
            continue
        for word in words[count:]:
            found = getattr(found, word)
        return found
    raise ModuleNotFoundError(name)


def parse(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.syspath_prepend(ROOT / "examples")
    make_parser().parse_args(arguments)


@each_page
def test_commands_in_a_page_parse(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in blocks(page, "sh"):
        for arguments in commands_in(block):
            parse(arguments, monkeypatch)


@each_page
def test_commands_named_in_a_page_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in set(re.findall(r"`distillmatch ([a-z]+)", page.read_text("utf-8"))):
        with pytest.raises(SystemExit) as end:
            make_parser().parse_args([name, "--help"])
        assert end.value.code == 0
    capsys.readouterr()


@each_page
def test_what_python_in_a_page_imports_exists(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("distillmatch"):
                for alias in node.names:
                    find(f"{node.module}.{alias.name}")


@each_page
def test_relative_links_resolve(page: Path) -> None:
    text = FENCE.sub("", page.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        link = "".join(target)
        if not re.match(r"[a-z]+:", link):
            path = unquote(link.partition("#")[0])
            assert not path or (page.parent / path).exists(), f"{page.name} links to {link}"


def test_commands_in_the_examples_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    for example in sorted((ROOT / "examples").glob("*.py")):
        for arguments in commands_in(
            ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""
        ):
            parse(arguments, monkeypatch)


@pytest.mark.parametrize("config", [StreamConfig, RunConfig])
def test_every_option_has_a_description(config: type[StreamConfig]) -> None:
    for name, field in config.model_fields.items():
        assert field.description and field.description.strip(), name
