"""The worker over real sockets, on the emulated engine: hellos, actions, tensors, and what goes wrong."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.actions import Open, Prepare, Release, Unload
from mainspring.messages.codes import Status
from mainspring.messages.metrics import DeviceHealth, Reading
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import Goodbye, Ping, Pong, Refused, Welcome, WorkerHello
from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines import emulated
from mainspring.worker.engines.emulated import EmulatedEngine
from mainspring.worker.server import WorkerFailed, run
from tests.patience import PATIENCE_S
from tests.worker.peers import MS, Cluster, infer, load, opening, spec

Start = Callable[..., Cluster]

ROW = np.ones(3, np.float32).tobytes()


class SlowPrepare:
    """An engine's PREPARE that lasts until it may go on."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.released = threading.Event()

    def fetch(self, model: ModelSpec) -> bool:
        """In `OpensAlone.fetch`'s place."""
        self.began.set()
        assert self.go_on.wait(PATIENCE_S)
        return True

    def release(self, name: str) -> None:
        """In `Engine.release`'s place."""
        self.released.set()


def test_hello_tells_what_the_worker_is(start: Start) -> None:
    cluster = start(pages=5)
    hello = cluster.hello
    assert (hello.protocol, hello.worker, hello.pages, hello.page_bytes) == (
        PROTOCOL_VERSION,
        "w",
        5,
        16 * MIB,
    )
    assert hello.data_address == cluster.data_address
    assert hello.resident == ()
    assert hello.prepared == {}


def test_hello_is_repeated_until_welcomed(start: Start) -> None:
    cluster = start(welcome=False, hello_retry_ms=20)
    for _ in range(3):
        assert not cluster.expect(WorkerHello).again


def test_ping_is_answered(start: Start) -> None:
    cluster = start()
    cluster.say(Ping(7, 123))
    before_ns = time.monotonic_ns()
    pong = cluster.expect(Pong)
    assert (pong.sequence, pong.ping_sent_ns) == (7, 123)
    assert pong.received_ns <= pong.sent_ns
    assert abs(pong.received_ns - before_ns) < 10_000 * MS


def test_infer_gives_each_request_its_outputs_and_the_controller_a_result(start: Start) -> None:
    cluster = start()
    cluster.resident(spec(infer_ms=3))
    action = infer(cluster.next_id(), (10, 11), (1, 2), batch_size=4)
    cluster.say(action)
    cluster.push(action.action_id, 10, ROW)
    cluster.push(action.action_id, 11, ROW * 2)
    outputs = {head.request_id: (head, frames) for head, frames in (cluster.output(), cluster.output())}
    assert {key: [len(frame) for frame in frames] for key, (_, frames) in outputs.items()} == {
        10: [8],
        11: [16],
    }
    result = cluster.result(action.action_id)
    assert result.status is Status.OK
    assert action.earliest_ns <= result.begin_ns <= action.latest_ns
    assert result.end_ns - result.begin_ns >= result.device_ns >= 12 * MS
    assert outputs[10][0].execute_ns == result.device_ns


def test_outputs_go_to_the_gateway_that_sent_the_input(start: Start) -> None:
    cluster = start()
    cluster.resident(spec())
    other = cluster.connect_gateway()
    action = infer(cluster.next_id(), (1, 2))
    cluster.say(action)
    cluster.push(action.action_id, 1, ROW)
    cluster.push(action.action_id, 2, ROW, gateway=other)
    assert cluster.output(other)[0].request_id == 2
    assert cluster.output()[0].request_id == 1


def test_inputs_may_come_before_their_action(start: Start) -> None:
    cluster = start()
    cluster.resident(spec())
    action = infer(cluster.next_id())
    cluster.push(action.action_id, 1, ROW)
    time.sleep(0.1)
    assert cluster.do(action).status is Status.OK


