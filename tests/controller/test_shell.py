"""The shell without sockets: peers that can't be sent to, suspension, translations, the start's grace."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.controller.administration import Administration
from mainspring.controller.clock import PeerClock
from mainspring.controller.config import ControllerConfig
from mainspring.controller.logged_scheduler import SETTLE_ENTRIES, SETTLE_NS, LoggedScheduler
from mainspring.controller.memory import Memory
from mainspring.controller.outbox import (
    ANSWER_INTERVAL_NS,
    AnswerLimit,
    Dropped,
    Outbox,
    dispatches,
    on_worker_clock,
)
from mainspring.controller.shell import Shell
from mainspring.controller.start_grace import LEFT_NS, StartGrace
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.actions import DropWorker, Infer, Load, Reject, Result, Unload
from mainspring.messages.codec import encode
from mainspring.messages.codes import Status
from mainspring.messages.events import RequestArrived, RequestCancelled
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.peers import Arrival, GatewayHello, Goodbye, Pong, WorkerHello
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.telemetry.log import EventLogWriter, read_log
from mainspring.transport.bounds import Delivery
from mainspring.transport.certificate import Certificate, Named
from tests.controller.peers import MS, spec


class Wire:
    """A transport that remembers what was sent and can be made to fail for a peer."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, dict[str, object]]] = []
        self.failing: dict[bytes, Delivery] = {}
        self.hosts: dict[bytes, str] = {}
        """Of peers on other hosts."""
        self.certificates: dict[bytes, Certificate] = {}
        self.writes: list[tuple[bytes, int]] = []
        """Of several messages in one: to whom, and how many."""

    def send(self, peer: bytes, parts: Sequence[bytes]) -> Delivery:
        delivery = self.failing.get(peer, Delivery.SENT)
        if delivery is Delivery.SENT:
            self.sent.append((peer, msgspec.msgpack.decode(parts[0])))
        return delivery

    def send_all(self, peer: bytes, messages: Sequence[bytes]) -> Delivery:
        self.writes.append((peer, len(messages)))
        return [self.send(peer, [message]) for message in messages][-1]

    def backlog_bytes(self, peer: bytes) -> int:
        return 0

    def host_of(self, peer: bytes) -> str:
        return self.hosts.get(peer, "")

    def certificate(self, peer: bytes) -> Certificate | None:
        return self.certificates.get(peer)

    def disconnect(self, peer: bytes, why: str) -> None:
        self.failing[peer] = Delivery.GONE

    def kinds(self, peer: bytes) -> list[object]:
        return [message["type"] for to, message in self.sent if to == peer]


class Bench:
    """A shell on a wire, with a gateway and a joined worker."""

    def __init__(self, log: EventLogWriter | None = None) -> None:
        self.wire, self.dropped = Wire(), Dropped()
        self.scheduler = Scheduler(SchedulerConfig())
        self.logged = LoggedScheduler(self.scheduler, log, self.dropped)
        self.shell = Shell(ControllerConfig(join_pongs=1), self.logged, self.wire, self.dropped)
        self.shell.registry.add(0, spec())
        self.receive(0, b"gateway/g", GatewayHello(PROTOCOL_VERSION, "g0"))
        self.receive(
            0,
            b"worker/w",
            WorkerHello(PROTOCOL_VERSION, "w0", "cpu", 8, PAGE_BYTES, "tcp://h:1", {"m0": spec().artifact}),
        )
        self.receive(10, b"worker/w", Pong(1, 0, 5, 5))

    def receive(self, now_ns: int, peer: bytes, message: msgspec.Struct) -> None:
        self.shell.receive(now_ns, peer, [encode(message)])

    def schedule(self, now_ns: int) -> None:
        self.shell.carry_out(now_ns, self.logged.schedule(now_ns))

    def workers(self) -> list[str]:
        return [worker.worker for worker in self.scheduler.status().workers]


@pytest.mark.parametrize("delivery", [Delivery.FULL, Delivery.GONE])
def test_a_worker_that_cannot_be_sent_to_has_left(delivery: Delivery) -> None:
    bench = Bench()
    assert bench.workers() == ["w0"]
    bench.wire.failing[b"worker/w"] = delivery
    bench.shell.peers.beat(100 * MS)
    assert bench.workers() == []
    assert bench.wire.kinds(b"gateway/g")[-1] == "worker_down"
    assert bench.dropped[delivery.value] == 1


