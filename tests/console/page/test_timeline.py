"""The timeline under the hand: it stands still, moves, zooms, goes back, and follows again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.console.page.conftest import Open, stop
from tests.console.page.live import Site

if TYPE_CHECKING:
    from playwright.sync_api import Page

PLACE = ".controls output"


def changed(page: Page, before: str) -> str:
    """Wait until another stretch of time is shown; return what the page says of it."""
    page.wait_for_function(
        "([where, before]) => document.querySelector(where).textContent !== before", arg=[PLACE, before]
    )
    return page.inner_text(PLACE)


def test_it_is_moved_by_buttons_keys_and_wheel(open_page: Open, site: Site) -> None:
    site.load()
    page = open_page("#/schedule")
    assert page.inner_text(PLACE) == "the last 1.0 s"
    canvas = page.locator(".timeline canvas")
    canvas.focus()
    page.keyboard.press("-")
    assert changed(page, "the last 1.0 s") == "the last 1.5 s"
    page.keyboard.press(" ")
    page.get_by_role("button", name="Go live").wait_for()
    still = changed(page, "the last 1.5 s")
    page.keyboard.press("ArrowLeft")
    earlier = changed(page, still)
    assert earlier < still
    canvas.hover()
    page.mouse.wheel(0, -400)
    closer = changed(page, earlier)
    assert closer.endswith("ms")
    page.keyboard.press("End")
    page.get_by_role("button", name="Pause").wait_for()


def test_a_stretch_that_stands_still_keeps_its_actions(open_page: Open, site: Site) -> None:
    site.load()
    page = open_page("#/schedule")
    page.locator("table.acts .mark[data-is=in_time]").first.wait_for()
    stop(page)
    before = page.inner_text("table.acts tbody")
    at = page.inner_text("#clock")
    page.wait_for_function("at => document.querySelector('#clock').textContent !== at", arg=at)
    assert page.inner_text("table.acts tbody") == before


def test_an_action_is_chosen_with_the_keyboard(open_page: Open, site: Site) -> None:
    site.load()
    page = open_page("#/schedule/worker-0")
    page.locator("table.acts tbody tr").first.wait_for()
    page.locator(".timeline canvas").focus()
    page.keyboard.press(",")
    box = page.locator("section[aria-label='Chosen action']")
    box.wait_for()
    first = box.inner_text()
    page.keyboard.press(",")
    page.wait_for_function(
        "before => document.querySelector(\"section[aria-label='Chosen action']\").innerText !== before",
        arg=first,
    )
    assert "worker-0" in box.inner_text()
