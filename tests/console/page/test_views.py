"""Every view, in both themes and at both widths: it opens by its address, fits, and is accessible."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.page.conftest import Open
from tests.console.page.live import Site
from tests.console.page.test_moment import choose, rejected_second

pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install .[dev]"
)

VIEWS = {
    "#/cluster": "Cluster",
    "#/memory/worker-0": "Memory of worker-0",
    "#/worker/worker-1": "worker-1",
    "#/schedule": "Schedule",
    "#/schedule/worker-1": "Schedule of worker-1",
    "#/models?search=small&sort=demand&order=falling": "Models",
    "#/model/small-1": "small-1",
    "#/applications": "Applications",
    "#/request": "Requests",
    "#/request/last-rejected": "Request",
    "#/operate?model=large-1": "Operate",
}


def violations(page: Any) -> list[str]:
    """Return what axe finds, each with the elements that it is about."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {[node['html'][:160] for node in one['nodes'][:3]]}" for one in found]


def wait_until_it_fits(page: Any, hash_: str) -> None:
    """Wait until nothing is wider than the window; a canvas has its own width until it was laid out once."""
    from playwright.sync_api import TimeoutError as Overdue

    wide = """() => [...document.querySelectorAll('main *')]
        .filter((each) => each.getBoundingClientRect().right > innerWidth)
        .map((each) => each.outerHTML.slice(0, 200)).slice(0, 8)"""
    try:
        page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
    except Overdue as error:
        raise AssertionError(f"{hash_} is wider than the window: {page.evaluate(wide)}") from error


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_views_open_by_their_address_fit_and_are_accessible(
    open_page: Open, site: Site, width: int, dark: bool
) -> None:
    site.load()
    page = open_page("#/cluster", width, dark=dark)
    problems = {}
    for hash_, heading in VIEWS.items():
        page.goto(f"{site.url}/{hash_}")
        page.locator("h1", has_text=heading).wait_for()
        page.wait_for_selector("main:not([aria-busy])")
        if found := violations(page):
            problems[hash_] = found
        wait_until_it_fits(page, hash_)
        current = page.locator(".rail a[aria-current=page]")
        assert current.count() == 1, hash_
    assert problems == {}


def test_at_700_pixels_no_table_of_actions_is_cut(open_page: Open, site: Site) -> None:
    site.load()
    page = open_page("#/schedule", 700)
    page.locator("table.acts tbody tr").first.wait_for()
    hidden = """() => [...document.querySelectorAll('table.acts tbody td')].filter(
        (cell) => cell.getBoundingClientRect().right > innerWidth).length"""
    assert page.evaluate(hidden) == 0


def test_what_does_not_exist_is_said_in_one_sentence_and_nothing_else_is_shown(open_page: Open) -> None:
    page = open_page("#/cluster")
    told = {
        "#/nowhere": "There is no view nowhere; the views are cluster",
        "#/model/nothing-like-it": "there is no model 'nothing-like-it'",
        "#/worker/worker-77": "there is no worker 'worker-77'; there are: worker-0",
        "#/memory/worker-77": "there is no worker 'worker-77'; there are: worker-0",
    }
    for hash_, text in told.items():
        page.evaluate("hash => { location.hash = hash }", hash_)
        page.locator("#view.missing [role=status]", has_text=text).wait_for()
        assert page.locator("h1").all_inner_texts() == ["Not found"]
        assert page.locator("#view .panel").count() == 0
        assert page.locator("#notice").is_hidden()
        page.evaluate("location.hash = '#/cluster'")
        page.locator("h1", has_text="Cluster").wait_for()
        page.locator("#view .panel").first.wait_for()


def test_the_theme_is_the_systems_until_one_is_chosen_and_kept(open_page: Open) -> None:
    page = open_page("#/cluster", dark=True)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    night = page.evaluate(ground)
    button = page.locator("#theme")
    button.click()
    assert button.get_attribute("aria-label") == "Theme: light"
    day = page.evaluate(ground)
    assert day != night
    page.reload()
    assert page.evaluate(ground) == day


def test_the_keyboard_reaches_everything(open_page: Open) -> None:
    page = open_page("#/cluster")
    page.keyboard.press("/")
    page.keyboard.type("small-3")
    page.keyboard.press("Enter")
    page.locator("h1", has_text="Models").wait_for()
    page.locator(".models tbody a", has_text="small-3").wait_for()
    page.locator(".rail a", has_text="Memory").focus()
    page.keyboard.press("Enter")
    page.locator("h1", has_text="Memory of").wait_for()
    page.locator("[data-fact=free]", has_text="(").wait_for()
    page.locator(".page-map canvas").focus()
    page.keyboard.press("End")
    page.wait_for_function("() => document.querySelector('.said').textContent.startsWith('page')")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_long_name_of_a_model_hides_nothing_beside_it(open_page: Open, site: Site, width: int) -> None:
    site.load()
    name = "a_model_with_a_long_name_" * 5
    page = open_page("#/worker/worker-0", width)
    page.locator(".chips a").first.evaluate("(link, name) => { link.textContent = name; }", name)
    wait_until_it_fits(page, "#/worker/worker-0")
    page = open_page("#/cluster?window=5min", width)
    choose(page, rejected_second(site))
    button = page.locator("#moment button.textual").first
    button.evaluate("(button, name) => { button.textContent = name; }", name)
    share = "(cell) => cell.offsetWidth / cell.closest('.scroll').clientWidth"
    assert page.locator("#moment tbody th").first.evaluate(share) < 0.5, "numbers beside it are out of sight"
