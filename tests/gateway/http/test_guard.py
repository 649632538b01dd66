"""Pages of other sites change nothing; programs are asked nothing, by whatever name they call."""

from __future__ import annotations

import pytest

from mainspring.gateway.http.server import PageGuard
from tests.gateway.http.conftest import Served
from tests.gateway.http.raw import Peer

LOCAL = "127.0.0.1:8000"
CHANGES = [
    "/v2/repository/models/r5/load",
    "/v2/repository/models/r5/unload",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/double/trace/setting",
    "/v2/systemsharedmemory/region/x/register",
    "/v2/cudasharedmemory/unregister",
]


@pytest.mark.parametrize(
    ("host", "said", "let"),
    [
        (LOCAL, {}, True),
        ("mainspring.default.svc:8000", {}, True),
        ("evil.example", {}, True),
        (LOCAL, {"origin": "http://127.0.0.1:8000"}, True),
        (LOCAL, {"sec-fetch-site": "same-origin"}, True),
        ("Gate.Example", {"origin": "http://gate.example"}, True),
        (LOCAL, {"origin": "http://evil.example"}, False),
        (LOCAL, {"origin": "http://127.0.0.1:9000"}, False),
        (LOCAL, {"origin": "null"}, False),
        (LOCAL, {"sec-fetch-site": "cross-site"}, False),
        (LOCAL, {"sec-fetch-site": "same-site"}, False),
        (LOCAL, {"referer": "http://evil.example/"}, False),
        ("evil.example:8000", {"origin": "http://evil.example:8000"}, False),
        ("evil.example:8000", {"sec-fetch-site": "same-origin"}, False),
    ],
)
def test_who_may_change_something(host: str, said: dict[str, str], let: bool) -> None:
    headers = {name.encode(): value.encode() for name, value in {"host": host, **said}.items()}
    assert (PageGuard(("gate.example",)).problem(headers) == "") is let


@pytest.mark.parametrize("path", CHANGES)
def test_another_sites_page_changes_nothing(served: Served, path: str) -> None:
    with Peer(served.host) as peer:
        foreign = {
            "origin": "http://evil.example",
            "content_type": "text/plain",
            "sec_fetch_site": "cross-site",
        }
        reply = peer.ask("POST", path, b"{}", **foreign)
        assert reply.status == 403
        assert "http_hosts" in reply.json["error"], "and how a page of its own may"
        assert peer.ask("POST", path, b"{}").status != 403
