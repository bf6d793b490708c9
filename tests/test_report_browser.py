"""The report in a real browser: it opens, sorts, hides methods, saves figures, fits a phone."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up import made_up_ledger, made_up_result

from distillmatch.config import RunConfig
from distillmatch.report.paper_report import write_report
from distillmatch.report.paper_tables import gather
from distillmatch.suite.catalogue import load_experiment

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

EXPERIMENTS = ("table-2a", "figure-3", "auroc", "table-6")


@pytest.fixture(name="address", scope="module")
def address_fixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    experiments = [load_experiment(name) for name in EXPERIMENTS]
    others = [
        made_up_result(RunConfig(method=m, tasks=6, image_size=16)) for m in ("dm", "offline")
    ]
    results = [*made_up_ledger(experiments, (1, 2)), *others]
    # Two cells are left for later, as in a ledger that grows.
    kept = [r for r in results if not (r["method"] == "e2e" and r["config"]["tasks"] == 5)]
    paper = gather(experiments, kept)
    return write_report(paper, tmp_path_factory.mktemp("report")).as_uri()


@pytest.fixture(name="browser", scope="module")
def browser_fixture() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture(name="page", scope="module")
def page_fixture(browser: Any, address: str) -> Any:
    """Open the page once, and keep what the browser said meanwhile."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.complaints, page.requests = [], []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.requests.append(request.url))
    page.goto(address)
    return page


def rows_of(page: Any, table: str) -> list[str]:
    names: list[str] = page.locator(f"{table} tbody th").all_inner_texts()
    return names


def test_it_opens_without_a_complaint_and_asks_for_nothing_else(page: Any, address: str) -> None:
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("data:")] == [address]


def test_every_figure_is_there_and_drawn(page: Any) -> None:
    drawn = page.evaluate(
        """Array.from(document.querySelectorAll("figure")).map(one => {
            const box = (one.querySelector("svg, img")).getBoundingClientRect();
            const folded = one.closest("details:not([open])") !== null;
            return [one.id, folded || (box.width > 200 && box.height > 100)];
        })"""
    )
    assert all(visible for _, visible in drawn)
    names = [name for name, _ in drawn]
    assert len(set(names)) == len(names)
    for kind, count in {
        "agreement": 2,
        "omega": 3 + 4,
        "memory": 1,
        "auroc": 2 + 1,
        "quality": 6,
        "matrix": 25,
        "stream": 1,
    }.items():
        assert sum(name.split("-")[0] == kind for name in names) >= count, kind


def test_cells_that_were_not_run_say_so(page: Any) -> None:
    assert "not yet run" in page.locator("#table-2a tr", has_text="E2E").first.inner_text()


def test_columns_sort_by_pointer_and_keyboard(page: Any) -> None:
    table = "#table-2a"
    as_published = rows_of(page, table)
    head = page.locator(f"{table} th:has(button[data-sort='1'])")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"

    def values() -> list[float]:
        found = page.locator(f"{table} tbody tr > :nth-child(2)").evaluate_all(
            "cells => cells.map(cell => cell.dataset.value)"
        )
        assert found[-1] == "", "what was not run comes last"
        return [float(value) for value in found[:-1]]

    assert values() == sorted(values(), reverse=True)
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert values() == sorted(values())
    first = page.locator(f"{table} th:has(button[data-sort='0'])")
    first.locator("button").press("Space")
    assert rows_of(page, table) == sorted(as_published)
    assert head.get_attribute("aria-sort") == "none"


def test_a_method_can_be_switched_off_in_tables_and_figures(page: Any) -> None:
    row = page.locator("#table-2a tbody tr[data-method=gd]")
    line = page.locator("#omega-table-2a-10-tasks g[data-method=gd]")
    assert row.is_visible() and line.is_visible()
    page.get_by_role("checkbox", name="GD").uncheck()
    assert not row.is_visible() and not line.is_visible()
    assert page.locator("#table-2a tbody tr[data-method=dm]").is_visible()
    with page.expect_download() as saved:
        page.locator("[data-save=omega-table-2a-10-tasks]").click()
    assert 'data-method="gd"' not in Path(saved.value.path()).read_text("utf-8")
    page.get_by_role("checkbox", name="GD").check()
    assert row.is_visible() and line.is_visible()


def test_a_figure_is_saved_with_its_style(page: Any, browser: Any, tmp_path: Path) -> None:
    with page.expect_download() as saved:
        page.locator("[data-save=memory-figure-3]").click()
    assert saved.value.suggested_filename == "memory-figure-3.svg"
    file = tmp_path / "saved.svg"
    saved.value.save_as(file)
    alone = browser.new_page()
    alone.goto(file.as_uri())
    color = "getComputedStyle(document.querySelector('g[data-method=dm] .line')).stroke"
    assert alone.evaluate(color) == "rgb(213, 94, 0)"
    alone.close()
    with page.expect_download() as saved:
        page.locator("[data-save=stream-1]").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")


def test_a_phone_scrolls_tables_but_never_the_page_sideways(browser: Any, address: str) -> None:
    phone = browser.new_context(viewport={"width": 360, "height": 740}).new_page()
    phone.goto(address)
    phone.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert phone.evaluate("document.documentElement.scrollWidth") == 360
    phone.close()


@pytest.mark.parametrize("millimetres", [186, 190])
def test_tables_and_figures_fit_the_width_of_a_printed_page(
    millimetres: int, browser: Any, address: str
) -> None:
    """A4 within margins of ours, or of a browser's own."""
    width = int(millimetres / 25.4 * 96)
    paper = browser.new_context(viewport={"width": width, "height": 1000}).new_page()
    paper.goto(address)
    paper.emulate_media(media="print")
    paper.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    too_wide = paper.evaluate(
        """limit => Array.from(document.querySelectorAll("table, figure, .counts, p")).filter(
            one => one.getBoundingClientRect().right > limit + 0.5
        ).map(one => one.closest("section, header").id)""",
        width,
    )
    assert too_wide == []
    paper.close()


def test_dark_mode_has_light_words_on_a_dark_page_and_print_the_reverse(
    browser: Any, address: str
) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(address)

    def brightness(what: str) -> tuple[float, ...]:
        colors = page.evaluate(
            f"""[getComputedStyle(document.body).{what},
                getComputedStyle(document.querySelector("figure text")).fill,
                getComputedStyle(document.querySelector("figure .ground")).fill]"""
        )
        digits = [[int(n) for n in color[4:-1].split(",")] for color in colors]
        return tuple(sum(color) / 765 for color in digits)

    ground, words, panel = brightness("backgroundColor")
    assert ground < 0.2 and panel < 0.2 and words > 0.8
    page.emulate_media(media="print", color_scheme="dark")
    ground, words, panel = brightness("backgroundColor")
    assert ground > 0.9 and panel > 0.9 and words < 0.3
    assert not page.locator(".methods").is_visible()
    context.close()
