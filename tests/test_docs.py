"""The documents: what their code imports exists, and their links lead somewhere."""

import ast
import importlib
import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest
from small_runs import ROOT

from distillmatch.cli import make_parser
from distillmatch.cli.run_options import run_config_from
from distillmatch.config import RunConfig, StreamConfig

DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*DOCUMENTS, *(ROOT / n for n in ("README.md", "CONTRIBUTING.md") if (ROOT / n).exists())]
PAGE_IDS = [page.name for page in PAGES]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def without_fences(text: str) -> str:
    return FENCE.sub("", text)


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


def mentions(text: str) -> set[str]:
    """Return the commands that are named without options."""
    return set(re.findall(r"`distillmatch (\w+)`", text))


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_what_python_in_a_page_imports_exists(page: Path) -> None:
    blocks = [block for kind, block in FENCE.findall(page.read_text("utf-8")) if kind == "python"]
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("distillmatch"):
                for alias in node.names:
                    find(f"{node.module}.{alias.name}")


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_mentioned_command_exists(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in mentions(page.read_text("utf-8")):
        with pytest.raises(SystemExit) as end:
            make_parser().parse_args([name, "--help"])
        assert end.value.code == 0
    capsys.readouterr()


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_fences(page.read_text("utf-8"))):
        if not re.match(r"[a-z]+:", target):
            path = unquote(target.partition("#")[0])
            assert not path or (page.parent / path).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("config", [StreamConfig, RunConfig])
def test_every_option_has_a_description(config: type[StreamConfig]) -> None:
    for name, field in config.model_fields.items():
        assert field.description and field.description.strip(), name


def test_the_lines_that_run_an_example_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    for example in sorted((ROOT / "examples").glob("*.py")):
        documented = ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""
        lines = [line for line in documented.splitlines() if line.startswith("distillmatch ")]
        for line in lines:
            run_config_from(make_parser().parse_args(shlex.split(line)[1:]))
