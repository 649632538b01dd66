"""Who may connect, and what is said to those who may not; garbage on the socket."""

from __future__ import annotations

import random

import msgspec
import pytest

from mainspring.controller.server import Controller
from mainspring.messages.actions import Infer
from mainspring.messages.codec import encode
from mainspring.messages.events import Resident
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.peers import (
    Arrival,
    GatewayHello,
    Pong,
    Refused,
    Welcome,
    WorkerDown,
    WorkerUp,
)
from tests.controller.peers import FakeGateway, FakeWorker, Stage, spec

ARTIFACT = spec().artifact


def silent_gateway(stage: Stage, name: str = "g0") -> FakeGateway:
    gateway = FakeGateway(stage.address, name)
    stage.peers.append(gateway)
    return gateway


def silent_worker(stage: Stage, name: str = "w0") -> FakeWorker:
    worker = FakeWorker(stage.address, name)
    stage.peers.append(worker)
    return worker


def test_whoever_did_not_say_hello_is_told_so(stage: Stage) -> None:
    stage.start()
    gateway = silent_gateway(stage)
    gateway.send(Arrival(1, "m0", 1, 10**9))
    stage.until(lambda: bool(gateway.all(Refused)))
    assert gateway.last(Refused).code == "unknown_session"


@pytest.mark.parametrize("known_shape", [True, False])
def test_another_protocol_is_refused_naming_both_versions(stage: Stage, known_shape: bool) -> None:
    stage.start()
    worker = silent_worker(stage)
    if known_shape:
        worker.hello(protocol=7)
    else:
        worker.socket.send(
            [msgspec.msgpack.encode({"type": "worker_hello", "protocol": 7, "devices": [1, 2]})]
        )
    stage.until(lambda: bool(worker.all(Refused)))
    assert worker.last(Refused).code == "protocol_mismatch"
    assert "protocol 1" in worker.last(Refused).detail
    assert "protocol 7" in worker.last(Refused).detail
    worker.hello()
    stage.until(lambda: bool(worker.all(Welcome)))


@pytest.mark.parametrize("known_shape", [True, False])
def test_a_refused_hello_ends_the_session_before_it(stage: Stage, known_shape: bool) -> None:
    stage.start()
    worker = silent_worker(stage)
    worker.hello()
    stage.until(lambda: bool(worker.all(Welcome)))
    if known_shape:
        worker.hello(protocol=7)
    else:
        worker.socket.send([msgspec.msgpack.encode({"type": "worker_hello", "protocol": 7, "devices": 1})])
    stage.until(lambda: bool(worker.all(Refused)))
    worker.send(Pong(1, 0, 10, 5))
    stage.until(lambda: len(worker.all(Refused)) == 2)
    assert worker.last(Refused).code == "unknown_session"


def test_another_page_size_is_refused_naming_both(stage: Stage) -> None:
    stage.start()
    worker = silent_worker(stage)
    worker.hello(page_bytes=4096)
    stage.until(lambda: bool(worker.all(Refused)))
    assert worker.last(Refused).code == "bad_page_size"
    assert "4096" in worker.last(Refused).detail
    assert str(PAGE_BYTES) in worker.last(Refused).detail


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"resident": (Resident("a", ARTIFACT, (1, 2)), Resident("b", ARTIFACT, (2,)))},
            "page 2 belongs to 'a' and to 'b'",
        ),
        ({"resident": (Resident("a", ARTIFACT, (8,)),)}, "page 8 of model 'a' is out of range"),
        (
            {"resident": (Resident("a", ARTIFACT, (1,)), Resident("a", ARTIFACT, (2,)))},
            "'a' is resident twice",
        ),
        ({"pages": -1}, "-1 pages"),
        ({"worker": ""}, "name has 0 characters"),
        ({"device_kind": "cpu/tvm-x86_64-avx2"}, "none of them /"),
        ({"device_kind": "x" * 129}, "1 to 128 characters"),
        ({"device_kind": "cpu\x1b[2J"}, "all printable"),
    ],
)
def test_a_memory_that_contradicts_itself_is_refused(
    stage: Stage, changes: dict[str, object], words: str
) -> None:
    stage.start()
    worker = silent_worker(stage)
    worker.hello(**changes)
    stage.until(lambda: bool(worker.all(Refused)))
    assert worker.last(Refused).code == "bad_message"
    assert words in worker.last(Refused).detail


