"""The documents: what they name exists, their commands parse, their links lead somewhere."""

import ast
import importlib
import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from test_presets import READINGS

from distillmatch.cli import make_parser
from distillmatch.cli.options import config_from
from distillmatch.config import RunConfig, StreamConfig

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*DOCUMENTS, *(ROOT / n for n in ("README.md", "CONTRIBUTING.md") if (ROOT / n).exists())]
PAGE_IDS = [page.name for page in PAGES]
DOCS = {page.stem: page.read_text("utf-8") for page in DOCUMENTS}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")


def without_fences(text: str) -> str:
    return FENCE.sub("", text)


def dotted_names(text: str) -> set[str]:
    """Return the things of this package that are named in code."""
    spans = CODE.findall(without_fences(text))
    return {span for span in spans if re.fullmatch(r"distillmatch(\.\w+)+", span)}


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


def commands(text: str) -> list[str]:
    """Return the command lines in fences and in code spans, those that are more than a mention."""
    lines = [
        line.strip().removeprefix("$ ")
        for kind, block in FENCE.findall(text)
        if kind in ("", "sh", "bash", "console")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    spans = CODE.findall(without_fences(text))
    found = [line for line in lines + spans if re.match(r"distillmatch\s", line)]
    return [line for line in found if len(shlex.split(line)) > 2]


def mentions(text: str) -> set[str]:
    """Return the commands that are named without options."""
    return set(re.findall(r"`distillmatch (\w+)`", text))


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_everything_that_is_named_exists(page: Path) -> None:
    for name in dotted_names(page.read_text("utf-8")):
        find(name)


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_what_python_in_a_page_imports_exists(page: Path) -> None:
    blocks = [block for kind, block in FENCE.findall(page.read_text("utf-8")) if kind == "python"]
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("distillmatch"):
                for alias in node.names:
                    find(f"{node.module}.{alias.name}")


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_command_parses_and_describes_something_possible(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = make_parser()
    for line in commands(page.read_text("utf-8")):
        words = shlex.split(line)[1:]
        if "--help" in words:
            with pytest.raises(SystemExit) as end:
                parser.parse_args(words)
            assert end.value.code == 0, line
            continue
        arguments = parser.parse_args(words)
        if getattr(arguments, "config", "no such option") is None:
            kind: type[StreamConfig] = RunConfig if arguments.command == "run" else StreamConfig
            config_from(arguments, kind)
    capsys.readouterr()


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_mentioned_command_exists(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in mentions(page.read_text("utf-8")):
        with pytest.raises(SystemExit) as end:
            make_parser().parse_args([name, "--help"])
        assert end.value.code == 0
    capsys.readouterr()


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_mentioned_option_exists(page: Path) -> None:
    """Of the pages that are about options; others speak of other tools too."""
    if page.stem not in (
        "equations",
        "methods",
        "result",
        "own-method",
        "own-source",
        "own-network",
    ):
        return
    known = {f"--{name.replace('_', '-')}" for name in RunConfig.model_fields}
    known |= {"--out", "--bound", "--quiet", "--config", "--draw", "--help"}
    named = {
        word
        for span in CODE.findall(without_fences(page.read_text("utf-8")))
        for word in span.split()
        if word.startswith("--")
    }
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_fences(page.read_text("utf-8"))):
        if not re.match(r"[a-z]+:", target):
            path = unquote(target.partition("#")[0])
            assert not path or (page.parent / path).exists(), f"{page.name} links to {target}"


def rows_of(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table after a heading, without its head."""
    after = text[text.index(heading) :]
    table: list[list[str]] = []
    for line in after.splitlines():
        if line.startswith("|"):
            table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif table:
            break
    return table[2:]


def test_every_equation_has_its_function() -> None:
    rows = rows_of(DOCS["equations"], "## Equations")
    assert [row[0] for row in rows] == [str(number) for number in range(1, 13)]
    for number, _, function, _ in rows:
        names = dotted_names(function)
        assert names, f"equation {number} names no function"
        for name in names:
            found = find(name)
            assert callable(found)
            if not name.startswith("distillmatch.methods"):
                assert re.search(rf"eq\. [\d, and]*\b{number}\b", found.__doc__ or "") or (
                    name in ("distillmatch.losses.accepted", "distillmatch.losses.pseudo_labels")
                ), f"the docstring of {name} does not name equation {number}"


def test_every_table_and_figure_of_the_paper_is_mapped() -> None:
    text = DOCS["equations"]
    headings = " ".join(re.findall(r"^### (.*)$", text, re.MULTILINE))
    tables = set(re.findall(r"\b\d[a-d]?\b", headings.replace("in full", "")))
    expected = {"1", "2a", "2b", "2c", "3a", "3b", "4a", "4b", "5", "6a", "6b", "6c", "6d"}
    assert expected | {"7a", "7b", "7c", "7d", "8", "9"} <= tables
    assert [row[0] for row in rows_of(text, "## Figures")] == [str(n) for n in range(1, 10)]


@pytest.mark.parametrize("config", [StreamConfig, RunConfig])
def test_every_option_has_a_description(config: type[StreamConfig]) -> None:
    for name, field in config.model_fields.items():
        assert field.description and field.description.strip(), name


def read_value(cell: str) -> object:
    return yaml.safe_load(cell.strip("`"))


def test_every_reading_is_documented_with_its_default_and_the_releases_value() -> None:
    found = {
        option.strip("`").removeprefix("--").replace("-", "_"): (
            read_value(ours),
            read_value(release),
        )
        for _, option, ours, release, _ in rows_of(
            DOCS["methods"], "## Where the paper and its release differ"
        )
    }
    assert found == READINGS


def test_every_option_of_a_run_is_documented_with_its_default() -> None:
    rows = rows_of(DOCS["methods"], "## All options of a run")
    found = {row[0].strip("`").removeprefix("--").replace("-", "_"): row[1] for row in rows}
    own = [name for name in RunConfig.model_fields if name not in StreamConfig.model_fields]
    assert list(found) == own
    for name, shown in found.items():
        default = RunConfig.model_fields[name].get_default(call_default_factory=True)
        if shown:
            assert read_value(shown) == default, name
        else:
            assert default in (None, {}), name


def code_of(source: str, name: str) -> str:
    """Return a function or class as it stands in a source."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return ast.get_source_segment(source, node) or ""
    raise KeyError(name)


@pytest.mark.parametrize(
    ("page", "example", "name"),
    [
        ("own-method", "own_method.py", "LwfMatch"),
        ("own-source", "own_source.py", "stripes"),
        ("own-network", "own_network.py", "SmallNet"),
    ],
)
def test_the_code_in_a_page_is_that_of_its_example(page: str, example: str, name: str) -> None:
    source = (ROOT / "examples" / example).read_text("utf-8")
    shown = [block for kind, block in FENCE.findall(DOCS[page]) if kind == "python"]
    assert shown[0].strip() == code_of(source, name)
    assert len(source.splitlines()) < 65, "an example is about fifty lines"


def test_the_lines_that_run_an_example_parse() -> None:
    for example in sorted((ROOT / "examples").glob("*.py")):
        documented = ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""
        lines = [line for line in documented.splitlines() if line.startswith("distillmatch ")]
        assert lines, f"{example.name} does not say how to run it"
        for line in lines:
            config_from(make_parser().parse_args(shlex.split(line)[1:]), RunConfig)
