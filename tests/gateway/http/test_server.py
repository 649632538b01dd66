"""Who may ask for what, addresses, and how the server stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from mainspring.gateway import server
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.http import connection
from mainspring.gateway.http.applications import ApplicationRoutes
from mainspring.gateway.http.connection import HttpConnection
from mainspring.gateway.http.control import Control
from mainspring.gateway.http.infer import Inference
from mainspring.gateway.http.routes import routes
from mainspring.gateway.http.server import HttpServer, parse_address
from mainspring.gateway.http.shared_memory import SharedMemory
from mainspring.gateway.http.texts import Texts
from mainspring.gateway.memory import Budget, Memory, Uploads
from tests.gateway.fakes import serving, wait_until
from tests.gateway.http.conftest import Served
from tests.gateway.http.raw import Peer, infer_body, request

Fake = Callable[..., AbstractContextManager[Served]]
INFER = "/v2/models/double/infer"
BEGUN = f"POST {INFER} HTTP/1.1\r\nhost: test\r\ncontent-length: 1000000\r\n\r\n".encode()
TOKENS = """
[[token]]
name = "search"
sha256 = "{search}"
models = ["double"]

[[token]]
name = "slow"
sha256 = "{slow}"
models = ["*"]
rate = 0.001
burst = 2
"""


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "tokens.toml"
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("search", "slow")}
    path.write_text(TOKENS.format(**digests))
    return str(path)


def test_tokens_are_asked_for(fake: Fake, token_file: str) -> None:
    with fake(token_file=token_file) as served, Peer(served.host) as peer:
        assert peer.ask("GET", "/v2").status == 200
        assert peer.ask("GET", "/openapi.json").status == 200
        assert peer.ask("POST", INFER, infer_body()).status == 401
        for shown in ("Bearer nobody", "Basic search"):
            reply = peer.ask("POST", INFER, infer_body(), authorization=shown)
            assert (reply.status, reply.json["reason"]) == (401, "unauthenticated")
            assert reply.headers["www-authenticate"] == "bearer"
        search = "Bearer search"
        assert peer.ask("POST", INFER, infer_body(), authorization=search).status == 200
        reply = peer.ask("POST", "/v2/models/mute/infer", infer_body(), authorization=search)
        assert (reply.status, reply.json["reason"]) == (403, "forbidden")
        assert (
            peer.ask("POST", "/v2/repository/models/double/unload", b"{}", authorization=search).status == 403
        )
        assert peer.ask("GET", "/v2/logging", authorization=search).status == 200
        assert peer.ask("POST", "/v2/logging", b"{}", authorization=search).status == 403
        index = peer.ask("POST", "/v2/repository/index", b"{}", authorization=search).json
        assert [entry["name"] for entry in index] == ["double"]
        stats = peer.ask("GET", "/v2/models/stats", authorization=search).json
        assert [each["name"] for each in stats["model_stats"]] == ["double"]
        replies = [peer.ask("POST", INFER, infer_body(), authorization="Bearer slow") for _ in range(3)]
        assert [each.status for each in replies] == [200, 200, 429]
        assert int(replies[-1].headers["retry-after"]) >= 1
        assert "; come again in " in replies[-1].json["error"]


def test_groups_of_calls_that_need_a_header(fake: Fake) -> None:
    rules = ("model-repository,logging:admin-key=admin-value", "inference:infer-key=infer value")
    with fake(http_restricted_api=rules) as served, Peer(served.host) as peer:
        for path, method in (("/v2/repository/index", "POST"), ("/v2/logging", "GET")):
            assert peer.ask(method, path, admin_key="admin-value").status == 200
            for key in ("", "admin-valu", "infer value"):
                reply = peer.ask(method, path, b"", admin_key=key)
                assert reply.status == 403
                assert reply.json["error"] == "This API is restricted, expecting header 'admin-key'"
        assert peer.ask("POST", INFER, infer_body()).status == 403
        assert peer.ask("POST", INFER, infer_body(), infer_key="infer value").status == 200
        assert peer.ask("GET", "/v2/models/double/config").status == 200
        with tritonclient.http.InferenceServerClient(served.host) as client:
            with pytest.raises(InferenceServerException, match="expecting header 'admin-key'"):
                client.load_model("double")
            assert client.get_model_repository_index(headers={"admin-key": "admin-value"})


def test_a_priority_is_no_better_than_the_token_s_best(fake: Fake, token_file: str) -> None:
    with Path(token_file).open("a") as file:
        digest = hashlib.sha256(b"capped").hexdigest()
        file.write(f'[[token]]\nname = "capped"\nsha256 = "{digest}"\nmodels = ["*"]\nbest_priority = 3\n')
    with fake(token_file=token_file) as served, Peer(served.host) as peer:
        for priority in (1, 0, 5):
            body = infer_body(parameters={"priority": priority})
            assert peer.ask("POST", INFER, body, authorization="Bearer capped").status == 200
        assert served.cluster is not None
        # A session that is greeted again repeats its arrivals.
        priorities = {each.request_id: each.priority for each in served.cluster.arrivals}
        assert [*priorities.values()] == [3, 0, 5]


@pytest.mark.parametrize("sent", [b"", request("GET", "/v2/health/live")], ids=["a-body", "a-request"])
def test_connections_without_a_token_make_room(fake: Fake, token_file: str, sent: bytes) -> None:
    options = {"token_file": token_file, "http_max_connections": 4}
    with fake(**options) as served, ExitStack() as stack, Peer(served.host) as known:
        assert known.ask("GET", "/v2/models/stats", authorization="Bearer search").status == 200
        # All is fresh: nobody has been idle for long, and some are in the midst of a body.
        strangers = [stack.enter_context(Peer(served.host)) for _ in range(8)]
        for each in strangers[-3:]:
            each.send(sent or BEGUN)
        if sent:
            assert strangers[-1].reply().status == 200
        with Peer(served.host) as late:
            assert late.ask("GET", "/v2/models/stats", authorization="Bearer search").status == 200
        assert known.ask("GET", "/v2/models/stats", authorization="Bearer search").status == 200
        assert strangers[0].ended()


@pytest.mark.parametrize("sent", [b"", b"GET /v2/he", BEGUN], ids=["nothing", "half-a-head", "half-a-body"])
def test_connections_that_send_nothing_make_room(fake: Fake, sent: bytes) -> None:
    with fake(http_max_connections=4) as served, ExitStack() as stack, Peer(served.host) as known:
        assert known.ask("GET", "/v2/health/live").status == 200
        silent = [stack.enter_context(Peer(served.host)) for _ in range(8)]
        for each in silent[-3:]:
            each.send(sent)

        def answered() -> bool:
            with Peer(served.host) as late:
                return late.ask("GET", "/v2/health/live").status == 200

        # Of a body something has just come, until it has not for a second.
        wait_until(answered)
        assert silent[0].ended()


def test_refused_connections_are_few_at_a_time(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_LINGER_NS", 1 << 60)
    with fake(http_max_connections=4) as served, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(Peer(served.host)).send(
                request("POST", "/v2/models/hold/infer", infer_body(1))
            )
        assert served.cluster is not None
        wait_until(lambda: served.cluster is not None and len(served.cluster.arrivals) == 4)
        refused = [stack.enter_context(Peer(served.host)) for _ in range(40)]
        assert refused[-1].reply().status == 503
        for each in refused[:24]:
            with contextlib.suppress(ConnectionResetError):
                while each.socket.recv(1_000):
                    pass


def test_a_body_without_a_token_is_not_kept(fake: Fake, token_file: str) -> None:
    with fake(token_file=token_file, max_in_flight_bytes=10_000) as served, Peer(served.host) as peer:
        assert peer.ask("POST", INFER, b"x" * 1_000_000).status == 401
        assert peer.ask("POST", INFER, infer_body(), authorization="Bearer search").status == 200
        reply = peer.ask("POST", INFER, b"x" * 1_000_000, authorization="Bearer search")
        assert (reply.status, "hold as much memory" in reply.json["error"]) == (503, True)


def test_a_stop_answers_what_is_in_flight(fake: Fake) -> None:
    with ExitStack() as running:
        served = running.enter_context(fake(drain_timeout_ms=100.0))
        cluster = served.cluster
        assert cluster is not None
        waiting, idle = Peer(served.host), Peer(served.host)
        assert idle.ask("GET", "/v2/health/live").status == 200
        waiting.send(request("POST", "/v2/models/hold/infer", infer_body()))
        wait_until(lambda: cluster.arrivals)
    reply = waiting.reply()
    assert (reply.status, reply.json["reason"]) == (503, "shutting_down")
    assert waiting.ended()
    assert idle.ended()


def test_without_a_controller_everybody_is_told_so() -> None:
    with (
        serving("tcp://127.0.0.1:1", http_address="http://127.0.0.1:0") as addresses,
        Peer(addresses.http.removeprefix("http://")) as peer,
    ):
        assert peer.ask("GET", "/v2/health/live").status == 200
        for reply in (
            peer.ask("GET", "/v2/health/ready"),
            peer.ask("GET", "/v2/models/double"),
            peer.ask("POST", INFER, infer_body()),
        ):
            assert (reply.status, reply.json["reason"]) == (503, "controller_unreachable")


def test_addresses() -> None:
    assert parse_address("http://127.0.0.1:8000") == ("127.0.0.1", 8000, False)
    assert parse_address("http://[::1]:0") == ("::1", 0, False)
    assert parse_address("https://a:1") == ("a", 1, True)
    for wrong in ("127.0.0.1:8000", "http://127.0.0.1", "ftp://a:1", "http://:x", "http://a:99999", ""):
        with pytest.raises(OSError, match="it is http://HOST:PORT"):
            parse_address(wrong)


def test_an_address_that_is_taken_is_refused(served: Served) -> None:
    config = GatewayConfig(address="tcp://127.0.0.1:*", http_address=f"http://{served.host}")
    with pytest.raises(OSError, match="is another server running there"):
        server.run(config, threading.Event())


class Silent(asyncio.Transport):
    """A transport that takes everything."""

    def write(self, data: object) -> None:
        """Keep nothing."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There are none."""

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


