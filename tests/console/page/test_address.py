"""What is looked at is in the address: reload, back and a link that is sent to somebody show the same."""

from __future__ import annotations

import itertools
import re

from tests.console.page.conftest import Open, stop
from tests.console.page.live import Site, wait_until
from tests.console.played import playing, replay, seek

PLACE = ".controls output"
NAMES = [f"{stem}-{number}" for stem in ("resnet18", "digits", "vgg16", "squeezenet") for number in range(6)]


def test_the_window_of_the_cluster_is_kept_over_reload_link_and_back(open_page: Open, site: Site) -> None:
    page = open_page("#/cluster")
    page.get_by_role("button", name="5 min").click()
    page.wait_for_url("**window=5min**")
    page.reload()
    page.locator("button[aria-pressed=true]", has_text="5 min").wait_for()
    other = open_page("#/cluster?window=10s")
    other.locator("button[aria-pressed=true]", has_text="10 s").wait_for()
    other.locator(".rail a", has_text="Models").click()
    other.locator("h1", has_text="Models").wait_for()
    other.go_back()
    other.locator("button[aria-pressed=true]", has_text="10 s").wait_for()


def test_a_schedule_that_stands_still_is_the_same_for_whoever_opens_its_link(
    open_page: Open, site: Site
) -> None:
    site.load()
    page = open_page("#/schedule/worker-0")
    page.locator("table.acts .mark[data-is=in_time]").first.wait_for()
    stop(page)
    page.locator(".timeline canvas").focus()
    page.keyboard.press("+")
    page.keyboard.press(",")
    page.locator("section[aria-label='Chosen action']").wait_for()
    page.wait_for_url(re.compile("from=.*span=.*action="))
    shown = page.inner_text(PLACE)
    action = page.inner_text("section[aria-label='Chosen action'] p")
    other = open_page(page.url.split("/", 3)[3])
    for one in (other, page):
        if one is page:
            one.reload()
        one.get_by_role("button", name="Go live").wait_for()
        one.locator("section[aria-label='Chosen action'] p", has_text=action).wait_for()
        assert one.inner_text(PLACE) == shown
    site.quiet()


def test_a_recorded_instant_is_where_its_link_leads(open_page: Open, site: Site) -> None:
    site.load()
    site.quiet()
    with playing(site.events) as url:
        run = replay(url)
        there_ns = run["first_ns"] + (run["last_ns"] - run["first_ns"]) // 2
        seek(url, at_ns=there_ns, playing=False)
        page = open_page("#/models", url=url)
        page.wait_for_url("**at=*")
        link = page.url.split("/", 3)[3]
        assert link.startswith("#/models?")
        seek(url, at_ns=run["first_ns"], playing=True)
        open_page(link, url=url)
        wait_until(lambda: abs(replay(url)["at_ns"] - there_ns) < 1e6, "the instant of the link")
        assert not replay(url)["playing"]


def test_times_are_in_utc_where_that_is_chosen(open_page: Open, site: Site) -> None:
    page = open_page("#/cluster", zone="Asia/Kolkata")
    page.locator("#clock:not(:empty)").wait_for()
    head = "{ now_ns: 0, unix_ns: 25 * 3600e9 }"
    written = f"import('./text.js').then(({{ clock, when }}) => [clock(5e9, {head}), when(5e9, {head})])"
    assert page.inner_text("#zone") == "GMT+5:30"
    assert page.evaluate(written) == ["06:30:05", "1970-01-02 06:30:05 GMT+5:30"]
    page.click("#zone")
    page.wait_for_function("() => document.querySelector('#zone').textContent === 'UTC'")
    assert page.evaluate(written) == ["01:00:05", "1970-01-02 01:00:05 UTC"]
    page.reload()
    page.locator("#clock:not(:empty)").wait_for()
    assert page.inner_text("#zone") == "UTC"


def test_instants_come_back_from_the_address_as_they_went_in(open_page: Open) -> None:
    page = open_page("#/cluster")
    head = {"now_ns": 7_000_000_000, "unix_ns": 1_780_000_000_123_456_789}
    back = page.evaluate(
        """([head, at]) => import('./text.js').then(({ stamp, instant }) =>
            [stamp(at, head), instant(stamp(at, head), head), instant('yesterday', head)])""",
        [head, 6_999_000_000],
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", back[0])
    assert abs(back[1] - 6_999_000_000) < 2_000
    assert back[2] is None


def test_each_of_many_models_has_a_colour_of_its_own(open_page: Open) -> None:
    page = open_page("#/cluster")
    colours = page.evaluate(
        """names => import('./palette.js').then(({ learn, model }) => {
            learn(names); const first = names.map((name) => model(name));
            learn([...names].reverse()); return [first, names.map((name) => model(name))]; })""",
        NAMES,
    )
    assert colours[0] == colours[1], "the order in which they are met decides nothing"
    parts = [[int(text[at : at + 2], 16) for at in (1, 3, 5)] for text in colours[0]]
    nearest = min(
        sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
        for one, other in itertools.combinations(parts, 2)
    )
    assert nearest > 30
