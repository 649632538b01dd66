"""A recorded run on the page: the same views, and a bar that leads through it."""

from __future__ import annotations

from tests.console.page.conftest import Open
from tests.console.page.live import Site, wait_until
from tests.console.played import playing, replay


def test_a_recorded_run_is_looked_at_where_the_slider_stands(open_page: Open, site: Site) -> None:
    site.load()
    site.quiet()
    with playing(site.events) as url:
        page = open_page("#/cluster", url=url)
        page.locator("#link[data-state=recorded]").wait_for()
        slider = page.get_by_role("slider", name="Instant of the recorded run")
        slider.fill("9900")
        page.locator(".card").first.wait_for()
        assert page.locator(".card").count() == len(site.client.status().workers)
        run = replay(url)
        late_ns = run["first_ns"] + 0.9 * (run["last_ns"] - run["first_ns"])
        wait_until(lambda: replay(url)["at_ns"] > late_ns, "an instant near the end")
        run = replay(url)
        place = page.inner_text(".player output")
        slider.focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_function(
            "before => document.querySelector('.player output').textContent !== before", arg=place
        )
        wait_until(lambda: replay(url)["at_ns"] < run["at_ns"], "an earlier instant")
        page.goto(f"{url}/#/operate")
        page.locator(".why-not", has_text="recorded").wait_for()
        assert page.get_by_role("button", name="Pin", exact=True).is_disabled()


def test_a_phone_shows_the_whole_time_of_a_recorded_run(open_page: Open, site: Site) -> None:
    site.load()
    with playing(site.events) as url:
        page = open_page("#/cluster", 390, url=url)
        page.locator(".player output", has_text=" of ").wait_for()
        boxes = page.evaluate(
            """() => {
                const output = document.querySelector('.player output');
                output.textContent = '2026-11-28 18:51:32 GMT+05:30 \u00b7 15 min of 48 h';
                const parts = ['button', '.track', 'output', 'select'].map((each) => {
                    const box = document.querySelector(`.player ${each}`).getBoundingClientRect();
                    return { left: box.left, right: box.right, top: box.top, bottom: box.bottom }; });
                return [parts, output.scrollWidth - output.clientWidth, innerWidth]; }"""
        )
    parts, hidden, wide = boxes
    assert hidden <= 0
    assert all(each["left"] >= 0 and each["right"] <= wide for each in parts)
    for at, one in enumerate(parts):
        for other in parts[at + 1 :]:
            apart = one["right"] <= other["left"] or other["right"] <= one["left"]
            assert apart or one["bottom"] <= other["top"] or other["bottom"] <= one["top"]
