"""Bounds of connections: how many, how long, how much; and how the console stops."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from contextlib import ExitStack

import pytest
from websockets.exceptions import ConnectionClosed

from mainspring.console.config import ConsoleConfig
from mainspring.console.server import listen
from tests.console.web.served import Console, Start, said, say
from tests.patience import PATIENCE_S


def _connect(console: Console) -> socket.socket:
    return socket.create_connection(("127.0.0.1", console.port), PATIENCE_S)


def _ended(connection: socket.socket) -> bool:
    """Return whether the console closes a connection, without a word or with one."""
    connection.settimeout(PATIENCE_S)
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def test_a_taken_address_is_an_error(start: Start) -> None:
    console = start()
    with pytest.raises(OSError, match="in use"):
        listen(console.address)


@pytest.mark.parametrize("address", ["http://[::1]:0", "http://*:0"])
def test_other_addresses_work(address: str) -> None:
    listener, shown = listen(address)
    with listener:
        port = listener.getsockname()[1]
        assert shown == address.replace("*", "0.0.0.0").replace(":0", f":{port}").replace(
            "0.0.0.0:0", "0.0.0.0"
        )


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8003", "http://:1", "http://x", "ftp://x:1", "http://x:99999"]
)
def test_an_address_that_is_none_is_an_error(address: str) -> None:
    with pytest.raises(ValueError, match="write it like http"):
        ConsoleConfig(address=address)


def test_a_connection_that_asks_for_nothing_is_closed(start: Start) -> None:
    console = start(header_timeout_ms=1_000.0)
    with _connect(console) as silent, _connect(console) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        assert _ended(silent)
        assert _ended(slow)
    assert console.ask("/api/console")[0] == 200


def test_nor_is_a_later_request_that_does_not_come_whole(start: Start) -> None:
    console = start(header_timeout_ms=1_000.0)
    with _connect(console) as slow:
        slow.sendall(b"GET /api/console HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(65_536).startswith(b"HTTP/1.1 200 ")
        slow.sendall(b"GET ")
        assert _ended(slow)


def test_what_has_asked_is_kept(start: Start) -> None:
    console = start(header_timeout_ms=1_000.0)
    kept = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE_S)
    with contextlib.closing(kept), console.page() as page:
        kept.connect()
        connection = kept.sock
        for pause_s in (1.2, 0.0):
            kept.request("GET", "/api/console")
            assert kept.getresponse().read().startswith(b'{"head":')
            assert kept.sock is connection, "the client had to connect again"
            say(page, show="nothing")
            said(page)
            time.sleep(pause_s)


def test_a_body_that_does_not_come_is_not_waited_for(start: Start) -> None:
    console = start(header_timeout_ms=1_000.0)
    head = (
        b"POST /api/replay HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 9\r\n\r\n{"
    )
    with _connect(console) as slow:
        slow.sendall(head)
        assert b" 408 " in slow.recv(65_536).partition(b"\r\n")[0]


def test_more_connections_than_may_be_are_closed(start: Start) -> None:
    console = start(max_connections=3, max_pages=1)
    with ExitStack() as open_ones:
        for _ in range(3):
            asking = open_ones.enter_context(_connect(console))
            asking.sendall(b"POST /api/replay HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        beyond = open_ones.enter_context(_connect(console))
        assert _ended(beyond)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            assert console.ask("/api/console")[0] == 200
            return
        except ConnectionError:
            continue  # the three are not gone yet
    pytest.fail("connections that ended are still counted")


def test_one_that_asks_for_nothing_makes_room(start: Start) -> None:
    console = start(max_connections=3, max_pages=1)
    with ExitStack() as open_ones:
        silent = [open_ones.enter_context(_connect(console)) for _ in range(3)]
        assert console.ask("/api/console")[0] == 200
        assert _ended(silent[0])


def test_large_heads_are_refused(start: Start) -> None:
    console = start(max_header_bytes=4_096)
    with _connect(console) as large:
        large.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000)
        with contextlib.suppress(ConnectionResetError):  # what it did not read any more
            assert large.recv(65_536).startswith(b"HTTP/1.1 400 ")
        assert _ended(large)


def test_large_bodies_are_refused(start: Start) -> None:
    console = start(max_message_bytes=1_000)
    status, _, body = console.ask("/api/replay", b" " * 1_001 + b"{}")
    assert status == 413, body
    assert b"1000" in body


def test_large_messages_end_their_page(start: Start) -> None:
    console = start(max_message_bytes=1_000)
    with console.page() as page:
        say(page, show="nothing", params={"x": "x" * 2_000})
        with pytest.raises(ConnectionClosed):
            page.recv(timeout=PATIENCE_S)
        assert page.close_code == 1009


def test_fragments_without_end_end_their_page(start: Start) -> None:
    console = start()
    with console.page() as page:
        with contextlib.suppress(ConnectionClosed):
            page.send("" for _ in range(100_000))
        with pytest.raises(ConnectionClosed):
            page.recv(timeout=PATIENCE_S)
        # The reset that follows may overtake the reason: the page was still sending.
        assert page.close_code in (1009, 1006)


def test_a_message_may_come_in_fragments(start: Start) -> None:
    console = start()
    with console.page() as page:
        page.send(iter(['{"show": ', '"nothing"', "}"]))
        assert "error" in said(page)


def test_pages_beyond_the_bound_are_told_so(start: Start) -> None:
    console = start(max_pages=1)
    with console.page() as first:
        say(first, show="nothing")
        said(first)
        with console.page() as second:
            assert "pages are open" in said(second)["error"]["text"]
            with pytest.raises(ConnectionClosed):
                second.recv(timeout=PATIENCE_S)
            assert second.close_code == 1013
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with console.page() as third:
            say(third, show="nothing")
            if "there is no show" in said(third)["error"]["text"]:
                return
    pytest.fail("a page that ended is still counted")


def test_a_stop_ends_pages_and_idle_connections(start: Start) -> None:
    console = start(stop_timeout_ms=1_000.0)
    with console.page() as page, _connect(console) as idle:
        say(page, show="nothing")
        said(page)
        console.stop()
        with pytest.raises(ConnectionClosed):
            page.recv(timeout=PATIENCE_S)
        assert page.close_code in {1001, 1012}
        assert _ended(idle)
