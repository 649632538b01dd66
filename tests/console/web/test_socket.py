"""A page's WebSocket: one show at a time, as fast as the page draws."""

from __future__ import annotations

import json
import time
import zlib
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from mainspring.console.web.shows import SHOWS
from mainspring.console.web.socket import AHEAD
from tests.console.web.counting import Changing, Counting
from tests.console.web.served import Start, said, say
from tests.patience import PATIENCE_S


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting()
    monkeypatch.setitem(SHOWS, "counting", found.show)
    return found


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> Changing:
    found = Changing()
    monkeypatch.setitem(SHOWS, "changing", found.show)
    return found


def drawn(page: ClientConnection) -> dict[str, Any]:
    """Return the next picture, and say that it was seen."""
    picture = said(page)
    assert "error" not in picture, picture
    say(page, seen=picture["n"])
    return picture


def until(page: ClientConnection, value: object) -> dict[str, Any]:
    """Draw pictures until one shows this."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        picture = drawn(page)
        if picture.get("data") == value:
            return picture
    raise AssertionError(f"{value} was never shown")


def test_a_picture_says_what_it_is_of(start: Start, counting: Counting) -> None:
    counting.value = {"a": 1}
    with start().page() as page:
        say(page, show="counting")
        picture = drawn(page)
    assert picture["show"] == "counting"
    assert picture["params"] == {"of": "all"}
    assert picture["head"]["state"] == "live"
    assert picture["data"] == {"a": 1}
    assert "replay" not in picture


def test_what_did_not_change_is_not_sent_again(start: Start, counting: Counting) -> None:
    with start().page() as page:
        say(page, show="counting")
        first, second = drawn(page), drawn(page)
        assert "data" in first
        assert "data" not in second
        assert second["same"] is True
        assert second["n"] > first["n"]
        assert second["head"]
        counting.value = 7
        until(page, 7)
        # Another show of the same data is another picture, which the page does not have.
        say(page, show="counting", params={"of": "some"})
        while (picture := drawn(page))["params"] != {"of": "some"}:
            pass
        assert picture["data"] == 7


def test_a_page_that_draws_nothing_gets_nothing_more_and_then_the_newest(
    start: Start, counting: Counting
) -> None:
    console = start(update_interval_ms=5.0)
    with console.page() as page, console.page() as other:
        say(page, show="counting")
        behind = [said(page) for _ in range(AHEAD)]
        say(other, show="counting", params={"of": "others"})
        for counting.value in range(1, 20):
            drawn(other)
        with pytest.raises(TimeoutError):
            page.recv(timeout=0.05)
        say(page, seen=behind[-1]["n"])
        assert said(page)["data"] >= 18, "pictures were queued for it"


def test_a_page_shows_one_thing_at_a_time(start: Start, counting: Counting, changing: Changing) -> None:
    with start().page() as page:
        say(page, show="counting")
        drawn(page)
        say(page, show="changing")
        while drawn(page)["show"] != "changing":
            pass
        assert all(drawn(page)["show"] == "changing" for _ in range(5))


def test_a_page_may_ask_for_fewer(start: Start, counting: Counting) -> None:
    console = start(update_interval_ms=10.0)
    with console.page() as seldom, console.page() as often:
        say(seldom, show="counting", params={"of": "seldom"}, every_ms=3_600_000)
        drawn(seldom)
        say(often, show="counting")
        for _ in range(20):
            drawn(often)
        with pytest.raises(TimeoutError):
            seldom.recv(timeout=0)
        # What it asks for next does not wait for that.
        say(seldom, show="counting", every_ms=10)
        assert drawn(seldom)["params"] == {"of": "all"}


def test_a_page_may_pause(start: Start, counting: Counting) -> None:
    console = start(update_interval_ms=10.0)
    with console.page() as page, console.page() as other:
        say(page, show="counting")
        drawn(page)
        say(page, pause=True)
        say(page, show="nothing")
        while "error" not in said(page):
            pass  # pictures from before the pause
        say(page, show="counting")
        say(other, show="counting", params={"of": "others"})
        for _ in range(10):
            drawn(other)
        with pytest.raises(TimeoutError):
            page.recv(timeout=0)
        say(page, pause=False)
        drawn(page)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('{"show": "cuonting"}', "did you mean 'counting'"),
        ('{"show": "counting", "params": {"off": "x"}}', "did you mean 'of'"),
        ('{"show": "counting", "params": {"of": 3}}', "of: expected `str`, got `int`"),
        ('{"show": "memory"}', "needs 'worker'"),
        ('{"show": "models", "params": {"limit": 201}}', "limit: expected `int` <= 200"),
        ('{"show": "models", "params": {"sort": "weight"}}', "sort"),
        ('{"show": "schedule", "params": {"from_ns": 1}}', "both from_ns and to_ns"),
        ('{"show": "schedule", "params": {"from_ns": 2, "to_ns": 1}}', "must not be after"),
        ('{"shows": "counting"}', "did you mean 'show'"),
        ('{"show": "counting", "every_ms": -1}', "every_ms"),
        ('{"seek": {"speed": 0}}', "speed is 0"),
        ('{"show": 3}', "show: expected"),
        ("[]", "Expected `object`"),
        ("{", "not a JSON"),
        ("", "not a JSON"),
    ],
)
def test_what_is_wrong_is_told_and_ends_nothing(
    start: Start, counting: Counting, message: str, words: str
) -> None:
    with start().page() as page:
        page.send(message)
        assert words in said(page)["error"]["text"]
        say(page, show="counting")
        drawn(page)


def test_bytes_that_are_no_text_are_told(start: Start, counting: Counting) -> None:
    with start().page() as page:
        page.send(b'{"show": "\xff"}')
        assert "error" in said(page)
        page.send(b'{"show": "counting"}')
        drawn(page)


def test_what_is_not_there_is_told_once_and_shown_when_it_is(start: Start, counting: Counting) -> None:
    counting.missing = "there is no such model"
    console = start(update_interval_ms=10.0)
    with console.page() as page, console.page() as other:
        say(page, show="counting")
        told = {"text": "there is no such model", "show": "counting", "code": "unknown"}
        assert said(page)["error"] == told
        say(other, show="models", params={"limit": 0})
        said(other)
        calls = counting.calls
        while counting.calls < calls + 5:
            time.sleep(0.01)
        with pytest.raises(TimeoutError):
            page.recv(timeout=0)
        counting.missing, counting.value = "", 3
        assert drawn(page)["data"] == 3


def test_a_query_that_fails_takes_nothing_else_with_it(
    start: Start, counting: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    counting.fails = True
    console = start()
    with console.page() as page:
        say(page, show="counting")
        assert "log says why" in said(page)["error"]["text"]
        assert "KeyError" in caplog.text
        counting.fails = False
        drawn(page)
    counting.fails = True
    status, _, body = console.ask("/api/counting?of=others")
    assert status == 500, body
    assert len(caplog.records) == 2, "an error that comes ten times a second is logged ten times a second"


def test_changes_suffice_for_who_has_the_rest(start: Start, changing: Changing) -> None:
    console = start(update_interval_ms=10.0)
    with console.page() as page:
        say(page, show="changing")
        versions = [0]
        for _ in range(5):
            picture = drawn(page)
            assert picture["data"]["whole"] == (len(versions) == 1)
            versions.append(picture["data"]["version"])
        assert changing.afters[:5] == [None, *versions[1:5]]
        # Nothing that was told before holds in another epoch.
        console.source.epoch += 1
        while not (picture := drawn(page))["data"]["whole"]:
            pass
        assert not drawn(page)["data"]["whole"]


def test_what_many_pages_show_is_made_once(start: Start, counting: Counting, changing: Changing) -> None:
    console = start(update_interval_ms=100.0)
    with ExitStack() as open_pages:
        pages = [open_pages.enter_context(console.page()) for _ in range(10)]
        for page in pages:
            say(page, show="counting")
        for _ in range(10):
            for page in pages:
                drawn(page)
    assert counting.calls <= 50, f"made {counting.calls} times for 10 pages that each had 10 pictures of it"


def test_costly_shows_take_a_share_of_the_time(start: Start, counting: Counting) -> None:
    counting.cost_ns = 20_000_000
    console = start(update_interval_ms=10.0, query_share=0.2)
    with ExitStack() as open_pages:
        pages = [open_pages.enter_context(console.page()) for _ in range(4)]
        for number, page in enumerate(pages):
            say(page, show="counting", params={"of": str(number)})
        for page in pages:
            drawn(page)
        begin, calls = time.monotonic(), counting.calls
        for _ in range(3):
            for page in pages:
                drawn(page)
        took_s = time.monotonic() - begin
        share = (counting.calls - calls) * 0.02 / took_s
    assert share < 0.4


def test_pictures_come_compressed_to_who_wants_that(start: Start, counting: Counting) -> None:
    counting.value = "x" * 10_000
    with start().page("/ws?deflate=1") as page:
        say(page, show="counting")
        data = page.recv(timeout=PATIENCE_S)
        assert isinstance(data, bytes)
        assert len(data) < 1_000
        picture = json.loads(zlib.decompress(data, -zlib.MAX_WBITS))
        assert picture["data"] == counting.value
        say(page, show="nothing")
        while isinstance(message := page.recv(timeout=PATIENCE_S), bytes):
            pass
        assert "error" in json.loads(message)


def test_a_page_that_goes_away_is_forgotten(start: Start, counting: Counting) -> None:
    console = start(update_interval_ms=10.0)
    with console.page() as page:
        say(page, show="counting")
        drawn(page)
        page.socket.close()
    with console.page() as other:
        say(other, show="counting", params={"of": "others"})
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            calls = counting.calls
            numbers = [drawn(other)["n"] for _ in range(5)]
            if counting.calls - calls <= 6 and numbers[-1] - numbers[0] == 4:
                return
    pytest.fail("pictures are still made for a page that is gone")
