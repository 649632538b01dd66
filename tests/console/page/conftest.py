"""One cluster and one browser for all tests of the page; a page of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.console.page.live import CHROMIUM, FLAGS, Site, running
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Open = Callable[..., "Page"]
"""``open_page("#/memory", 1280, dark=False)`` returns a view's page, once it shows something."""


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A live cluster."""
    with running(tmp_path_factory.mktemp("console")) as found:
        yield found


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's chromium; the tests are skipped where there is none."""
    driver = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install .[dev]"
    )
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt install chromium")
    with driver.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Browser, site: Site) -> Iterator[Open]:
    """Return what opens views; at the end nothing may have gone wrong in any of them."""
    contexts = []
    complaints: list[str] = []

    def begin(hash_: str, width: int = 1280, *, dark: bool = False, url: str = "", zone: str = "") -> Page:
        height = 900 if width > 500 else 844
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            timezone_id=zone or None,
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_S * 1e3)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(f"{hash_}: {error}"))
        page.on("console", lambda said: _note(complaints, hash_, said))
        page.goto(f"{url or site.url}/{hash_}")
        page.wait_for_selector("main:not([aria-busy])")
        return page

    yield begin
    for context in contexts:
        context.close()
    assert complaints == [], "the browser complained"


def _note(complaints: list[str], place: str, said: Any) -> None:
    # The browser itself tells of requests that fail, as they do while a console is started again, and of
    # commands that are refused.
    failed = "ERR_CONNECTION" in said.text or said.location["url"].endswith("/api/operate")
    if said.type in ("error", "warning") and not failed:
        complaints.append(f"{place}: {said.text}")


def stop(page: Page) -> None:
    """Let the timeline stand still, and wait until the list of what is in sight changes no more."""
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Go live").wait_for()
    page.wait_for_function(
        """() => { const now = document.querySelector('table.acts tbody').innerText;
            const same = window.former === now; window.former = now;
            return same && !now.includes('planned') && !now.includes('running'); }""",
        polling=700,
    )
