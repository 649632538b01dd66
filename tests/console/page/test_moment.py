"""Why did it happen? A cursor over all charts, a second's requests and schedule, and the run at a glance."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING, Any

from tests.console.page.conftest import Open
from tests.console.page.live import Site, wait_until
from tests.console.played import playing, replay, seek
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


def settled(url: str) -> Any:
    """Return the cluster once a console of a recorded run shows the run's end; None before."""
    with urllib.request.urlopen(f"{url}/api/cluster", timeout=PATIENCE_S) as reply:
        found = json.load(reply)
    there = found["head"]["state"] == "recorded" and found["head"]["now_ns"] >= replay(url)["last_ns"]
    return found["data"] if there else None


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


def test_a_link_to_a_second_of_a_recorded_run_shows_its_requests(open_page: Open, site: Site) -> None:
    site.load()
    rejected_second(site)
    site.quiet()
    with playing(site.events) as url:
        wait_until(lambda: whole(url), "the whole run")
        seek(url, playing=False, at_ns=replay(url)["last_ns"])
        wait_until(lambda: settled(url) is not None, "the run's end")
        rejected = settled(url)["series"]["rejected"]
        page = open_page("#/cluster?window=5min", url=url)
        choose(page, next(ago for ago, number in enumerate(reversed(rejected)) if number))
        said = page.locator("#moment [role=status]", has_text="requests ended")
        text = said.inner_text()
        assert not text.startswith("0 ")
        # Which of them comes first hangs on which of the two the page knew first.
        page.wait_for_url(lambda url: {"at", "moment"} <= set(re.findall(r"[?&](\w+)=", url)))
        link = page.url.partition("/#")[2]
        seek(url, playing=False, at_ns=replay(url)["first_ns"])
        fresh = open_page(f"#{link}", url=url)
        fresh.locator("#moment [role=status]", has_text=text).wait_for()


def test_a_model_of_the_chosen_second_filters_its_requests(open_page: Open, site: Site) -> None:
    site.load()
    rejected_second(site)
    site.quiet()
    page = open_page("#/cluster?window=5min")
    choose(page, rejected_second(site))
    moment = page.locator("#moment")
    moment.locator("table.requests tbody tr").first.wait_for()
    name = moment.locator("table[aria-label='That second by model'] tbody th").last.inner_text()
    moment.get_by_role("button", name=name, exact=True).click()
    moment.get_by_text(f"Only requests for {name}.").wait_for()
    assert set(moment.locator("table.requests tbody tr td:nth-child(3)").all_inner_texts()) == {name}
    page.wait_for_url(f"**model={name}*")
    moment.get_by_role("button", name="All models").click()
    moment.get_by_text("Only requests for").wait_for(state="hidden")
    assert "model=" not in page.url


def test_what_happened_stays_within_its_box(open_page: Open) -> None:
    page = open_page("#/cluster")
    wide = page.evaluate(
        """async () => {
            const { chart } = await import('./parts/chart.js');
            const { Cursor } = await import('./parts/cursor.js');
            const holder = document.querySelector('main').appendChild(document.createElement('div'));
            holder.className = 'tall';
            const cursor = new Cursor(() => {});
            const plot = chart(holder, { cursor, axis: 'x', label: 'x', unit: (value) => `${value}/s`,
                layers: [{ name: 'offered', colour: 'ink', line: true, pick: (series) => series.offered }] });
            const head = { now_ns: 3e9, unix_ns: 1.7e18 };
            const text = 'slow: INFER 1 of ' + 'a_model_with_a_long_name_'.repeat(40) + ' took 2,010.0 ms';
            const happenings = Array(9).fill({ at_ns: 1.5e9, kind: 'slow', worker: 'worker-0', text });
            plot.set({ first_ns: 0, offered: [1, 2, 3] }, 3, head, null, happenings);
            cursor.move(1e9);
            await new Promise((resolve) => setTimeout(resolve, 300));
            const box = holder.querySelector('.tip');
            const edge = box.getBoundingClientRect();
            const out = [...box.querySelectorAll('dd, li')].filter((each) => {
                const one = each.getBoundingClientRect();
                const within = one.left >= edge.left && one.right <= edge.right;
                return !within || each.scrollWidth > each.clientWidth; });
            return [out.map((each) => each.innerText), box.innerText, edge.height]; }"""
    )
    assert wide[0] == []
    assert wide[2] < 480, "four long sentences leave room on a small screen"
    assert "2/s" in wide[1]
    assert "and 5 more" in wide[1]


def test_no_hatching_runs_through_what_is_written(open_page: Open) -> None:
    page = open_page("#/cluster")
    dots = page.evaluate(
        """async () => {
            const { chart } = await import('./parts/chart.js');
            const { Cursor } = await import('./parts/cursor.js');
            const holder = document.querySelector('main').appendChild(document.createElement('div'));
            holder.className = 'tall';
            const layer = { name: 'offered', colour: 'ink', line: true, pick: (series) => series.offered };
            const plot = chart(holder, { cursor: new Cursor(() => {}), axis: 'requests', label: 'x',
                unit: (value) => `${value}/s`, layers: [layer] });
            const canvas = holder.querySelector('canvas');
            const copy = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
            const painted = async (offered) => {
                plot.set({ first_ns: 0, offered }, 60, { now_ns: 3e9, unix_ns: 1.7e18 });
                await new Promise((resolve) => setTimeout(resolve, 900));
                copy.canvas.width = canvas.width;
                copy.canvas.height = canvas.height;
                copy.drawImage(canvas, 0, 0);
                const scale = canvas.width / canvas.clientWidth;
                return (x, y, wide, high) => copy
                    .getImageData(x * scale, y * scale, wide * scale, high * scale)
                    .data.filter((value, index) => index % 4 === 3 && value).length; };
            const wide = (text) => {
                copy.font = `11px ${getComputedStyle(document.body).fontFamily}`;
                return copy.measureText(text).width; };
            const known = (await painted(Array(60).fill(null)))(56, 10, wide('requests') + 4, 13);
            const inked = await painted([]);
            const left = (54 + canvas.clientWidth - 8 - wide('not known')) / 2;
            const above = (canvas.clientHeight - 12) / 2 - 15;
            return { known, unknown: inked(56, 10, wide('requests') + 4, 13),
                hatching: inked(54 + wide('requests') + 40, 10, 100, 13),
                before: inked(left - 3, above, 2, 12),
                words: inked(left, above, wide('not known'), 12) }; }"""
    )
    assert dots["known"], "the axis is written"
    assert dots["unknown"] == dots["known"]
    assert dots["hatching"], "what is not known is hatched"
    assert dots["words"], "and the words are there"
    assert not dots["before"], "nothing runs into them"
