"""Who may use the console: by which names, from which origins."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers
from websockets.exceptions import InvalidStatus

from mainspring.console.web.guard import HEADERS, Names
from tests.console.web.served import Start
from tests.patience import PATIENCE_S

NAMES = Names(["console.example", "fd00::1"])


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8003", "LOCALHOST:1", "127.0.0.1:8003", "10.1.2.3", "[::1]:8003", "[::1]"),
        *("console.example", "Console.Example:443"),
    ],
)
def test_names_that_are_known(host: str) -> None:
    assert NAMES.known(host)
    assert not NAMES.problem(Headers({"host": host}))


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "localhost.evil.example:8003", "127.0.0.1.evil.example", "localhost:8003@evil"),
        *("evil@localhost", "localhost/", "localhost:port", "127.0.0.1:99999", "[::1", "local host", "::1"),
        *("127.1", "0x7f.1", "2130706433", "127.0.0.1\t"),
    ],
)
def test_names_that_are_not(host: str) -> None:
    assert not NAMES.known(host)
    assert "hosts" in NAMES.problem(Headers({"host": host}))


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8003", "http://localhost:8003"),
        ("127.0.0.1:8003", "http://127.0.0.1:8003"),
        ("[::1]:8003", "http://[::1]:8003"),
        ("console.example", "https://console.example"),
        ("127.0.0.1:8003", "https://console.example"),
        ("console.example:8003", "https://console.example:8443"),
    ],
)
def test_a_page_of_its_own_may_use_it(host: str, origin: str) -> None:
    assert not NAMES.problem(Headers({"host": host, "origin": origin}))


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "null", "", "http://localhost:8004", "http://127.0.0.1:8003", "file://"),
        *("https://localhost:8004", "https://evil.example", "localhost:8003", "http://localhost:8003/x"),
        *("https://console.example@evil.example", "http://console.example"),
    ],
)
def test_a_page_of_another_site_may_not(origin: str) -> None:
    assert "page" in NAMES.problem(Headers({"host": "localhost:8003", "origin": origin}))


def test_requests_that_another_site_causes_are_refused_but_links_are_not() -> None:
    there = {"host": "localhost:8003", "sec-fetch-site": "cross-site"}
    assert NAMES.problem(Headers({**there, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}))
    assert NAMES.problem(Headers({**there, "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}))
    assert not NAMES.problem(Headers({**there, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}))
    assert not NAMES.problem(Headers({**there, "sec-fetch-site": "same-origin"}))


def test_several_hosts_are_refused() -> None:
    twice = Headers(raw=[(b"host", b"localhost"), (b"host", b"localhost")])
    assert NAMES.problem(twice)


@pytest.mark.parametrize("path", ["/", "/api/console", "/api/cluster", "/nothing"])
def test_every_answer_has_the_headers(start: Start, path: str) -> None:
    console = start()
    for host in ("localhost", "evil.example"):
        status, headers, body = console.ask(path, Host=host)
        assert (status == 403) == (host == "evil.example"), body
        for name, value in HEADERS.items():
            assert headers[name.lower()] == value
        assert headers["cache-control"] in {"no-store", "no-cache"}
        assert "server" not in headers


def test_a_foreign_page_gets_no_websocket(start: Start) -> None:
    console = start()
    for origin, host in (("http://evil.example", ""), (None, "evil.example")):
        with pytest.raises(InvalidStatus) as refused, console.page(host=host, origin=origin):
            pass
        assert refused.value.response.status_code == 403
    with console.page(origin=f"http://127.0.0.1:{console.port}") as page:
        page.ping().wait(PATIENCE_S)


def test_a_foreign_page_can_change_nothing(start: Start) -> None:
    console = start()
    for path in ("/api/operate", "/api/replay"):
        assert console.ask(path, {}, Origin="http://evil.example")[0] == 403
    assert not console.source.commands
    assert not console.source.sought