def test_a_hello_has_the_name_that_the_certificate_has() -> None:
    bench = Bench()
    for role in ("worker", "gateway"):
        certificate = Certificate((Named("here", role, "own"),), 1, "")
        bench.wire.certificates |= {f"{role}/{number}".encode(): certificate for number in range(2)}
    artifacts = {"m0": spec().artifact}
    for number, name in enumerate(("own", "w0")):
        hello = WorkerHello(PROTOCOL_VERSION, name, "cpu", 8, PAGE_BYTES, "tcp://h:1", artifacts)
        bench.receive(20, b"worker/%d" % number, hello)
        bench.receive(20, b"gateway/%d" % number, GatewayHello(PROTOCOL_VERSION, name))
    assert list(bench.shell.sessions.workers) == ["w0", "own"]
    for role in ("worker", "gateway"):
        assert bench.wire.kinds(f"{role}/0".encode())[0] == "welcome"
        assert bench.wire.kinds(f"{role}/1".encode()) == ["refused"]
    assert bench.wire.sent[-1][1]["code"] == "name_taken"
    assert "certificate is for the gateway 'own'" in str(bench.wire.sent[-1][1]["detail"])


def test_a_gateway_that_reads_too_slowly_is_forgotten() -> None:
    bench = Bench()
    bench.wire.failing[b"gateway/g"] = Delivery.FULL
    bench.shell.peers.beat(100 * MS)
    assert bench.shell.sessions.find(b"gateway/g") is None
    assert bench.dropped["peer_too_slow"] == 1


def test_a_controller_that_was_suspended_does_not_blame_its_peers() -> None:
    bench = Bench()
    bench.shell.peers.beat(100 * MS)
    bench.shell.peers.beat(10_000 * MS)
    assert bench.workers() == ["w0"]
    for beat in range(1, 15):
        bench.shell.peers.beat((10_000 + beat * 100) * MS)
    assert bench.workers() == []
    assert bench.dropped["peer_silent"] == 2


def test_a_deadline_allows_for_the_way_from_the_gateway(tmp_path: Path) -> None:
    log = EventLogWriter(tmp_path)
    bench = Bench(log)
    bench.receive(3000, b"gateway/g", Pong(1, 0, 77, 77))
    bench.receive(5000, b"gateway/g", Arrival((1 << 40) + 1, "m0", 1, 10**9))
    bench.receive(5000, b"gateway/g", Arrival((1 << 40) + 2, "m0", 1, None))
    bench.logged.close()
    arrived = [event for _, event in read_log(tmp_path) if isinstance(event, RequestArrived)]
    first, second = (event.deadline_ns for event in arrived)
    assert second is None
    assert first is not None
    assert 0 <= 5000 + 10**9 - 1500 - first <= 1


def test_what_went_in_is_written_down_after_the_commands_are_sent_and_in_its_order(tmp_path: Path) -> None:
    bench = Bench(EventLogWriter(tmp_path))
    for number in range(3):
        bench.receive(5000 + number, b"gateway/g", Arrival((1 << 40) + number, "m0", 1, None))
    bench.schedule(6000)
    bench.logged.flush()
    entries = list(read_log(tmp_path))
    assert [now_ns for now_ns, _ in entries] == sorted(now_ns for now_ns, _ in entries)
    arrived = [entry.request_id for _, entry in entries if isinstance(entry, RequestArrived)]
    assert arrived == [(1 << 40) + number for number in range(3)]
    assert bench.logged.status().models[0].arrived == 3


def test_an_event_too_large_for_the_log_is_counted_and_the_others_are_written(tmp_path: Path) -> None:
    bench = Bench(EventLogWriter(tmp_path))
    bench.logged.handle(5000, RequestCancelled(1 << 70))
    bench.logged.handle(5001, RequestCancelled(7))
    bench.logged.close()
    assert bench.dropped["not_loggable"] == 1
    logged = [entry.request_id for _, entry in read_log(tmp_path) if isinstance(entry, RequestCancelled)]
    assert logged == [7]


def test_nothing_is_sent_to_a_worker_that_broke_in_the_middle_of_a_list_of_commands() -> None:
    bench = Bench()
    bench.wire.failing[b"worker/w"] = Delivery.GONE
    actions = [Unload(1, "w0", "a"), Unload(2, "w0", "b")]
    bench.shell.carry_out(100, [*actions])
    assert bench.dropped["peer_gone"] == 2
    assert bench.workers() == []
    bench.shell.carry_out(100, [Unload(3, "w0", "c")])
    assert bench.dropped["worker_gone"] == 1


