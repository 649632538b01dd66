"""The moment after a controller's start, in which requests wait for the first worker."""

from __future__ import annotations

from mainspring.controller.grace import StartGrace
from mainspring.messages.codes import Reason
from mainspring.messages.events import RequestArrived
from mainspring.messages.peers import Rejected, Welcome
from tests.controller.peers import Stage, spec

GRACE_NS = 1_000


def arrival(number: int, deadline_ns: int | None = None) -> RequestArrived:
    return RequestArrived(number, "m", 1, deadline_ns)


def begun(limit: int = 10) -> StartGrace:
    grace = StartGrace(GRACE_NS, limit)
    grace.began(0)
    return grace


def test_arrivals_wait_for_the_first_worker_in_order() -> None:
    grace = begun()
    assert all(grace.hold(number, arrival(number)) for number in range(5))
    grace.cancel(3)
    assert grace.release(10, worker_joined=False) == []
    assert [event.request_id for event in grace.release(11, worker_joined=True)] == [0, 1, 2, 4]
    assert not grace.hold(12, arrival(9))
    assert len(grace) == 0


def test_the_grace_ends_without_a_worker() -> None:
    grace = begun()
    assert grace.hold(0, arrival(1))
    grace.began(900)
    assert [event.request_id for event in grace.release(GRACE_NS, worker_joined=False)] == [1]
    assert not grace.hold(GRACE_NS, arrival(2))


def test_what_cannot_wait_and_what_is_too_much_is_not_held() -> None:
    grace = begun(limit=2)
    assert not grace.hold(0, arrival(1, deadline_ns=GRACE_NS))
    assert grace.hold(0, arrival(2, deadline_ns=GRACE_NS + 1))
    assert grace.hold(0, arrival(3))
    assert not grace.hold(0, arrival(4))


def test_a_request_before_the_first_worker_is_served_once_it_joins(stage: Stage) -> None:
    stage.start((spec(),), start_grace_ms=60_000.0)
    gateway = stage.gateway()
    held = gateway.arrive(1, left_ms=120_000)
    hurried = gateway.arrive(2, left_ms=500)
    stage.until(lambda: bool(gateway.all(Rejected)))
    assert [(each.request_id, each.reason) for each in gateway.all(Rejected)] == [(hurried, Reason.NO_WORKER)]
    worker = stage.worker()
    worker.prepared = {"m0": spec().artifact}
    worker.hello(prepared=worker.prepared)
    stage.until(lambda: any(held in getattr(each, "request_ids", ()) for each in worker.received))
    assert bool(worker.all(Welcome))


def test_without_a_worker_a_request_is_rejected_after_the_grace(stage: Stage) -> None:
    stage.start((spec(),), start_grace_ms=100.0)
    gateway = stage.gateway()
    gateway.arrive(1)
    stage.until(lambda: bool(gateway.all(Rejected)))
    assert gateway.last(Rejected).reason is Reason.NO_WORKER
