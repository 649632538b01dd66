"""What clients may send over one connection, and what becomes of those that send anything else."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest

from mainspring.gateway.http import infer
from tests.gateway.fakes import wait_until
from tests.gateway.http.conftest import Served
from tests.gateway.http.raw import Peer, Reply, infer_body, request

INFER = "/v2/models/double/infer"
X = np.arange(4, dtype=np.float32)


def twice(reply: Reply) -> list[float]:
    assert reply.status == 200, reply.body
    values: list[float] = reply.json["outputs"][0]["data"]
    return values


def test_a_connection_serves_one_request_after_the_other(served: Served) -> None:
    with Peer(served.host) as peer:
        for rows in (1, 2, 3):
            reply = peer.ask("POST", INFER, infer_body(rows))
            assert len(twice(reply)) == 4 * rows
            assert "connection" not in reply.headers
        assert peer.ask("GET", "/v2/health/live").status == 200


def test_pipelined_requests_run_side_by_side_and_are_answered_in_their_order(served: Served) -> None:
    cluster = served.cluster
    assert cluster is not None
    with Peer(served.host) as peer:
        arrived = len(cluster.arrivals)
        peer.send(
            request("POST", "/v2/models/hold/infer", infer_body(1))
            + b"".join(request("POST", INFER, infer_body(rows)) for rows in (1, 2, 3))
            + request("GET", "/v2/health/live")
        )
        wait_until(lambda: len(cluster.arrivals) == arrived + 4)
        held = cluster.arrivals[arrived].request_id
        cluster.do(lambda: cluster.dispatch(held, "double"))
        assert [len(twice(peer.reply())) for _ in range(4)] == [4, 4, 8, 12]
        assert peer.reply().json == {"live": True}


def test_more_pipelined_requests_than_may_run_wait_their_turn(served: Served) -> None:
    with Peer(served.host) as peer:
        peer.send(b"".join(request("POST", INFER, infer_body(1 + number % 3)) for number in range(500)))
        assert [len(twice(peer.reply())) for number in range(500)] == [4 + 4 * (n % 3) for n in range(500)]


def test_versions_and_connection_headers_are_heeded(served: Served) -> None:
    with Peer(served.host) as peer:
        assert peer.ask("GET", "/v2", connection="close").headers["connection"] == "close"
        assert peer.ended()
    with Peer(served.host) as peer:
        peer.send(b"GET /v2 HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        assert peer.reply().headers["connection"] == "keep-alive"
        peer.send(b"GET /v2 HTTP/1.0\r\n\r\n")
        assert peer.reply().headers["connection"] == "close"
        assert peer.ended()


@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nHost: b\r\n"])
def test_a_request_has_one_host(served: Served, hosts: bytes) -> None:
    with Peer(served.host) as peer:
        peer.send(b"GET /v2 HTTP/1.1\r\n%s\r\n" % hosts)
        reply = peer.reply()
        assert (reply.status, reply.headers["connection"]) == (400, "close")
        assert f"has one header Host; this one has {hosts.lower().count(b'host')}" in reply.json["error"]
        assert peer.ended()


def test_a_body_of_several_members_of_gzip(served: Served) -> None:
    body = infer_body(2)
    packed = gzip.compress(body[:40]) + gzip.compress(body[40:])
    with Peer(served.host) as peer:
        assert len(twice(peer.ask("POST", INFER, packed, content_encoding="gzip"))) == 8


def test_grpc_is_told_where_it_is_spoken(served: Served) -> None:
    with Peer(served.host) as peer:
        path = "/inference.GRPCInferenceService/ModelInfer"
        for kind in ("application/grpc-web+proto", "application/grpc"):
            reply = peer.ask("POST", path, b"x" * 9, content_type=kind)
            assert (reply.status, "call the gateway's grpc_address" in reply.json["error"]) == (415, True)
        assert peer.ask("POST", path, b"x" * 9).status == 404


def test_paths_and_methods_that_are_not_there(served: Served) -> None:
    with Peer(served.host) as peer:
        assert peer.ask("GET", "/nothing").status == 404
        assert peer.ask("GET", "/v2/models//infer").status == 404
        reply = peer.ask("PUT", INFER, b"{}")
        assert (reply.status, reply.headers["allow"]) == (405, "post")
        assert "it takes POST" in reply.json["error"]
        head = peer.ask("HEAD", "/v2/models/double")
        body = peer.ask("GET", "/v2/models/double?x=1")
        assert head.headers["content-length"] == body.headers["content-length"]
        assert peer.ask("GET", "/v2/models/double/versions/0").status == 400
        assert peer.ask("GET", "/v2/models/double/versions/2").status == 404
        assert peer.ask("GET", "/v2/models/doubl%65").json["name"] == "double"
        assert peer.ask("GET", "/v2/models/%ff%00").status == 404
        peer.send(b"GET http://some.where/v2/health/live HTTP/1.1\r\nhost: t\r\n\r\n")
        assert peer.reply().json == {"live": True}


def test_a_body_that_waits_to_be_asked_for(served: Served) -> None:
    with Peer(served.host) as peer:
        body = infer_body(2)
        head = request("POST", INFER, expect="100-continue", content_length=str(len(body)))
        peer.send(head)
        assert peer.socket.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.send(body)
        assert len(twice(peer.reply())) == 8
        assert peer.ask("POST", INFER, b"{}", expect="magic").status == 417
        assert peer.ended()


def test_what_an_older_request_expects_is_not_said(served: Served) -> None:
    body = infer_body(2)
    head = request("POST", INFER, expect="100-continue", content_length=str(len(body)))
    with Peer(served.host) as peer:
        peer.send(head.replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        assert len(twice(peer.reply())) == 8


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (request("POST", INFER, content_length="-1"), 400),
        (request("POST", INFER, content_length="3", transfer_encoding="chunked"), 400),
        (request("POST", INFER, transfer_encoding="chunked") + b"-1\r\n", 400),
        (request("GET", "/" + "x" * 40_000), 431),
        (request("GET", "/v2", header="x" * 40_000), 431),
    ],
)
def test_what_is_no_request_is_answered_and_ends_the_connection(
    served: Served, data: bytes, status: int
) -> None:
    with Peer(served.host) as peer:
        peer.send(data)
        reply = peer.reply()
        assert (reply.status, reply.headers["connection"]) == (status, "close")
        assert reply.json["error"]
        assert peer.ended()


def test_a_fault_is_answered_behind_the_requests_before_it(served: Served) -> None:
    with Peer(served.host) as peer:
        peer.send(request("POST", INFER, infer_body(3)) + b"nonsense\r\n\r\n")
        assert len(twice(peer.reply())) == 12
        assert peer.reply().status == 400
        assert peer.ended()


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({"inference_header_content_length": "999999"}, 400, "and the body has"),
        ({"inference_header_content_length": "-1"}, 400, "it is a number of bytes"),
        ({"inference_header_content_length": "7"}, 400, "can't be read"),
        ({"content_encoding": "br"}, 415, "'br'; it may be gzip or deflate"),
        ({"content_encoding": "gzip"}, 400, "no gzip data"),
        ({"x_mainspring_slo_ms": "-5"}, 400, "greater than 0"),
    ],
)
def test_headers_that_lie_spoil_one_request_only(
    served: Served, headers: dict[str, str], status: int, said: str
) -> None:
    with Peer(served.host) as peer:
        reply = peer.ask("POST", INFER, infer_body(), **headers)
        assert (reply.status, said in reply.json["error"]) == (status, True), reply.body
        assert len(twice(peer.ask("POST", INFER, infer_body()))) == 4


def test_a_body_without_json_is_the_one_input(served: Served) -> None:
    with Peer(served.host) as peer:
        reply = peer.ask("POST", INFER, X.tobytes(), inference_header_content_length="0")
        size = int(reply.headers["inference-header-content-length"])
        assert json.loads(reply.body[:size])["outputs"][0]["parameters"] == {"binary_data_size": 16}
        assert np.frombuffer(reply.body[size : size + 16], np.float32).tolist() == (2 * X).tolist()


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies(served: Served, name: str, pack: Callable[[bytes], bytes]) -> None:
    with Peer(served.host) as peer:
        reply = peer.ask("POST", INFER, pack(infer_body(2)), content_encoding=name, accept_encoding=name)
        assert reply.headers["content-encoding"] == name
        unpacked = gzip.decompress(reply.body) if name == "gzip" else zlib.decompress(reply.body)
        assert len(json.loads(unpacked)["outputs"][0]["data"]) == 8
        listed = peer.ask("POST", INFER, infer_body(2), accept_encoding="gzip, deflate")
        assert "content-encoding" not in listed.headers


def test_bodies_and_json_have_their_limits(fake: Callable[..., AbstractContextManager[Served]]) -> None:
    with fake(http_max_body_bytes=20_000, http_max_json_bytes=2_000) as served:
        with Peer(served.host) as peer:
            reply = peer.ask("POST", INFER, b"x" * 20_001)
            assert (reply.status, "more than 20,000 bytes" in reply.json["error"]) == (413, True)
            assert "raise http_max_body_bytes of [gateway]" in reply.json["error"]
            assert peer.ended()
        with Peer(served.host) as peer:
            reply = peer.ask("POST", INFER, infer_body(id="x" * 2_000))
            said = "send tensors as binary data, or raise http_max_json_bytes of [gateway]"
            assert (reply.status, said in reply.json["error"]) == (413, True)
            assert len(twice(peer.ask("POST", INFER, infer_body(8)))) == 32
            bomb = gzip.compress(bytes(40_000_000))
            assert len(bomb) > 20_000
            assert peer.ask("POST", INFER, bomb).status == 413
            assert peer.ended()


def test_what_is_asked_beside_inference_is_short(served: Served) -> None:
    """A decoded value takes many times the memory of its text, and nobody is served while it is read."""
    body = b'{"parameters": {"a": [%s 0]}}' % (b"0," * 100_000)
    with Peer(served.host) as peer:
        for path in ("/v2/repository/index", "/v2/repository/models/double/unload", "/v2/logging"):
            reply = peer.ask("POST", path, body)
            assert (reply.status, "65,536 bytes, the most allowed here" in reply.json["error"]) == (413, True)
        assert peer.ask("GET", "/v2/health/live").status == 200


def test_a_bomb_is_refused_and_its_client_served_on(served: Served) -> None:
    bomb = zlib.compress(bytes(100 << 20), 9)
    assert len(bomb) < 1 << 20
    with Peer(served.host) as peer:
        reply = peer.ask("POST", INFER, bomb, content_encoding="deflate")
        assert (reply.status, "the inflated body has more than" in reply.json["error"]) == (413, True)
        assert len(twice(peer.ask("POST", INFER, infer_body()))) == 4


def test_a_client_that_sends_all_of_a_body_before_it_reads_gets_to_read_why_it_is_refused(
    served: Served,
) -> None:
    size = 70 << 20
    with Peer(served.host) as peer:
        peer.send(request("POST", INFER, bytes(size)))
        reply = peer.reply()
        assert (reply.status, "raise http_max_body_bytes" in reply.json["error"]) == (413, True)
        assert peer.ended()


def test_an_announced_body_that_is_too_large_is_refused_before_it_comes(served: Served) -> None:
    with Peer(served.host) as peer:
        peer.send(request("POST", INFER, content_length=str(1 << 40)))
        assert peer.reply().status == 413
        peer.send(b"x" * 100_000)
        assert peer.ended()


@pytest.mark.parametrize(
    ("header", "meant"),
    [
        (b"", ""),
        (b"identity", ""),
        (b"GZIP, identity", "gzip"),
        (b"x-gzip", "gzip"),
        (b"gzip,br", "gzip, br"),
    ],
)
def test_what_was_done_to_a_body_is_read_as_http_says(header: bytes, meant: str) -> None:
    assert infer._encoding(header) == meant
