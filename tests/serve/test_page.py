"""The page in a real browser, by keys alone and at the width of a phone."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from review_client import ONCE, TOKEN, numbers_of, start_review, write_camera

from distillmatch.serve import groups
from distillmatch.serve.app import Review, make_app
from distillmatch.serve.server import hosts_of, open_socket, running

PHONE = {"width": 390, "height": 800}


@pytest.fixture
def review(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Review:
    monkeypatch.setattr(groups, "MOST_IMAGES", 100)
    camera = write_camera(tmp_path / "camera", {"red": 90, "orange": 3, "gray": 5})
    return start_review(camera, tmp_path / "labels")


@pytest.fixture
def address(review: Review) -> Iterator[str]:
    with open_socket(0) as listening:
        hosts = hosts_of(listening)
        with running(make_app(review, TOKEN, ONCE, hosts), listening):
            yield f"http://{hosts[0]}/{TOKEN}/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium here")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


def labels_of(review: Review, color: str) -> list[str | None]:
    return [review.labels.of(n) for n in numbers_of(review, color)]


def test_a_person_labels_by_keys_at_the_width_of_a_phone(
    review: Review, address: str, browser: Any
) -> None:
    complaints: list[str] = []
    asked: list[str] = []
    page = browser.new_context(viewport=PHONE).new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))

    def press(*keys: str) -> None:
        for key in keys:
            page.keyboard.press(key)

    def done(words: str) -> None:
        page.locator("#said", has_text=words).wait_for(timeout=60_000)

    page.goto(address)
    page.locator(".tile.current").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("section").count() == 3

    press("Enter")  # an unfamiliar image has no guess that could be confirmed: name it
    page.keyboard.type("<b>cat")
    press("Enter")
    done("1 image labeled <b>cat")
    press("g", "Enter")  # the rest of the group: the last label is offered first
    done("4 images labeled <b>cat")
    assert labels_of(review, "gray") == ["<b>cat"] * 5
    page.locator(".tile.current:not(.given)").wait_for()  # on to the next group
    press("Space", "ArrowRight", "Space", "s")
    done("2 images left out")
    in_russian = "new KeyboardEvent('keydown', {key: '\u0433', code: 'KeyU', bubbles: true})"
    page.evaluate(f"document.querySelector('.tile.current').dispatchEvent({in_russian})")
    done("Undone: 2 images")
    assert labels_of(review, "orange") == [None] * 3
    press("j")
    press("2")
    done("1 image labeled green")
    press("c")
    done("89 images labeled red")
    assert sorted(filter(None, labels_of(review, "red"))) == ["green", *["red"] * 89]

    page.reload()  # nothing is lost
    page.get_by_text("95 of 98 images labeled").wait_for()
    page.get_by_role("button", name="Labeled 95").click()
    assert page.locator(".tile").count() == 5 + 1 + 48
    page.locator("section", has_text="green").locator(".tile").click()
    press("Delete")
    done("label removed")
    assert review.labels.labeled == 94
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints == []
    assert all(url.startswith((address, "data:")) for url in asked)

    for name, said in (("a/b", "a class name must be"), ("unknown", "no class may be called")):
        press("n")
        page.keyboard.type(name)
        press("Enter")
        page.locator("#said.bad", has_text=said).wait_for(timeout=60_000)
    assert review.labels.labeled == 94
