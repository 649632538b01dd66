"""The timeline under the hand: it stands still, moves, zooms, goes back, and follows again."""

from __future__ import annotations

import re
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


def actions(page: Page) -> list[str]:
    """Return the table's actions without their time of day, which follows a clock that may be set."""
    rows = page.locator("table.acts tbody tr").all_inner_texts()
    return [re.sub(r"\d+:\d\d:[\d.]+", "", text) for text in rows]


def test_a_stretch_that_stands_still_keeps_its_actions(open_page: Open, site: Site) -> None:
    site.load()
    page = open_page("#/schedule")
    page.locator("table.acts .mark[data-is=in_time]").first.wait_for()
    stop(page)
    before = actions(page)
    at = page.inner_text("#clock")
    page.wait_for_function("at => document.querySelector('#clock').textContent !== at", arg=at)
    assert actions(page) == before


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


JOINED = """async ([actions, lanes]) => {
  const { ID, LANE, joined } = await import("/parts/actions.js");
  return joined(actions, (action) => lanes[action[LANE]]).map(([load, infer]) => [load[ID], infer[ID]]);
}"""
"""Which LOADs the page joins with which INFERs by a line."""


def line(
    action_id: int, lane: int, kind: str, model: str, begin_ms: int, end_ms: int, status: str
) -> list[object]:
    """Return an action as the page gets it (`ActionLine`), done if it has a status and planned without."""
    begin_ns, end_ns = begin_ms * 10**6, end_ms * 10**6
    ran = [begin_ns, end_ns] if status else [None, None]
    times = 0, 0, begin_ns, begin_ns, end_ns, *ran
    return [action_id, lane, kind, model, 1, 1, [], *times, status, "", "", []]


def test_a_load_is_joined_with_the_first_infer_that_it_made_possible(open_page: Open, site: Site) -> None:
    page = open_page("#/schedule")
    # Lanes 0 and 1 are LOAD and EXEC of one worker, 2 is EXEC of another.
    actions = [
        line(1, 0, "LOAD", "a", 0, 10, "ok"),
        line(2, 1, "INFER", "a", 5, 8, "ok"),
        line(3, 2, "INFER", "a", 11, 12, "ok"),
        line(4, 1, "INFER", "b", 11, 12, "ok"),
        line(5, 1, "INFER", "a", 20, 25, "ok"),
        line(6, 1, "INFER", "a", 12, 18, "ok"),
        line(7, 0, "LOAD", "b", 10, 30, "engine_error"),
        line(8, 1, "INFER", "b", 31, 33, "ok"),
        line(9, 0, "LOAD", "a", 40, 50, ""),
        line(10, 1, "INFER", "a", 50, 55, ""),
    ]
    found = page.evaluate(JOINED, [actions, ["w0", "w0", "w1"]])
    assert sorted(found) == [[1, 6], [9, 10]]


DESCRIBED = """async ([action, lane]) => {
  const { described } = await import("/parts/action_list.js");
  return described(action, [lane], { now_ns: 1e9, unix_ns: 2e9 });
}"""
"""Names and values that describe an action."""


def test_a_load_says_why_it_was_sent_and_what_was_evicted_for_it(open_page: Open, site: Site) -> None:
    page = open_page("#/schedule")
    load = line(1, 0, "LOAD", "a", 0, 10, "ok")
    why = load.index("") + 1
    for text in ("", "for requests that wait, evicting b"):
        load[why] = text
        rows = page.evaluate(DESCRIBED, [load, {"worker": "w0", "executor": "LOAD"}])
        assert [value for name, value in rows if name == "Why"] == ([text] if text else [])


def test_an_action_says_what_of_it_the_device_and_the_host_took(open_page: Open, site: Site) -> None:
    page = open_page("#/schedule")
    lane = {"worker": "w0", "executor": "EXEC"}
    for device_ns, told in ((9_500_000, "9.50 ms on the device, 500 µs on the host"), (None, None)):
        action = [*line(1, 0, "INFER", "a", 0, 10, "ok"), device_ns]
        rows = dict(page.evaluate(DESCRIBED, [action, lane]))
        assert rows.get("Of these") == told
    assert "Of these" not in dict(page.evaluate(DESCRIBED, [line(1, 0, "INFER", "a", 0, 10, ""), lane]))
