"""The page in headless Chromium: a form is filled, a run is watched, an error is seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from phloem.server.http.keys import hash_key
from tests.server.harness import Running, serving, tiny
from tests.server.programs.samples import PROGRAMS

playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(tiny(), PROGRAMS) as running:
        yield running


def open_page(browser: Any, server: Running) -> Any:
    page = browser.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.goto(server.url)
    return page


def test_a_program_is_run_from_its_form(browser: Any, server: Running) -> None:
    """Filling the form and pressing Run shows the steps' text and the value."""
    page = open_page(browser, server)
    story = page.locator('[data-program="story"]')
    story.locator('[name="topic"]').fill("the sea")
    story.locator('[name="length"]').select_option('"long"')
    story.get_by_role("button", name="Run").click()
    playwright.expect(story.locator(".outcome")).to_contain_text("long: ", timeout=10_000)
    playwright.expect(story.locator(".steps li")).to_have_count(2)
    assert "title" in story.locator(".steps .name").first.inner_text()
    assert page.problems == []


def test_an_error_shows_its_message_and_place(browser: Any, server: Running) -> None:
    """A failing program shows type, message, file and line."""
    page = open_page(browser, server)
    broken = page.locator('[data-program="broken"]')
    broken.locator('[name="key"]').fill("unknown")
    broken.get_by_role("button", name="Run").click()
    outcome = broken.locator(".outcome.failed")
    playwright.expect(outcome).to_contain_text("KeyError: 'unknown'", timeout=10_000)
    playwright.expect(outcome).to_contain_text("samples.py:")


def test_stop_ends_the_run(browser: Any, server: Running) -> None:
    """Tokens come in while the run goes on; Stop frees its place."""
    page = open_page(browser, server)
    endless = page.locator('[data-program="endless"]')
    endless.get_by_role("button", name="Run").click()
    playwright.expect(endless.locator(".steps .text")).not_to_be_empty(timeout=10_000)
    endless.get_by_role("button", name="Stop").click()
    playwright.expect(endless.locator(".outcome")).to_contain_text("stopped")
    server.wait_idle(3)


def test_a_key_opens_the_page(browser: Any, tmp_path: Any) -> None:
    """With keys the page shows programs once a good key is typed."""
    file = tmp_path / "keys"
    file.write_text(hash_key("a", "good-key"))
    with serving(tiny(), PROGRAMS, api_key_file=file) as server:
        page = open_page(browser, server)
        playwright.expect(page.locator("#notice")).to_contain_text("API key")
        page.locator("#key-text").fill("good-key")
        page.get_by_role("button", name="Use").click()
        playwright.expect(page.locator(".program").first).to_be_visible()