def test_withdrawn_request_gets_no_outputs_and_does_not_hold_the_others_up(start: Start) -> None:
    cluster = start()
    cluster.resident(spec())
    action = infer(cluster.next_id(), (1, 2))
    cluster.say(action)
    cluster.push(action.action_id, 1, withdrawn=True)
    cluster.push(action.action_id, 2, ROW)
    assert cluster.result(action.action_id).status is Status.OK
    assert cluster.output()[0].request_id == 2
    assert not cluster.gateway.poll(50)


@pytest.mark.parametrize("frames", [[], [ROW[:-1]], [ROW, ROW], [b""], [ROW * 2]])
def test_input_of_wrong_size_ends_its_action_and_nothing_else(start: Start, frames: list[bytes]) -> None:
    cluster = start()
    cluster.resident(spec())
    action = infer(cluster.next_id())
    cluster.say(action)
    cluster.push(action.action_id, 1, *frames)
    result = cluster.result(action.action_id)
    assert result.status is Status.INPUT_MISSING
    assert "request 1" in result.detail
    following = infer(cluster.next_id())
    cluster.push(following.action_id, 1, ROW)
    assert cluster.do(following).status is Status.OK


def test_early_inputs_of_wrong_size_end_their_action_and_nothing_else(start: Start) -> None:
    cluster = start()
    cluster.resident(spec())
    action = infer(cluster.next_id(), (1, 2, 3), batch_size=4)
    for request_id in action.request_ids:
        cluster.push(action.action_id, request_id, ROW[:-1])
    time.sleep(0.1)
    assert cluster.do(action).status is Status.INPUT_MISSING
    following = infer(cluster.next_id())
    cluster.push(following.action_id, 1, ROW)
    assert cluster.do(following).status is Status.OK


def test_a_welcome_of_another_protocol_is_none(start: Start) -> None:
    cluster = start(welcome=False, hello_retry_ms=20)
    cluster.expect(WorkerHello)
    cluster.say(Welcome(PROTOCOL_VERSION + 1, 1))
    for _ in range(3):
        cluster.expect(WorkerHello)


def test_missing_input_is_reported_when_the_window_closes(start: Start) -> None:
    cluster = start()
    cluster.resident(spec())
    now_ns = time.monotonic_ns()
    action = infer(cluster.next_id(), window=(now_ns, now_ns + 30 * MS))
    result = cluster.do(action)
    assert result.status is Status.INPUT_MISSING
    assert result.end_ns > action.latest_ns


def test_io_memory_runs_out_and_comes_back(start: Start) -> None:
    cluster = start(io_bytes=MIB)
    cluster.resident(spec(floats=32768))
    row = bytes(4 * 32768)
    waiting = [infer(cluster.next_id()) for _ in range(7)]
    for action in waiting:
        cluster.say(action)
    assert cluster.do(infer(cluster.next_id())).status is Status.NO_IO_MEMORY
    for action in waiting:
        cluster.push(action.action_id, 1, row)
    assert [cluster.result(action.action_id).status for action in waiting] == [Status.OK] * 7
    again = [infer(cluster.next_id()) for _ in range(7)]
    for action in again:
        cluster.push(action.action_id, 1, row)
        cluster.say(action)
    assert [cluster.result(action.action_id).status for action in again] == [Status.OK] * 7


def test_release_and_unload_reach_the_engine(start: Start) -> None:
    cluster = start()
    cluster.resident(spec())
    assert cluster.do(Release(cluster.next_id(), "w", "m")).status is Status.BUSY
    assert cluster.do(Unload(cluster.next_id(), "w", "m")).status is Status.OK
    assert cluster.do(Release(cluster.next_id(), "w", "m")).status is Status.OK
    assert cluster.do(load(cluster.next_id())).status is Status.NOT_PREPARED
    cluster.resident(spec())


def test_engine_errors_are_results(start: Start) -> None:
    cluster = start(device_kind="abacus")
    result = cluster.do(Prepare(cluster.next_id(), "w", spec()))
    assert result.status is Status.ENGINE_ERROR
    assert "abacus" in result.detail