def connections() -> set[int]:
    """Return the addresses of all that there are: compiled, they can't be referred to weakly."""
    return {id(each) for each in gc.get_objects() if type(each) is HttpConnection}


@pytest.mark.parametrize("sent", [b"", b"GET /v2", request("GET", "/v2"), b"nonsense\r\n\r\n"])
def test_a_connection_that_is_gone_leaves_nothing_to_the_collector(sent: bytes) -> None:
    """The gateway's garbage is collected when it is idle, and clients may come and go all the time."""

    async def come_and_go() -> None:
        config = GatewayConfig()
        driver = SimpleNamespace(
            gate=SimpleNamespace(closed=False, has_accounts=False),
            config=config,
            catalog=Catalog(),
            memory=Memory(0),
        )
        parts = {"driver": driver, "answers": Budget(1 << 20), "uploads": Uploads(), "regions": None}
        calls = cast("Any", SimpleNamespace(**parts))
        shared = SharedMemory(calls, lambda _: "")
        inference = Inference(calls, config, shared)
        applications = ApplicationRoutes(calls)
        table = routes(Control(calls, shared), inference, shared, Texts(calls, config), applications)
        host = HttpServer(calls, config, table, inference.close)
        connection = HttpConnection(host)
        connection.connection_made(Silent())
        buffer = connection.get_buffer(-1)
        buffer[: len(sent)] = sent
        connection.buffer_updated(len(sent))
        connection.connection_lost(None)
        del connection
        await host.close(0)

    gc.collect()
    gc.disable()
    try:
        before = connections()
        asyncio.run(come_and_go())
        assert connections() <= before
    finally:
        gc.enable()
