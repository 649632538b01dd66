"""Why did it happen? A cursor over all charts, a second's requests and schedule, and the run at a glance."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING

from mainspring.experiments.bench.console_page import playing, replay, seek
from tests.console.page.conftest import Open
from tests.console.page.live import Site, wait_until
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHARTS = ".plot canvas[aria-roledescription=chart]"


def rejected_second(site: Site) -> int:
    """Return how long ago, in seconds, requests were rejected last; wait until some were."""

    def found() -> list[int]:
        rejected = site.api("cluster")["series"]["rejected"]
        return [ago for ago, number in enumerate(reversed(rejected)) if number]

    wait_until(lambda: bool(found()), "a second with rejections")
    return found()[0]


def whole(url: str) -> bool:
    """Return whether a console has gone through its run."""
    with urllib.request.urlopen(f"{url}/api/overview", timeout=PATIENCE_S) as reply:
        return bool(json.load(reply)["whole"])


def choose(page: Page, presses: int) -> None:
    """Move the cursor of the first chart to a second with the keyboard, and choose it."""
    page.locator(CHARTS).first.focus()
    page.keyboard.press("End")
    for _ in range(presses):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")


def test_a_spike_leads_to_its_requests_and_to_its_schedule(open_page: Open, site: Site) -> None:
    site.load()
    rejected_second(site)
    site.quiet()
    page = open_page("#/cluster?window=5min")
    canvas = page.locator(CHARTS).first
    canvas.focus()
    page.keyboard.press("End")
    tips = page.locator(".two .tip.on")
    tips.nth(1).wait_for()
    instants = {text.split(",")[0] for text in tips.locator("b").all_inner_texts()}
    assert tips.count() == 2, "one cursor over both charts"
    assert len(instants) == 1
    choose(page, rejected_second(site))
    moment = page.locator("#moment")
    moment.locator("table.requests .mark[data-is=rejected]").first.wait_for()
    page.wait_for_url("**moment=*")
    models = moment.locator("table[aria-label='That second by model'] tbody th").all_inner_texts()
    listed = moment.locator("table.requests tbody tr").first.locator("a").nth(1).inner_text()
    assert listed in models
    shown = moment.locator("h2").inner_text()
    page.reload()
    moment.locator("h2", has_text=shown).wait_for()
    moment.get_by_role("link", name="Schedule of that second").click()
    page.locator("h1", has_text="Schedule").wait_for()
    page.get_by_role("button", name="Go live").wait_for()
    assert shown.removeprefix("The second from ").split()[0] in page.inner_text(".controls output")


def test_a_second_is_let_go_again(open_page: Open, site: Site) -> None:
    site.load()
    wait_until(lambda: len(site.api("cluster")["series"]["offered"]) > 3, "some seconds")
    page = open_page("#/cluster")
    choose(page, 1)
    page.locator("#moment").wait_for()
    page.keyboard.press("Escape")
    page.locator("#moment").wait_for(state="hidden")
    assert "moment=" not in page.url
    site.quiet()


def test_a_burst_is_one_row_until_it_is_opened(open_page: Open) -> None:
    page = open_page("#/cluster")
    found = page.evaluate(
        """() => import('./parts/requests.js').then(({ folded }) => {
            const line = (id, model, detail) => ({ id, model, outcome: 'rejected', reason: 'x', detail });
            return folded([line('1', 'a', 'busy until +3.2 ms'), line('2', 'a', 'busy until +14 ms'),
                line('3', 'b', 'busy until +3 ms'), line('4', 'a', 'busy until +3 ms'),
                line('5', 'a', 'gone')])
                .map((one) => one.lines.map((each) => each.id)); })"""
    )
    assert found == [["1", "2"], ["3"], ["4"], ["5"]]


def test_the_run_at_a_glance_stands_above_the_slider_and_leads_into_it(open_page: Open, site: Site) -> None:
    site.load()
    rejected_second(site)
    site.quiet()
    with playing(site.events) as url:
        seek(url, playing=False)
        wait_until(lambda: whole(url), "the whole run")
        page = open_page("#/cluster", url=url)
        strip = page.get_by_role("img", name=re.compile("The run at a glance: .*[1-9]\\d* rejected"))
        strip.wait_for()
        before_ns = replay(url)["at_ns"]
        strip.click()
        wait_until(lambda: replay(url)["at_ns"] > before_ns, "the instant that was clicked")
