"""A line for each request: what it says, of which requests, and that its parts add up."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring import Client
from mainspring.gateway import server
from mainspring.gateway.access_log import AccessLog, Line
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import Accepted, Connection, Dispatched
from mainspring.gateway.core.requests import Pending
from mainspring.gateway.core.validation import Signature
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Output, OutputTimes
from tests.gateway.fakes import fake_cluster, make_spec, serving, wait_until
from tests.gateway.http.raw import Peer, infer_body, request
from tests.gateway.test_end_to_end import X

MS = 1_000_000
PARTS = ("receive", "queue", "input", "load", "wait", "execute", "output")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Logged:
    """Lines of requests whose times the test makes up; ``now_ns`` is the clock."""

    def __init__(self, *draws: float, **options: Any) -> None:
        self.now_ns = 100 * MS
        self.lines: list[Line] = []
        drawn = iter(draws)
        self.log = AccessLog(
            GatewayConfig(**options),
            self.lines.append,
            lambda: next(drawn, 0.0),
            lambda: self.now_ns,
            lambda: 1_700_000_000 * 1_000 * MS,
        )


def pending(late_outputs: bool = True) -> Pending:
    accepted = Accepted("m", 2, 80 * MS, (0,), (0,), Signature(make_spec("m")), PARENT)
    accepted = msgspec.structs.replace(accepted, late_outputs=late_outputs)
    found = Pending(0, Connection("calls", b""), 0, accepted, (), 10 * MS, 90 * MS, 90 * MS, 10**12)
    found.came_ns = 8 * MS
    return found


def parts(line: dict[str, Any]) -> float:
    return float(sum(line[f"{part}_ms"] for part in PARTS))


def test_a_request_with_outputs() -> None:
    logged = Logged()
    dispatch = Dispatched(7, "w", 4, True, 20 * MS)
    output = Output(7, 1, 20 * MS, OutputTimes(4 * MS, 36 * MS, 6 * MS, 30 * MS, 5 * MS))
    logged.log.answered(100 * MS, pending(), dispatch, output)
    line = msgspec.to_builtins(logged.lines[0])
    assert line == {
        "time": "2023-11-14T22:13:20.000000Z",
        "model": "m",
        "outcome": "answered",
        "total_ms": 92.0,
        "receive_ms": 2.0,
        "queue_ms": 10.0,
        "input_ms": 11.0,
        "load_ms": 30.0,
        "wait_ms": 6.0,
        "execute_ms": 20.0,
        "output_ms": 13.0,
        "version": 1,
        "rows": 2,
        "slo_ms": 80.0,
        "left_ms": -10.0,
        "worker": "w",
        "batch_size": 4,
        "cold_start": True,
        "trace_id": PARENT[3:35],
    }
    assert parts(line) == line["total_ms"]


def test_outputs_that_their_client_has_no_use_for_are_a_time_out() -> None:
    logged = Logged()
    logged.log.answered(100 * MS, pending(late_outputs=False), None, None)
    assert (logged.lines[0].outcome, logged.lines[0].cached) == ("timed_out", True)


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_request_without_outputs(dispatched: bool) -> None:
    logged, given = Logged(), pending()
    if dispatched:
        given.dispatches.append(Dispatched(7, "w", 4, False, 30 * MS))
    logged.log.refused(given, Reason.WORKER_FAILED)
    line = msgspec.to_builtins(logged.lines[0])
    assert (line["outcome"], line["total_ms"], parts(line)) == ("worker_failed", 92.0, 92.0)
    assert line["queue_ms"] == (20.0 if dispatched else 90.0)


def test_a_request_that_was_no_good_and_a_long_name() -> None:
    logged = Logged()
    logged.log.turned_away(InferRequest(1, "x" * 999, (), None, traceparent="?"), Reason.UNKNOWN_MODEL)
    [line] = logged.lines
    assert (line.model, line.outcome, line.total_ms) == ("x" * 200, "unknown_model", 0)


def test_a_share_of_the_requests() -> None:
    logged = Logged(0.1, 0.3, 0.29, access_log_sample_ratio=0.3)
    for _ in range(3):
        logged.log.refused(pending(), Reason.OVERLOADED)
    assert len(logged.lines) == 2
    with pytest.raises(ValueError, match=r"access_log_sample_ratio is 1\.5; it must be at most 1"):
        GatewayConfig(access_log_sample_ratio=1.5)


def test_each_request_has_one_line_however_it_came_and_ended(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    with (
        fake_cluster() as cluster,
        serving(cluster.address, access_log=str(path), http_address="http://127.0.0.1:0") as addresses,
        Client(addresses.zeromq) as client,
    ):
        assert addresses.access_log == str(path)
        host = addresses.http.removeprefix("http://")
        wait_until(lambda: Peer(host).ask("GET", "/v2/models/double/ready").status == 200)
        client.infer("double", {"data": X})
        with Peer(host) as peer:
            for model, body, status in (
                ("double", infer_body(2), 200),
                ("reject", infer_body(), 503),
                ("nothing", infer_body(), 404),
                ("double", b"{}", 400),
            ):
                assert peer.ask("POST", f"/v2/models/{model}/infer", body).status == status
        with Peer(host) as gone:
            arrived = len(cluster.arrivals)
            gone.send(request("POST", "/v2/models/hold/infer", infer_body()))
            wait_until(lambda: len(cluster.arrivals) > arrived)
            gone.socket.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")
        wait_until(lambda: path.read_text().count("\n") == 6)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert Counter((line["model"], line["outcome"]) for line in lines) == {
        ("double", "answered"): 2,
        ("reject", "deadline_unreachable"): 1,
        ("nothing", "unknown_model"): 1,
        ("double", "bad_message"): 1,
        ("hold", "cancelled"): 1,
    }
    for line in lines:
        assert parts(line) == pytest.approx(line["total_ms"], abs=1e-5)
        assert line["total_ms"] > 0 or line["outcome"] in ("unknown_model", "bad_message")


def test_a_file_that_can_t_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    config = GatewayConfig(
        address="tcp://127.0.0.1:*", local_clients=False, access_log=str(tmp_path / "no" / "log")
    )
    with pytest.raises(OSError, match=r"can't write its access_log .*No such file.*name a file in a folder"):
        server.run(config, threading.Event())
