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