def test_what_a_turn_has_to_say_to_a_peer_leaves_in_one_write() -> None:
    bench = Bench()
    bench.wire.sent.clear()
    infers = [infer((1 << 40) + number, action_id=20 + number) for number in range(3)]
    bench.shell.carry_out(100, [infers[0], Unload(7, "w0", "a"), *infers[1:]])
    assert bench.wire.writes == [(b"gateway/g", 3), (b"worker/w", 4)]
    assert bench.wire.kinds(b"gateway/g") == ["dispatch"] * 3
    told = [message["action_id"] for to, message in bench.wire.sent if to == b"worker/w"]
    assert told == [20, 7, 21, 22]
    bench.shell.peers.beat(100 * MS)
    assert bench.wire.kinds(b"worker/w")[-1] == "ping"
    assert len(bench.wire.writes) == 2


def test_a_worker_that_is_dropped_has_what_was_to_be_sent_before_and_nothing_after() -> None:
    bench = Bench()
    bench.wire.sent.clear()
    bench.shell.carry_out(100, [Unload(1, "w0", "a"), DropWorker("w0", "silent"), Unload(2, "w0", "b")])
    assert bench.wire.kinds(b"worker/w") == ["unload", "refused"]
    assert bench.wire.kinds(b"gateway/g") == ["worker_down"]
    assert bench.dropped["worker_gone"] == 1


def test_every_message_of_a_write_that_failed_counts() -> None:
    bench = Bench()
    bench.wire.failing[b"gateway/g"] = Delivery.FULL
    bench.shell.carry_out(100, [infer((1 << 40) + 1), infer((1 << 40) + 2, action_id=10)])
    assert bench.dropped["peer_too_slow"] == 2
    assert bench.shell.sessions.find(b"gateway/g") is None


def test_entries_are_kept_for_a_moment_or_until_they_are_some(tmp_path: Path) -> None:
    bench = Bench(EventLogWriter(tmp_path))
    bench.logged.settle()
    assert not bench.logged.unsettled(10**18)
    bench.logged.handle(5000, RequestCancelled(1))
    assert not bench.logged.unsettled(5000 + SETTLE_NS - 1)
    assert bench.logged.unsettled(5000 + SETTLE_NS)
    for number in range(1, SETTLE_ENTRIES):
        assert not bench.logged.unsettled(5000)
        bench.logged.handle(5000, RequestCancelled(1 + number))
    assert bench.logged.unsettled(5000)
    bench.logged.settle()
    assert not bench.logged.unsettled(10**18)
    bench.logged.handle(6000, RequestCancelled(0))
    bench.logged.flush()
    logged = [entry.request_id for _, entry in read_log(tmp_path) if isinstance(entry, RequestCancelled)]
    assert logged == [*range(1, SETTLE_ENTRIES + 1), 0]


def test_draining_ends_once_nothing_is_queued_and_no_infer_is_out() -> None:
    bench = Bench()
    bench.shell.drain()
    assert bench.shell.drained()
    bench.shell.carry_out(10, [infer((1 << 40) + 1)])
    assert not bench.shell.drained()
    bench.wire.failing[b"worker/w"] = Delivery.GONE
    bench.shell.peers.beat(100)
    assert bench.shell.drained()


def infer(*request_ids: int, action_id: int = 9) -> Infer:
    count = len(request_ids)
    return Infer(
        action_id,
        "w0",
        "m0",
        16,
        request_ids,
        (1,) * count,
        tuple(n % 2 == 0 for n in range(count)),
        10,
        30,
        15,
        5,
    )


@given(st.lists(st.integers(0, 2**44), unique=True, min_size=1, max_size=16))
def test_dispatches_share_a_batch_out_without_loss(request_ids: list[int]) -> None:
    action = infer(*request_ids)
    parts = dispatches(action)
    cold = dict(zip(action.request_ids, action.cold, strict=True))
    assert sorted(number for part in parts.values() for number in part.request_ids) == sorted(request_ids)
    for number, part in parts.items():
        assert {request_id >> 40 for request_id in part.request_ids} == {number}
        assert part.cold == tuple(cold[request_id] for request_id in part.request_ids)
        assert (part.action_id, part.worker, part.batch_size) == (9, "w0", 16)