def test_a_newer_process_takes_the_name_over_and_keeps_it(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, old = stage.cluster("m0")
    new = stage.worker("w0", peer_id="worker:newer")
    stage.until(lambda: bool(new.prepared and old.all(Refused)))
    assert old.all(Refused)[0].code == "name_taken"
    assert [type(m) for m in gateway.received if isinstance(m, WorkerUp | WorkerDown)] == [
        WorkerUp,
        WorkerDown,
        WorkerUp,
    ]
    stage.pump_for(0.1)
    old.hello()
    # Its last pongs may be refused as well: they are of no session.
    stage.until(lambda: [each.code for each in old.all(Refused)].count("name_taken") == 2)
    gateway.arrive(1)
    stage.until(lambda: bool(new.all(Infer)))
    assert old.all(Infer) == []


def test_a_peer_that_reconnects_before_its_old_connection_is_gone_is_heard(stage: Stage) -> None:
    stage.start(heartbeat_timeout_ms=60_000.0)
    first = stage.gateway("g0")
    second = silent_gateway(stage, "g0")
    second.hello()
    stage.until(lambda: bool(second.all(Welcome)))
    assert second.last(Welcome).number == 2
    assert len(first.all(Welcome)) == 1


def test_a_gateway_that_says_hello_again_gets_a_new_number(stage: Stage) -> None:
    stage.start()
    gateway = stage.gateway()
    gateway.hello()
    stage.until(lambda: len(gateway.all(Welcome)) == 2)
    assert [welcome.number for welcome in gateway.all(Welcome)] == [1, 2]


def test_too_many_peers_are_refused(stage: Stage) -> None:
    stage.start(max_peers=1)
    stage.gateway("g0")
    other = silent_gateway(stage, "g1")
    other.hello()
    stage.until(lambda: bool(other.all(Refused)))
    assert other.last(Refused).code == "too_many_peers"


def test_a_false_pong_is_counted_and_does_not_move_the_clock(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    before_ns = stage.status(gateway).workers[0].clock_offset_ns
    worker.send(Pong(10**6, 0, 0, 0))
    worker.send(Pong(1, 0, 10, 5))
    stage.until(lambda: stage.status(gateway).dropped_messages.get("bad_pong") == 2)
    assert abs(stage.status(gateway).workers[0].clock_offset_ns - before_ns) < 10**8


@pytest.mark.parametrize("step_ms", [-700.0, 700.0])
def test_a_worker_whose_clock_steps_joins_again_with_its_new_clock(stage: Stage, step_ms: float) -> None:
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    before_ns = stage.status(gateway).workers[0].clock_offset_ns
    worker.offset_ns += round(step_ms * 1e6)
    stage.until(lambda: bool(worker.all(Refused)))
    assert worker.last(Refused).code == "unknown_session"
    assert "its clock has stepped by" in worker.last(Refused).detail
    stage.until(lambda: bool(gateway.all(WorkerDown)))
    worker.hello()
    stage.until(lambda: stage.knows(gateway, "w0"))
    status = stage.status(gateway)
    assert status.dropped_messages["clock_stepped"] == 1
    assert abs(status.workers[0].clock_offset_ns - before_ns - step_ms * 1e6) < 10**8
    assert 0 < status.workers[0].clock_error_ns < 10**8
    gateway.arrive(1)
    stage.until(lambda: stage.status(gateway).models[0].finished == 1)


def test_a_result_from_the_future_tells_of_a_step_before_the_next_ping(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    worker.holds = (Infer,)
    gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Infer)))
    worker.answers_pings = False
    worker.offset_ns += 10**10
    worker.end(worker.last(Infer))
    stage.until(lambda: bool(worker.all(Refused)))
    assert "its clock has stepped by" in worker.last(Refused).detail


def garbage(generator: random.Random) -> bytes:
    """Bytes that are sometimes almost a message."""
    if generator.random() < 0.5:
        return generator.randbytes(generator.randrange(60))
    whole = bytearray(encode(Arrival(1 << 40, "m0", 1, 10**9)))
    whole[generator.randrange(len(whole))] = generator.randrange(256)
    return bytes(whole[: generator.randrange(len(whole) + 1)])


def test_garbage_is_counted_answered_at_a_bounded_rate_and_stops_nothing(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    stranger = silent_gateway(stage, "stranger")
    generator = random.Random(4)
    for _ in range(500):
        for peer in (gateway, worker, stranger):
            peer.socket.send([garbage(generator)] * generator.choice((1, 1, 1, 0, 3)) or [b""])
        stage.pump()
    request_id = gateway.arrive(77)
    stage.until(lambda: any(request_id in infer.request_ids for infer in worker.all(Infer)))
    assert stage.status(gateway).dropped_messages["bad_message"] > 800
    refused = [message for message in worker.all(Refused) if message.code == "bad_message"]
    assert 1 <= len(refused) < 100
    assert all(message.code == "unknown_session" for message in stranger.all(Refused))


def test_a_message_from_the_wrong_kind_of_peer_is_refused(stage: Stage) -> None:
    stage.start()
    gateway, worker = stage.gateway(), stage.worker()
    stage.until(lambda: bool(worker.all(Welcome)))
    worker.send(Arrival(1, "m0", 1, None))
    stage.until(lambda: bool(worker.all(Refused)))
    assert "a worker may not send Arrival" in worker.last(Refused).detail
    assert gateway.all(Refused) == []


def test_a_message_larger_than_the_limit_disconnects_its_sender_only(stage: Stage) -> None:
    stage.start((spec(),), message_max_bytes=100_000)
    gateway, worker = stage.cluster("m0")
    rude = silent_gateway(stage, "rude")
    rude.socket.send([b"x" * 200_000])
    stage.pump_for(0.1)
    gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Infer)))


def test_a_gateway_may_connect_before_any_worker_and_model(stage: Stage) -> None:
    controller: Controller = stage.start()
    gateway = silent_gateway(stage)
    gateway.send(GatewayHello(1, "g0"))
    stage.until(lambda: bool(gateway.all(Welcome)))
    assert controller.address == stage.address
    assert stage.status(gateway).workers == ()
