"""Large answers: others are served while they are made, and what they hold is bounded."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import numpy as np
import pytest

from mainspring.gateway.oip import json_data
from mainspring.messages.model import TensorSpec
from mainspring.messages.peers import ModelUp
from tests.gateway.fakes import FakeCluster, make_spec, wait_until
from tests.gateway.http.conftest import Served
from tests.gateway.http.raw import Peer, infer_body, request
from tests.patience import PATIENCE_S

INFER = "/v2/models/double/infer"
WIDE = "/v2/models/wide/infer"
HOLD = "/v2/models/hold/infer"
COLUMNS = 1 << 20
LARGE_BYTES = 1 << 20
Fake = Callable[..., AbstractContextManager[Served]]


def wide_request(**parameters: Any) -> bytes:
    """Return a request that gets a million numbers for as many."""
    tensor = {"name": "data", "shape": [1, COLUMNS], "datatype": "FP32"}
    inputs = [{**tensor, "parameters": {"binary_data_size": 4 * COLUMNS}}]
    text = json.dumps({"inputs": inputs, **parameters}).encode()
    body = text + np.arange(COLUMNS, dtype=np.float32).tobytes()
    return request("POST", WIDE, body, inference_header_content_length=str(len(text)))


def test_others_are_served_while_a_large_answer_is_written_as_json(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, others_served, ended = threading.Event(), threading.Event(), threading.Event()
    plain = json_data.from_bytes

    def until_others_are_served(data: Any, dtype: str) -> Iterator[bytes]:
        """Yield one number at a time until then, at most for a while, and the rest as always."""
        until = time.monotonic() + PATIENCE_S / 2
        for each in plain(data, dtype):
            values = json.loads(each)
            while len(values) > 1 and not others_served.is_set() and time.monotonic() < until:
                begun.set()
                # The test's threads share the interpreter with the loop's, which would hardly let go of it.
                time.sleep(0.001)
                yield json.dumps([values.pop(0)]).encode()
            yield json.dumps(values).encode()
        if len(data) > 1_000:
            ended.set()

    with fake() as served, Peer(served.host) as large, Peer(served.host) as small:
        monkeypatch.setattr(json_data, "from_bytes", until_others_are_served)
        large.send(wide_request())
        assert begun.wait(PATIENCE_S)
        assert small.ask("POST", INFER, infer_body()).status == 200
        assert not ended.is_set(), "served behind it only"
        others_served.set()
        reply = large.reply()
        assert reply.status == 200
        twice, total = reply.json["outputs"]
        assert twice["data"] == (2 * np.arange(COLUMNS)).tolist()
        assert len(total["data"]) == 1


def test_an_answer_that_was_too_long_in_the_making_is_late(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs came in time: the clock goes on while it is written."""
    plain = json_data.from_bytes

    def forever(data: Any, dtype: str) -> Iterator[bytes]:
        until = time.monotonic() + 0.6
        while len(data) > 1_000 and time.monotonic() < until:
            yield b"[]"
        yield from plain(data, dtype)

    with fake() as served, Peer(served.host) as peer:
        peer.send(wide_request(parameters={"slo_ms": 60_000}, outputs=[{"name": "sum"}]))
        assert peer.reply().status == 200
        monkeypatch.setattr(json_data, "from_bytes", forever)
        peer.send(wide_request(parameters={"slo_ms": 500}, outputs=[{"name": "twice"}]))
        reply = peer.reply()
        assert (reply.status, reply.json["reason"]) == (503, "timed_out")


def make_large(cluster: FakeCluster | None, name: str = "hold") -> None:
    """Have a model give a megabyte."""
    assert cluster is not None
    much = (TensorSpec("much", "uint8", (LARGE_BYTES,)),)
    cluster.tell(ModelUp(msgspec.structs.replace(make_spec(name), outputs=much)))


def large_request(**parameters: Any) -> bytes:
    return request("POST", HOLD, infer_body(parameters={"binary_data_output": True, **parameters}))


def arrived(served: Served, model: str = "") -> int:
    """Return how many requests the controller was told of; a session that is greeted again repeats them."""
    assert served.cluster is not None
    return len({each.request_id for each in served.cluster.arrivals if not model or each.model == model})


def have_large(served: Served) -> None:
    """Wait until the gateway knows the model as it is to be; a session that is greeted again forgets it."""

    def is_large() -> bool:
        with Peer(served.host) as peer:
            [output, *_] = peer.ask("GET", "/v2/models/hold").json["outputs"]
        if output["name"] != "much":
            make_large(served.cluster)
        return bool(output["name"] == "much")

    wait_until(is_large)


def test_a_connection_s_further_requests_wait_while_its_answers_hold_much(fake: Fake) -> None:
    with fake(max_answer_bytes_per_connection=10 * LARGE_BYTES) as served, Peer(served.host) as other:
        have_large(served)
        assert served.cluster is not None
        with Peer(served.host) as peer:
            peer.send(large_request() * 40)
            wait_until(lambda: arrived(served) == 10)
            for _ in range(20):
                assert other.ask("POST", INFER, infer_body()).status == 200
            assert arrived(served, "hold") == 10


def test_as_text_an_answer_counts_for_what_it_may_have(fake: Fake) -> None:
    with fake(max_answer_bytes_per_connection=100 * LARGE_BYTES) as served, Peer(served.host) as peer:
        have_large(served)
        assert served.cluster is not None
        peer.send(request("POST", HOLD, infer_body()) * 40)
        wait_until(lambda: arrived(served) == 4)
        with Peer(served.host) as other:
            for _ in range(20):
                assert other.ask("POST", INFER, infer_body()).status == 200
        assert arrived(served, "hold") == 4


def test_beyond_what_all_answers_may_hold_requests_are_refused(fake: Fake) -> None:
    with fake(max_answer_bytes=3 * LARGE_BYTES + 1_000_000) as served:
        have_large(served)
        assert served.cluster is not None
        with Peer(served.host) as full:
            full.send(large_request() * 3)
            wait_until(lambda: arrived(served) == 3)
            with Peer(served.host) as peer:
                peer.send(large_request())
                reply = peer.reply()
                assert (reply.status, reply.json["reason"]) == (503, "overloaded")
                assert "answers of all clients" in reply.json["error"]
                assert peer.ask("POST", INFER, infer_body()).status == 200
        # What a client held that is gone is free again.
        wait_until(lambda: served.cluster is not None and len(served.cluster.cancels) == 3)
        with Peer(served.host) as peer:
            peer.send(large_request())
            wait_until(lambda: arrived(served) == 5)


def test_answers_that_are_not_read_count_until_they_are(fake: Fake) -> None:
    with fake(max_answer_bytes=100 * LARGE_BYTES) as served:
        body = np.zeros(COLUMNS, np.float32).tobytes()
        whole = request("POST", WIDE, body, inference_header_content_length="0")
        assert served.cluster is not None
        with Peer(served.host) as peer:
            for _ in range(3):
                peer.send(whole)
                assert len(peer.reply().body) > 4 * COLUMNS
            for _ in range(3):
                peer.send(whole)
            wait_until(lambda: arrived(served) >= 5)
            for _ in range(3):
                assert len(peer.reply().body) > 4 * COLUMNS
        # Each holds 4 MB: that they were given back is why 24 more fit, one after the other.
        with Peer(served.host) as peer:
            for _ in range(24):
                peer.send(whole)
                assert peer.reply().status == 200
