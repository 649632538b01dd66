"""The moment after a controller's start, in which requests wait for the first worker."""

from __future__ import annotations

from mainspring.controller.grace import LEFT_NS, StartGrace
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


def test_what_is_too_much_is_not_held() -> None:
    grace = begun(limit=2)
    assert grace.hold(0, arrival(2))
    assert grace.hold(0, arrival(3))
    assert not grace.hold(0, arrival(4))


def test_a_request_is_given_up_shortly_before_its_deadline() -> None:
    grace = StartGrace(10 * LEFT_NS, 10)
    grace.began(0)
    assert grace.next_ns() is None
    for number, deadline_ns in ((1, 4 * LEFT_NS), (2, None), (3, 3 * LEFT_NS), (4, 2 * LEFT_NS)):
        assert grace.hold(0, arrival(number, deadline_ns))
    grace.cancel(4)
    assert grace.given_up(2 * LEFT_NS - 1) == []
    assert [event.request_id for event in grace.given_up(2 * LEFT_NS)] == [3]
    assert grace.next_ns() == 3 * LEFT_NS
    assert [event.request_id for event in grace.given_up(9 * LEFT_NS)] == [1]
    assert grace.next_ns() == 10 * LEFT_NS
    assert [event.request_id for event in grace.release(10 * LEFT_NS, worker_joined=False)] == [2]


def test_a_request_before_the_first_worker_is_served_once_it_joins(stage: Stage) -> None:
    """One whose deadline is sooner is told that workers are on their way back, and not that there is none."""
    stage.start((spec(),), start_grace_ms=60_000.0)
    gateway = stage.gateway()
    held = gateway.arrive(1, left_ms=120_000)
    hurried = gateway.arrive(2, left_ms=500)
    stage.until(lambda: bool(gateway.all(Rejected)))
    (refused,) = gateway.all(Rejected)
    assert (refused.request_id, refused.reason) == (hurried, Reason.NO_WORKER)
    assert "no worker is back yet: send the request again" in refused.detail
    short = gateway.arrive(3, left_ms=30_000)
    worker = stage.worker()
    worker.prepared = {"m0": spec().artifact}
    worker.hello(prepared=worker.prepared)
    stage.until(lambda: {held, short} <= {request for each in worker.received for request in ids(each)})
    assert bool(worker.all(Welcome))


def ids(message: object) -> tuple[int, ...]:
    """The requests of an action; none of any other message."""
    found: tuple[int, ...] = getattr(message, "request_ids", ())
    return found


def test_without_a_worker_a_request_is_rejected_after_the_grace(stage: Stage) -> None:
    stage.start((spec(),), start_grace_ms=100.0)
    gateway = stage.gateway()
    gateway.arrive(1)
    stage.until(lambda: bool(gateway.all(Rejected)))
    assert gateway.last(Rejected).reason is Reason.NO_WORKER
    detail = gateway.last(Rejected).detail
    assert detail == "no worker is connected; if one starts or comes back, send the request again"