def test_garbage_on_both_sockets_stops_nothing(start: Start) -> None:
    cluster = start()
    cluster.resident(spec())
    for junk in (b"", b"\xc1", b"\x81\xa4type\xa5infer", bytes(1000), b"\xff" * 10):
        cluster.say(junk)
        cluster.controller.send([cluster.worker_id, junk, junk])
        cluster.gateway.send([junk])
        cluster.gateway.send([junk, junk, junk])
    cluster.push(2**63, -1, ROW)
    action = infer(cluster.next_id())
    cluster.push(action.action_id, 1, ROW)
    assert cluster.do(action).status is Status.OK


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.binary(max_size=60), min_size=1, max_size=3), min_size=5, max_size=20))
def fuzz(cluster: Cluster, messages: list[list[bytes]]) -> None:
    for frames in messages:
        cluster.controller.send([cluster.worker_id, *frames])
        cluster.gateway.send(frames)


def test_any_bytes_on_both_sockets_stop_nothing(start: Start) -> None:
    cluster = start()
    fuzz(cluster)
    cluster.resident(spec())
    action = infer(cluster.next_id())
    cluster.push(action.action_id, 1, ROW)
    assert cluster.do(action).status is Status.OK


def test_unknown_session_drops_what_waits_and_greets_with_the_truth(start: Start) -> None:
    cluster = start()
    cluster.resident(spec(), (3,))
    waiting = infer(cluster.next_id())
    cluster.say(waiting)
    cluster.say(Refused("unknown_session", "who are you?"))
    hello = cluster.expect(WorkerHello)
    assert [(each.model, each.pages) for each in hello.resident] == [("m", (3,))]
    assert hello.prepared == {"m": spec().artifact}
    assert hello.again, "its process has not ended"
    cluster.say(Welcome(PROTOCOL_VERSION, 2))
    again = infer(waiting.action_id)
    cluster.push(again.action_id, 1, ROW)
    assert cluster.do(again).status is Status.OK
    assert not cluster.received


def test_hello_waits_for_a_running_load(start: Start) -> None:
    cluster = start()
    model = spec(load_ms=300)
    assert cluster.do(Prepare(cluster.next_id(), "w", model)).status is Status.OK
    cluster.say(load(cluster.next_id(), (2,)))
    time.sleep(0.05)
    cluster.say(Refused("unknown_session", "who are you?"))
    hello = cluster.expect(WorkerHello)
    assert [each.pages for each in hello.resident] == [(2,)]
    assert not cluster.received, "the result of an abandoned LOAD was sent"


def test_silent_controller_is_greeted_anew(start: Start) -> None:
    cluster = start(controller_silence_ms=100)
    cluster.expect(WorkerHello)


def test_actions_before_the_welcome_are_dropped(start: Start) -> None:
    cluster = start(welcome=False)
    cluster.expect(WorkerHello)
    cluster.say(Prepare(1, "w", spec()))
    cluster.say(Welcome(PROTOCOL_VERSION, 1))
    assert cluster.do(load(2)).status is Status.NOT_PREPARED


def test_stopping_finishes_what_runs_rejects_the_rest_and_says_goodbye(start: Start) -> None:
    cluster = start()
    cluster.resident(spec(infer_ms=2_000))
    running, waiting = infer(cluster.next_id()), infer(cluster.next_id())
    for action in (running, waiting):
        cluster.push(action.action_id, 1, ROW)
        cluster.say(action)
    time.sleep(0.5)
    cluster.stop.set()
    assert cluster.result(running.action_id).status is Status.OK
    assert "stopping" in cluster.result(waiting.action_id).detail
    cluster.expect(Goodbye)
    assert cluster.output()[0].action_id == running.action_id


@pytest.fixture
def slow_prepare(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowPrepare]:
    """From now on a PREPARE lasts until the test lets it go on, at the latest until its end."""
    slow = SlowPrepare()
    monkeypatch.setattr(EmulatedEngine, "fetch", slow.fetch)
    monkeypatch.setattr(EmulatedEngine, "release", slow.release)
    yield slow
    slow.go_on.set()