def ahead(offset_ns: int, way_ns: int) -> PeerClock:
    """Return the clock of a peer that is ahead, over a link that takes as long out as back."""
    clock = PeerClock()
    clock.add(0, way_ns + offset_ns, way_ns + offset_ns, 2 * way_ns)
    return clock


@given(st.integers(-(2**62), 2**62))
def test_only_instants_are_translated(offset_ns: int) -> None:
    clock = ahead(offset_ns, 0)
    there = on_worker_clock(infer(1), clock)
    assert isinstance(there, Infer)
    assert (there.earliest_ns, there.predicted_begin_ns) == (10 + offset_ns, 15 + offset_ns)
    assert 0 <= 30 + offset_ns - there.latest_ns <= 2
    load = Load(1, "w0", "m0", (3,), 1, 2, 3, 4)
    moved = on_worker_clock(load, clock)
    assert isinstance(moved, Load)
    assert (moved.pages, moved.predicted_duration_ns) == ((3,), 4)
    assert on_worker_clock(Unload(1, "w0", "m0"), clock) == Unload(1, "w0", "m0")


@given(st.integers(-(10**15), 10**15), st.integers(0, 10**6), st.integers(0, 10**7))
def test_a_window_ends_earlier_by_as_much_as_the_clock_may_be_wrong(
    offset_ns: int, way_ns: int, window_ns: int
) -> None:
    clock, latest_ns = ahead(offset_ns, way_ns), 2 * way_ns + window_ns
    there = on_worker_clock(Load(1, "w0", "m0", (3,), 2 * way_ns, latest_ns, 3, 4), clock)
    assert isinstance(there, Load)
    error_ns = clock.error_ns(latest_ns)
    assert way_ns <= error_ns <= way_ns + 4 + (2 * way_ns + window_ns) // 1000
    # Whatever the worker's clock really says within the bound, it begins inside the window or not at all.
    latest_begin_ns = there.latest_ns - offset_ns + way_ns
    assert latest_begin_ns <= latest_ns + 1 or there.latest_ns == there.earliest_ns
    assert there.earliest_ns <= there.latest_ns


def test_evidence_is_in_the_log_and_not_on_the_wire(tmp_path: Path) -> None:
    bench = Bench(EventLogWriter(tmp_path))
    bench.schedule(20)
    bench.receive(MS, b"worker/w", Result(1, "w0", Status.OK, 20, 30))
    bench.receive(2 * MS, b"gateway/g", Arrival((1 << 40) + 1, "m0", 1, 500 * MS))
    bench.receive(2 * MS, b"gateway/g", Arrival((1 << 40) + 2, "m0", 1, 1))
    bench.schedule(2 * MS)
    bench.receive(3 * MS, b"worker/w", Result(2, "w0", Status.OK, 2 * MS, 3 * MS))
    bench.schedule(3 * MS)
    bench.logged.close()
    logged = [entry for _, entry in read_log(tmp_path) if isinstance(entry, Infer | Load | Reject)]
    assert {type(entry) for entry in logged} == {Infer, Load, Reject}
    assert all(entry.evidence is not None for entry in logged)
    sent = {str(message["type"]): set(message) for _, message in bench.wire.sent}
    window = {"earliest_ns", "latest_ns", "predicted_begin_ns", "predicted_duration_ns"}
    action = {"type", "action_id", "worker", "model", *window}
    assert sent["load"] == {*action, "pages"}
    assert sent["infer"] == {*action, "batch_size", "request_ids", "rows", "cold"}
    assert sent["rejected"] == {"type", "request_id", "reason", "detail", "earliest_finish_left_ns"}


