"""Which pages of other sites may call, and what their browsers are told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mainspring.gateway.config import GatewayConfig
from tests.gateway.http.conftest import Served, faked
from tests.gateway.http.raw import Peer, Reply, infer_body, request

Fake = Callable[..., AbstractContextManager[Served]]
INFER = "/v2/models/double/infer"
PAGE, OTHER = "https://app.example.com", "https://evil.example.com"
CHANGING = (
    *("/v2/repository/models/double/load", "/v2/repository/models/double/unload", "/v2/logging"),
    *("/v2/trace/setting", "/v2/systemsharedmemory/region/r/register"),
)


@pytest.fixture(scope="module")
def opened() -> Iterator[Served]:
    with faked(http_cors_origins=(PAGE,), http_max_body_bytes=100_000) as served:
        yield served


def preflight(peer: Peer, path: str, origin: str, **headers: str) -> Reply:
    return peer.ask("OPTIONS", path, b"", origin=origin, access_control_request_method="POST", **headers)


def readable(reply: Reply) -> bool:
    return "access-control-allow-origin" in reply.headers


def test_it_is_off_by_default(served: Served) -> None:
    with Peer(served.host) as peer:
        assert preflight(peer, INFER, PAGE).status == 405
        reply = peer.ask("POST", INFER, infer_body(), origin=PAGE)
        assert (reply.status, readable(reply)) == (200, False)


def test_a_page_of_an_origin_that_is_named_may_ask_and_read(opened: Served) -> None:
    with Peer(opened.host) as peer:
        names = "authorization,content-type,inference-header-content-length,x-mainspring-slo-ms"
        reply = preflight(peer, INFER, PAGE, access_control_request_headers=names)
        assert (reply.status, reply.body) == (200, b"")
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert reply.headers["access-control-allow-methods"] == "post"
        assert reply.headers["access-control-allow-headers"] == names
        assert reply.headers["vary"] == "origin"
        reply = peer.ask("POST", INFER, infer_body(), origin=PAGE)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, PAGE)
        exposed = reply.headers["access-control-expose-headers"].split(", ")
        assert {"inference-header-content-length", "server-timing"} <= set(exposed)
        assert reply.headers["timing-allow-origin"] == PAGE
        for method, path in (("GET", "/v2"), ("GET", "/v2/models/double"), ("POST", "/v2/repository/index")):
            assert readable(peer.ask(method, path, origin=PAGE))


def test_errors_can_be_read_too(opened: Served) -> None:
    with Peer(opened.host) as peer:
        for path, body, status in (
            (INFER, b"{}", 400),
            ("/v2/models/nothing/infer", infer_body(), 404),
            ("/v2/models/reject/infer", infer_body(), 503),
            (INFER, bytes(200_000), 413),
        ):
            reply = peer.ask("POST", path, body, origin=PAGE)
            assert (reply.status, readable(reply)) == (status, True)
            assert "retry-after" in reply.headers["access-control-expose-headers"].split(", ")


def test_a_path_that_is_not_there_can_be_read_as_well(opened: Served) -> None:
    with Peer(opened.host) as peer:
        for path in ("/nothing", f"{INFER}s", "/v2/models"):
            reply = preflight(peer, path, PAGE, access_control_request_headers="authorization")
            assert (reply.status, reply.headers["access-control-allow-methods"]) == (200, "get, post")
            reply = peer.ask("POST", path, b"{}", origin=PAGE)
            assert (reply.status, readable(reply)) == (404, True)
            assert (preflight(peer, path, OTHER).status, readable(preflight(peer, path, OTHER))) == (
                404,
                False,
            )
            assert not readable(peer.ask("POST", path, b"{}", origin=OTHER))


def test_a_page_can_read_why_its_token_was_not_taken(fake: Fake, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    digest = hashlib.sha256(b"page").hexdigest()
    file.write_text(
        f'[[token]]\nname = "page"\nsha256 = "{digest}"\nmodels = ["double"]\nrate = 1\nburst = 1\n'
    )
    with fake(http_cors_origins=(PAGE,), token_file=str(file)) as served, Peer(served.host) as peer:
        assert preflight(peer, INFER, PAGE, access_control_request_headers="authorization").status == 200
        for path, shown, status in (
            (INFER, "", 401),
            (INFER, "Bearer nobody", 401),
            ("/v2/models/mute/infer", "Bearer page", 403),
            (INFER, "Bearer page", 200),
            (INFER, "Bearer page", 429),
        ):
            reply = peer.ask("POST", path, infer_body(), origin=PAGE, authorization=shown)
            assert (reply.status, readable(reply)) == (status, True)


def test_other_pages_may_not(opened: Served) -> None:
    with Peer(opened.host) as peer:
        for origin in (OTHER, "null", f"{PAGE}.evil.com", "http://app.example.com"):
            reply = preflight(peer, INFER, origin)
            assert (reply.status, readable(reply)) == (403, False)
            assert "not among http_cors_origins" in reply.json["error"]
            assert not readable(peer.ask("POST", INFER, infer_body(), origin=origin))
        assert not readable(peer.ask("POST", INFER, infer_body()))


@pytest.mark.parametrize("path", CHANGING)
def test_what_changes_something_is_for_no_page_of_another_site(opened: Served, path: str) -> None:
    with Peer(opened.host) as peer:
        assert (preflight(peer, path, PAGE).status, readable(preflight(peer, path, PAGE))) == (403, False)
        reply = peer.ask("POST", path, b"{}", origin=PAGE)
        assert (reply.status, readable(reply)) == (403, False)


def test_any_origin(fake: Fake) -> None:
    with fake(http_cors_origins=("*",)) as served, Peer(served.host) as peer:
        assert preflight(peer, INFER, OTHER).headers["access-control-allow-origin"] == "*"
        assert peer.ask("POST", INFER, infer_body(), origin=OTHER).headers["timing-allow-origin"] == "*"
        assert preflight(peer, CHANGING[0], OTHER).status == 403


def test_what_is_asked_for_is_not_said_again_if_it_is_no_list_of_names(opened: Served) -> None:
    with Peer(opened.host) as peer:
        peer.send(
            request(
                *("OPTIONS", INFER),
                origin=PAGE,
                access_control_request_method="POST",
                access_control_request_headers="a\tb",
                access_control_request_private_network="true",
            )
        )
        reply = peer.reply()
        assert "access-control-allow-headers" not in reply.headers
        assert reply.headers["access-control-allow-private-network"] == "true"
        assert peer.ask("OPTIONS", INFER, origin=PAGE).status == 405, "no preflight"


@pytest.mark.parametrize("origin", ["app.example.com", "https://a/b", "https://a/", "null", "", "ftp://a"])
def test_what_is_no_origin_is_said_at_the_start(origin: str) -> None:
    with pytest.raises(ValueError, match="an origin is SCHEME://HOST"):
        GatewayConfig(http_cors_origins=(origin,))