def test_stopping_does_not_wait_for_a_running_prepare(start: Start, slow_prepare: SlowPrepare) -> None:
    cluster = start(drain_timeout_ms=3 * PATIENCE_S * 1000)
    cluster.say(Prepare(cluster.next_id(), "w", spec()))
    assert slow_prepare.began.wait(PATIENCE_S)
    cluster.stop.set()
    cluster.expect(Goodbye)
    assert not slow_prepare.go_on.is_set()
    slow_prepare.go_on.set()


def test_an_abandoned_prepare_is_undone(start: Start, slow_prepare: SlowPrepare) -> None:
    cluster = start()
    cluster.say(Prepare(cluster.next_id(), "w", spec()))
    assert slow_prepare.began.wait(PATIENCE_S)
    cluster.say(Refused("unknown_session", "who are you?"))
    assert cluster.expect(WorkerHello).prepared == {}
    cluster.say(Welcome(PROTOCOL_VERSION, 2))
    slow_prepare.go_on.set()
    assert slow_prepare.released.wait(PATIENCE_S)
    changed = msgspec.structs.replace(spec(), weights_hash="other weights")
    assert cluster.do(Prepare(cluster.next_id(), "w", changed)).status is Status.OK


def test_an_unknown_executable_is_opened_by_exec(start: Start) -> None:
    cluster = start(emulated_open_ms=20)
    opens_ns = 20 * MS
    assert cluster.do(Prepare(cluster.next_id(), "w", spec("m"))).status is Status.NOT_OPEN
    assert cluster.do(Prepare(cluster.next_id(), "w", spec("n"))).status is Status.NOT_OPEN
    assert cluster.do(load(cluster.next_id())).status is Status.NOT_PREPARED
    now_ns = time.monotonic_ns()
    missed = cluster.do(Open(cluster.next_id(), "w", "m", now_ns - 2, now_ns - 1, now_ns, opens_ns))
    assert missed.status is Status.TOO_LATE
    result = cluster.do(opening(cluster.next_id(), "m"))
    assert result.status is Status.OK
    assert result.end_ns - result.begin_ns >= opens_ns
    # It is open for every model that shares it.
    assert cluster.do(Prepare(cluster.next_id(), "w", spec("n"))).status is Status.OK
    assert cluster.do(load(cluster.next_id())).status is Status.OK
    assert cluster.do(opening(cluster.next_id(), "m")).status is Status.BAD_ACTION


def test_a_failed_opening_leaves_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: EmulatedEngine, __: ModelSpec) -> None:
        raise EngineError("no room for its code")

    cluster = start(emulated_open_ms=1)
    assert cluster.do(Prepare(cluster.next_id(), "w", spec())).status is Status.NOT_OPEN
    with monkeypatch.context() as patched:
        patched.setattr(EmulatedEngine, "prepare", fail)
        result = cluster.do(opening(cluster.next_id(), "m"))
    assert (result.status, result.detail) == (Status.ENGINE_ERROR, "no room for its code")
    assert cluster.do(opening(cluster.next_id(), "m")).status is Status.NOT_PREPARED
    assert cluster.do(Prepare(cluster.next_id(), "w", spec())).status is Status.NOT_OPEN


def test_what_was_yet_to_be_opened_for_a_lost_controller_is_forgotten(start: Start) -> None:
    cluster = start(emulated_open_ms=1)
    assert cluster.do(Prepare(cluster.next_id(), "w", spec())).status is Status.NOT_OPEN
    cluster.say(Refused("unknown_session", "who are you?"))
    assert cluster.expect(WorkerHello).prepared == {}
    cluster.say(Welcome(PROTOCOL_VERSION, 2))
    changed = msgspec.structs.replace(spec(), weights_hash="other weights")
    assert cluster.do(Prepare(cluster.next_id(), "w", changed)).status is Status.NOT_OPEN
    assert cluster.do(Release(cluster.next_id(), "w", "m")).status is Status.OK
    assert cluster.do(opening(cluster.next_id(), "m")).status is Status.NOT_PREPARED