def test_a_peer_is_told_a_code_at_a_bounded_rate() -> None:
    limit = AnswerLimit()
    said: Callable[[int, str], bool] = lambda now_ns, code: limit.allows(now_ns, b"p", code)  # noqa: E731
    assert [said(0, "a"), said(1, "a"), said(1, "b")] == [True, False, True]
    assert said(ANSWER_INTERVAL_NS, "a")
    assert limit.allows(1, b"q", "a")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"heartbeat_interval_ms": 0.0}, "heartbeat_interval_ms is 0"),
        ({"heartbeat_interval_ms": 600.0}, "heartbeat_timeout_ms is 1000.0; it must be at least"),
        ({"event_log_segment_bytes": 2, "event_log_max_bytes": 1}, "event_log_segment_bytes is 2"),
        ({"burst_messages": -1}, "burst_messages is -1"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ControllerConfig(**settings)  # type: ignore[arg-type]


def test_a_command_that_cannot_be_sent_does_not_keep_the_others_from_leaving(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.wire.sent.clear()
    whole = infer(1 << 40)
    bench.shell.carry_out(20, [msgspec.structs.replace(whole, latest_ns=2**70), whole])
    assert bench.wire.kinds(b"worker/w") == ["infer"]
    assert bench.dropped["internal_error"] == 1
    assert "could not carry out Infer(action_id=9" in caplog.text


def test_infers_out_are_forgotten_with_their_worker() -> None:
    bench = Bench()
    bench.shell.drain()
    bench.shell.carry_out(20, [infer(1 << 40)])
    assert (bench.shell.sessions.infers_out(), bench.shell.drained()) == (1, False)
    bench.receive(30, b"worker/w", Goodbye("it stops"))
    assert (bench.shell.sessions.infers_out(), bench.shell.drained()) == (0, True)


def test_a_status_that_takes_long_to_make_is_made_rarely() -> None:
    bench = Bench()
    cost_ns = 0
    instant_ns = itertools.count()
    administration = Administration(
        bench.logged,
        bench.shell.registry,
        bench.shell.sessions,
        Outbox(bench.wire, bench.shell.sessions, bench.dropped),
        bench.dropped,
        Memory(),
        clock=lambda: next(instant_ns) * cost_ns,
        shards=bench.shell.shards,
        moves=bench.shell.moves,
    )
    first = administration.status(0)
    assert administration.status(50 * MS) is first
    cost_ns = 80 * MS
    second = administration.status(51 * MS)
    assert second is not first
    assert administration.status(51 * MS + 20 * 80 * MS) is second
    assert administration.status(52 * MS + 20 * 80 * MS) is not second


GRACE_NS = 1_000


def arrival(number: int, deadline_ns: int | None = None) -> RequestArrived:
    return RequestArrived(number, "m", 1, deadline_ns)


def hold(grace: StartGrace, now_ns: int, event: RequestArrived) -> bool:
    return grace.hold(now_ns, event.request_id, (event, ()))


def begun(limit: int = 10) -> StartGrace:
    grace = StartGrace(GRACE_NS, limit)
    grace.began(0)
    return grace


def test_arrivals_wait_for_the_first_worker_in_order() -> None:
    grace = begun()
    assert all(hold(grace, number, arrival(number)) for number in range(5))
    grace.cancel(3)
    assert grace.release(10, worker_joined=False) == []
    assert [request_id for request_id, _ in grace.release(11, worker_joined=True)] == [0, 1, 2, 4]
    assert not hold(grace, 12, arrival(9))
    assert len(grace) == 0


def test_the_grace_ends_without_a_worker() -> None:
    grace = begun()
    assert hold(grace, 0, arrival(1))
    grace.began(900)
    assert [request_id for request_id, _ in grace.release(GRACE_NS, worker_joined=False)] == [1]
    assert not hold(grace, GRACE_NS, arrival(2))


def test_what_is_too_much_is_not_held() -> None:
    grace = begun(limit=2)
    assert hold(grace, 0, arrival(2))
    assert hold(grace, 0, arrival(3))
    assert not hold(grace, 0, arrival(4))


def test_a_request_is_given_up_shortly_before_its_deadline() -> None:
    grace = StartGrace(10 * LEFT_NS, 10)
    grace.began(0)
    assert grace.next_ns() is None
    for number, deadline_ns in ((1, 4 * LEFT_NS), (2, None), (3, 3 * LEFT_NS), (4, 2 * LEFT_NS)):
        assert hold(grace, 0, arrival(number, deadline_ns))
    grace.cancel(4)
    assert grace.given_up(2 * LEFT_NS - 1) == []
    assert grace.given_up(2 * LEFT_NS) == [3]
    assert grace.next_ns() == 3 * LEFT_NS
    assert grace.given_up(9 * LEFT_NS) == [1]
    assert grace.next_ns() == 10 * LEFT_NS
    assert [request_id for request_id, _ in grace.release(10 * LEFT_NS, worker_joined=False)] == [2]
