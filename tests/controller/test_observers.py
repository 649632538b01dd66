"""Observers on real sockets: a picture, then what happens; and what the controller does with bad ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring.console.live import Batch, LiveStream
from mainspring.controller import observers, server
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import TO_OBSERVER, encode
from mainspring.messages.events import RequestArrived, Wakeup
from mainspring.messages.metrics import DeviceHealth, Reading
from mainspring.messages.observing import OBSERVER_VERSION, Clocks, Devices, ObserverHello, Unready
from mainspring.messages.observing import Stage as Part
from mainspring.messages.peers import (
    Arrival,
    Dispatch,
    Goodbye,
    Ping,
    Refused,
    Rejected,
    Welcome,
    WorkerHello,
)
from mainspring.telemetry.entries import SegmentHeader
from mainspring.telemetry.log import read_entries
from tests.blocking import Client
from tests.cluster.replica import Replica, stands
from tests.controller.failing import Untold
from tests.controller.peers import FakeGateway, Stage, spec

MODELS = tuple(spec(f"m{number}") for number in range(40))
NAMES = tuple(model.name for model in MODELS)


PATIENT: dict[str, Any] = {"goodbye_linger_ms": 10_000.0}
"""What is said last reaches those who read slowly, too."""


class Watcher:
    """A console without a page: what it was told, and what it makes of that."""

    def __init__(self, address: str, name: str = "console") -> None:
        self.stream = LiveStream(address, name)
        self.replica = Replica()
        self.batches: list[Batch] = []
        self.last = 0
        """The request that arrived last, as far as it was told."""

    def pump(self) -> None:
        while (batch := self.stream.poll()) is not None:
            if batch.stage is Part.BEGIN:
                self.replica = Replica()
            self.batches.append(batch)
            for now_ns, entry in batch.records:
                self.replica.take(now_ns, entry)
                if isinstance(entry, RequestArrived):
                    self.last = entry.request_id

    @property
    def live(self) -> bool:
        self.pump()
        return self.stream.state == "live"

    @property
    def pictures(self) -> int:
        self.pump()
        return sum(batch.stage is Part.BEGIN for batch in self.batches)

    def happened(self) -> list[tuple[int, Any]]:
        """What was told beside pictures."""
        batches = [batch for batch in self.batches if batch.stage is Part.LIVE]
        return [each for batch in batches for each in batch.records if not isinstance(each[1], Wakeup)]

    def arrived(self) -> list[int]:
        """The requests that were told of beside pictures."""
        return [entry.request_id for _, entry in self.happened() if isinstance(entry, RequestArrived)]


class Deaf:
    """An observer that answers nothing, and reads only what it is asked to."""

    def __init__(self, address: str, name: bytes = b"deaf") -> None:
        self.socket = Client(address, name, role="observer")
        self.socket.send([encode(ObserverHello(OBSERVER_VERSION, "deaf"))])

    def next(self, kind: type[msgspec.Struct]) -> Any:
        """Read until a message of a kind comes, and return it."""
        while not isinstance(message := TO_OBSERVER.decode(self.socket.receive()[0]), kind):
            pass
        return message


@pytest.fixture
def opened() -> Iterator[list[Watcher | Deaf]]:
    """What is closed at the end."""
    found: list[Watcher | Deaf] = []
    yield found
    for each in found:
        (each.stream if isinstance(each, Watcher) else each.socket).close()


@pytest.fixture
def watch(stage: Stage, opened: list[Watcher | Deaf]) -> Any:
    """Return a function that begins to watch."""

    def begin(name: str = "console") -> Watcher:
        watcher = Watcher(stage.address, name)
        opened.append(watcher)
        return watcher

    return begin


def serve(stage: Stage, gateway: FakeGateway, first: int = 0, count: int = 200) -> None:
    """Have requests for all models dispatched or rejected."""
    sent = {gateway.arrive(number, NAMES[number % len(NAMES)]) for number in range(first, first + count)}

    def answered() -> bool:
        dispatched = {id_ for message in gateway.all(Dispatch) for id_ in message.request_ids}
        return sent <= dispatched | {message.request_id for message in gateway.all(Rejected)}

    stage.until(answered)


def stop(stage: Stage, *watchers: Watcher) -> None:
    """Stop the controller while they go on reading, and check its scheduler's state.

    It must have been started with `PATIENT`.
    """
    controller, thread, stopped = stage.controllers.pop()
    stopped.set()

    def ended() -> bool:
        for watcher in watchers:
            watcher.pump()
        return not thread.is_alive()

    stage.until(ended)
    controller.scheduler.validate()
    ended()


def test_an_observer_knows_how_things_stand_and_what_happens(stage: Stage, watch: Any) -> None:
    controller = stage.start(MODELS, **PATIENT)
    gateway, _ = stage.cluster(*NAMES)
    serve(stage, gateway)
    watcher = watch()
    stage.until(lambda: watcher.live)
    serve(stage, gateway, 200)
    stop(stage, watcher)
    assert watcher.stream.detail == "the controller left: the controller stops"
    assert watcher.replica.stands() == stands(controller.scheduler._state.cluster)
    assert len(watcher.arrived()) == len(set(watcher.arrived())) == 200


def test_a_picture_that_is_made_under_load_is_whole(stage: Stage, watch: Any) -> None:
    controller = stage.start(MODELS, **PATIENT)
    gateway, _ = stage.cluster(*NAMES)
    watchers = [watch() for _ in range(3)]
    number = 0
    while not all(watcher.live for watcher in watchers):
        gateway.arrive(number := number + 1, NAMES[number % len(NAMES)])
        stage.pump()
    serve(stage, gateway, number + 1)
    stop(stage, *watchers)
    expected = stands(controller.scheduler._state.cluster)
    for watcher in watchers:
        assert watcher.pictures == 1
        assert watcher.replica.stands() == expected


def test_the_log_is_the_same_whoever_watches_and_holds_what_observers_were_told(
    stage: Stage, watch: Any, tmp_path: Path
) -> None:
    stage.start(MODELS, event_log_dir=str(tmp_path))
    gateway, _ = stage.cluster(*NAMES)
    serve(stage, gateway, 0, 50)
    watcher = watch()
    stage.until(lambda: watcher.live)
    serve(stage, gateway, 50, 100)
    stage.until(lambda: watcher.live and len(watcher.arrived()) == 100)
    watcher.stream.close()
    stage.until(lambda: not stage.controllers[-1][0]._shell.observers)
    serve(stage, gateway, 150, 50)
    stage.stop()
    logged = [each for each in read_entries(tmp_path) if not isinstance(each[1], Wakeup | SegmentHeader)]
    requests = [entry.request_id for _, entry in logged if isinstance(entry, RequestArrived)]
    assert len(requests) == 200
    told = watcher.happened()
    assert told
    first = logged.index(told[0])
    assert logged[first : first + len(told)] == told
    run = next(entry.run for _, entry in read_entries(tmp_path) if isinstance(entry, SegmentHeader))
    assert {batch.run for batch in watcher.batches} == {run}


def test_an_observer_is_found_again_by_a_controller_that_restarts(stage: Stage, watch: Any) -> None:
    stage.start(MODELS, **PATIENT)
    gateway, worker = stage.cluster(*NAMES)
    watcher = watch()
    stage.until(lambda: watcher.live)
    before = watcher.batches[-1].run
    address = stage.address
    stage.stop()
    stage.until(lambda: not watcher.live)
    controller = stage.start(MODELS, address=address, **PATIENT)
    for peer in (gateway, worker):
        peer.hello()
    stage.until(lambda: watcher.live and watcher.pictures == 2)
    assert watcher.batches[-1].run > before
    stage.until(lambda: stage.knows(gateway, "w0", len(NAMES)))
    stop(stage, watcher)
    assert watcher.replica.stands() == stands(controller.scheduler._state.cluster)


def test_who_does_not_read_is_cut_off_and_begins_anew_and_nobody_else_notices(
    stage: Stage, watch: Any, opened: list[Watcher | Deaf]
) -> None:
    controller = stage.start(MODELS, observer_backlog_bytes=100_000, observer_timeout_ms=60_000)
    gateway, _ = stage.cluster(*NAMES)
    watcher = watch("reads")
    frozen = Deaf(stage.address)
    opened.append(frozen)
    frozen.next(Welcome)
    stage.until(lambda: watcher.live)
    observers, most, asked, last = controller._shell.observers, 0, 0, 0

    def caught_up() -> bool:
        """Say whether the reader has received everything so far: much at once may be too much."""
        return bool(watcher.live) and (watcher.last == last or len(observers) == 1)

    while len(observers) == 2:
        assert asked < 1_000_000, "it was never cut off"
        for _ in range(300):
            asked += 1
            last = gateway.arrive(asked, NAMES[asked % len(NAMES)], left_ms=0.001)
        stage.until(caught_up)
        most = max(most, controller._listener.backlog_bytes(b"observer/deaf"))
    assert most < 1_000_000
    assert controller._listener.backlog_bytes(b"observer/deaf") == 0
    assert watcher.live
    assert watcher.pictures == 1
    again = watch("deaf")
    stage.until(lambda: again.live)
    stage.stop()
    assert controller._dropped["observer_too_slow"] == 1


def test_one_more_than_may_watch_is_refused_until_another_leaves(stage: Stage, watch: Any) -> None:
    stage.start(MODELS, max_observers=2)
    first, second = watch("first"), watch("second")
    stage.until(lambda: first.live and second.live)
    third = watch("third")
    stage.until(lambda: third.live or "refuses" in third.stream.detail)
    assert third.stream.state == "connecting"
    assert "2 observers are connected, which is the bound (max_observers)" in third.stream.detail
    first.stream.close()
    stage.until(lambda: third.live)


def test_one_that_says_nothing_for_long_is_forgotten(
    stage: Stage, watch: Any, opened: list[Watcher | Deaf]
) -> None:
    controller = stage.start(MODELS, observer_timeout_ms=300.0)
    watcher, silent = watch(), Deaf(stage.address)
    opened.append(silent)
    silent.next(Ping)
    stage.until(lambda: watcher.live and len(controller._shell.observers) == 1)
    assert watcher.live


def test_without_observers_nothing_is_kept(stage: Stage, watch: Any) -> None:
    controller = stage.start(MODELS)
    gateway, _ = stage.cluster(*NAMES)
    waiting, observers = controller._logged.records.waiting, controller._shell.observers
    serve(stage, gateway)
    assert waiting.count == 0
    watcher = watch()
    stage.until(lambda: watcher.live)
    watcher.stream.close()
    stage.until(lambda: not observers)
    serve(stage, gateway, 200)
    assert waiting.count == 0
    assert observers.due_ns > time.monotonic_ns() + 10**12


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Arrival(1, "m0", 1, None), "an observer may not send Arrival"),
        (ObserverHello(OBSERVER_VERSION, ""), "its name has 0 characters; it must have 1 to 128"),
        (ObserverHello(OBSERVER_VERSION + 1, "console"), "install the same release"),
    ],
)
def test_what_an_observer_may_not_say_is_refused_with_why(
    stage: Stage, opened: list[Watcher | Deaf], message: msgspec.Struct, words: str
) -> None:
    stage.start(MODELS)
    observer = Deaf(stage.address)
    opened.append(observer)
    observer.next(Welcome)
    observer.socket.send([encode(message)])
    assert words in observer.next(Refused).detail


def test_an_observer_can_not_become_a_worker(stage: Stage, opened: list[Watcher | Deaf]) -> None:
    controller = stage.start(MODELS)
    observer = Deaf(stage.address)
    opened.append(observer)
    observer.next(Welcome)
    observer.socket.send([encode(WorkerHello(PROTOCOL_VERSION, "w", "cpu", 1, 16 << 20, "tcp://h:1"))])
    assert observer.next(Refused).detail == "an observer may not send WorkerHello to the controller"
    assert len(controller._shell.observers) == 1
    assert not controller._shell.sessions.workers


def test_a_fault_in_telling_ends_the_observers_sessions_and_nothing_else(
    stage: Stage, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "Scheduler", Untold)
    controller = stage.start(MODELS)
    gateway, _ = stage.cluster(*NAMES)
    watcher = watch()
    stage.until(lambda: not watcher.live and controller._dropped["internal_error"] > 0)
    serve(stage, gateway)
    assert isinstance(controller.scheduler, Untold)
    controller.scheduler.broken = False
    stage.until(lambda: watcher.live)
    assert Goodbye not in [type(message) for message in gateway.received]


def devices_to(told: list[msgspec.Struct]) -> Callable[[msgspec.Struct], None]:
    """Return what keeps each `Devices`."""

    def keep(message: msgspec.Struct) -> None:
        if isinstance(message, Devices):
            told.append(message)

    return keep


def test_observers_are_told_how_workers_clocks_go(
    stage: Stage, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "DEVICES_NS", 0)
    stage.start(MODELS)
    stage.worker("w0")
    watcher, told = watch(), list[msgspec.Struct]()
    watcher.stream.on_answer = told.append
    stage.until(lambda: watcher.live and any(isinstance(each, Clocks) for each in told))
    clocks = next(each for each in told if isinstance(each, Clocks))
    assert [*clocks.workers] == ["w0"]
    own = clocks.workers["w0"]
    assert 0 < own.error_ns < 10**8
    assert abs(own.offset_ns) <= own.error_ns
    assert (own.rate_ppm == 0) or abs(own.rate_ppm) < 1000


def test_what_gpus_say_is_told_once_as_long_as_it_stays_the_same(
    stage: Stage, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "DEVICES_NS", 0)
    stage.start(MODELS)
    stage.gateway()
    first, second = stage.worker("w0"), stage.worker("w1")
    hot = DeviceHealth(("it is hot",), (Reading("mainspring_gpu_temperature_celsius", 90.0),))
    first.health = hot
    watcher, told = watch(), list[msgspec.Struct]()
    watcher.stream.on_answer = devices_to(told)
    stage.until(lambda: watcher.live and told[-1:] == [Devices({"w0": hot})])
    before = len(told)
    second.health = DeviceHealth(("it is lost",))
    stage.until(lambda: watcher.live and len(told) > before)
    assert told[before:] == [Devices({"w0": hot, "w1": second.health})]
    first.health = second.health = None
    stage.until(lambda: watcher.live and told[-1] == Devices({}))
    late, heard = watch("late"), list[msgspec.Struct]()
    late.stream.on_answer = devices_to(heard)
    stage.until(lambda: watcher.live and late.live and bool(heard))
    assert heard == [Devices({})]


def test_observers_are_told_of_silent_workers(stage: Stage, watch: Any) -> None:
    stage.start(MODELS, heartbeat_timeout_ms=4_000.0)
    worker = stage.worker("w0")
    watcher, told = watch(), list[msgspec.Struct]()
    watcher.stream.on_answer = told.append

    def unready() -> list[msgspec.Struct]:
        return [each for each in told if isinstance(each, Unready)]

    stage.until(lambda: watcher.live and bool(unready()))
    assert unready() == [Unready()]
    worker.answers_pings = False
    stage.until(lambda: watcher.live and Unready(("w0",)) in unready())
    worker.answers_pings = True
    stage.until(lambda: watcher.live and unready()[-1] == Unready())