def test_taken_data_address_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        config = WorkerConfig(name="w", engine="emulated", io_bytes=MIB, realtime=False, data_address=address)
        with pytest.raises(OSError, match=f"data_address {address}: is taken"):
            run(config, threading.Event())


def give(monkeypatch: pytest.MonkeyPatch, **methods: Callable[[], object]) -> None:
    """Have emulated devices from now on be of a class of their own, with these methods besides."""
    monkeypatch.setattr(emulated, "EmulatedEngine", type("Gifted", (EmulatedEngine,), methods))


class Watched:
    """A device that is watched: what is seen of it, and at last that it is lost."""

    def __init__(self) -> None:
        self.seen: DeviceHealth | DeviceLost = DeviceHealth(("it is hot",), (Reading("celsius", 90.0),))

    def health(self) -> DeviceHealth:
        """In `Monitored.health`'s place."""
        if isinstance(self.seen, DeviceLost):
            raise self.seen
        return self.seen


def test_what_is_seen_of_the_device_is_told_and_a_lost_one_ends_the_worker(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    give(monkeypatch, health=watched.health)
    cluster = start()

    def pong() -> Pong:
        cluster.say(Ping(1, 1))
        return cluster.expect(Pong)

    deadline_s = time.monotonic() + PATIENCE_S
    while (told := pong().health) is None and time.monotonic() < deadline_s:
        """The next tick takes it."""
    assert told == watched.seen
    watched.seen = DeviceLost("it fell off the bus")
    assert cluster.expect(Goodbye).detail == "the device is lost: it fell off the bus"
    cluster.thread.join(PATIENCE_S)
    (failure,) = cluster.failures
    assert isinstance(failure, WorkerFailed)
    cluster.failures.clear()


class Beating:
    """A device that counts its heartbeats, and notes when each was, on the monotonic clock."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.fails: Exception | None = None

    def heartbeat(self) -> None:
        """In `Awakened.heartbeat`'s place."""
        self.at_ns.append(time.monotonic_ns())
        if self.fails is not None:
            raise self.fails

    def more(self, count: int) -> None:
        """Wait for this many more heartbeats."""
        self.until(len(self.at_ns) + count)

    def until(self, count: int) -> None:
        """Wait until there were this many heartbeats in all."""
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self.at_ns) < count:
            assert time.monotonic() < deadline_s, f"{len(self.at_ns)} heartbeats, not {count}"
            time.sleep(0.005)


@pytest.fixture
def beating(monkeypatch: pytest.MonkeyPatch) -> Beating:
    """From now on emulated devices have heartbeats."""
    found = Beating()
    give(monkeypatch, heartbeat=found.heartbeat)
    return found


def test_a_device_has_heartbeats_while_it_has_nothing_to_do(start: Start, beating: Beating) -> None:
    cluster = start(heartbeat_ms=20)
    beating.more(3)
    cluster.resident(spec(infer_ms=300))
    action = infer(cluster.next_id())
    cluster.push(action.action_id, 1, ROW)
    cluster.say(action)
    result = cluster.result(action.action_id)
    beating.more(2)
    assert not [at_ns for at_ns in beating.at_ns if result.begin_ns < at_ns < result.end_ns + 15 * MS]


def test_a_device_without_heartbeats_or_whose_heartbeat_fails_goes_on(start: Start, beating: Beating) -> None:
    start().resident(spec())
    assert not beating.at_ns
    beating.fails = EngineError("no")
    cluster = start(heartbeat_ms=10)
    beating.until(1)
    cluster.resident(spec())
    assert len(beating.at_ns) == 1
    beating.fails = None
    cluster = start(heartbeat_ms=10)
    cluster.resident(spec())
    beating.fails = DeviceLost("it fell off the bus")
    assert "it fell off the bus" in cluster.expect(Goodbye).detail
    cluster.thread.join(PATIENCE_S)
    cluster.failures.clear()
