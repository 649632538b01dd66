"""The controller over real sockets: requests, clocks, workers that come and go, restarts."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from mainspring.controller import server
from mainspring.controller.config import ControllerConfig
from mainspring.controller.running import run
from mainspring.controller.server import Controller
from mainspring.messages.actions import Infer, Load, Prepare, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.peers import (
    Arrival,
    Cancel,
    Dispatch,
    Goodbye,
    ModelUp,
    Refused,
    Rejected,
    Welcome,
    WorkerDown,
    WorkerUp,
)
from mainspring.scheduler.config import SchedulerConfig
from tests.controller.failing import Failing
from tests.controller.peers import MS, Stage, spec


def test_a_gateway_hears_of_models_and_workers_right_after_its_welcome(stage: Stage) -> None:
    stage.start((spec("m0"), spec("m1")))
    worker = stage.worker()
    stage.until(lambda: bool(worker.all(Welcome)))
    gateway = stage.gateway()
    stage.until(lambda: bool(gateway.all(WorkerUp)))
    told = [each for each in gateway.received if isinstance(each, Welcome | ModelUp | WorkerUp)]
    assert told[:4] == [
        Welcome(1, 1),
        ModelUp(spec("m0")),
        ModelUp(spec("m1")),
        WorkerUp("w0", "tcp://127.0.0.1:1"),
    ]


def test_a_worker_gets_work_only_after_a_burst_of_pings(stage: Stage) -> None:
    stage.start((spec("m0"),), join_pongs=8, heartbeat_interval_ms=400.0)
    worker = stage.worker()
    worker.answers_pings = False
    stage.pump_for(0.2)
    assert worker.all(Prepare) == []
    worker.answers_pings = True
    stage.until(lambda: bool(worker.all(Prepare)))
    assert worker.pings >= 8


def test_a_request_is_sent_to_a_worker_and_dispatched_by_its_gateway(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    request_id = gateway.arrive(7)
    stage.until(lambda: bool(gateway.all(Dispatch)) and bool(worker.all(Infer)))
    infer = worker.last(Infer)
    assert [load.model for load in worker.all(Load)] == ["m0"]
    assert infer.request_ids == (request_id,)
    assert gateway.all(Dispatch) == [
        Dispatch(infer.action_id, "w0", (request_id,), infer.cold, infer.batch_size)
    ]


def test_a_batch_is_dispatched_to_each_gateway_with_its_own_requests(stage: Stage) -> None:
    stage.start((spec(infer_ms=50),))
    gateway, worker = stage.cluster("m0")
    other = stage.gateway("g1")
    worker.holds = (Infer,)
    gateway.arrive(1)
    stage.until(lambda: len(worker.all(Infer)) == 1)
    mine, theirs = [gateway.arrive(2), gateway.arrive(3)], [other.arrive(2)]
    worker.holds = ()
    worker.end(worker.last(Infer))
    stage.until(lambda: sum(len(infer.request_ids) for infer in worker.all(Infer)) == 4)
    stage.until(lambda: sum(len(dispatch.request_ids) for dispatch in other.all(Dispatch)) == 1)
    dispatched = [request_id for dispatch in gateway.all(Dispatch)[1:] for request_id in dispatch.request_ids]
    assert sorted(dispatched) == mine
    assert [dispatch.request_ids for dispatch in other.all(Dispatch)] == [tuple(theirs)]


@pytest.mark.parametrize("offset_s", [3600, -1000])
def test_instants_are_on_the_workers_clock_on_the_wire(stage: Stage, offset_s: int) -> None:
    stage.start((spec(),))
    gateway = stage.gateway()
    worker = stage.worker(offset_ns=offset_s * 10**9)
    stage.until(lambda: stage.knows(gateway, "w0", 1))
    gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Infer)))
    infer = worker.last(Infer)
    assert abs(infer.earliest_ns - worker.now_ns()) < 10 * 10**9
    assert infer.earliest_ns <= infer.predicted_begin_ns <= infer.latest_ns
    offset_ns = stage.status(gateway).workers[0].clock_offset_ns
    assert abs(offset_ns - offset_s * 10**9) < 10**9
    stage.until(lambda: stage.status(gateway).models[0].finished == 1)
    assert "bad_result" not in stage.status(gateway).dropped_messages


def test_a_late_result_of_an_earlier_session_is_dropped_and_counted(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    worker.holds = (Infer,)
    gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Infer)))
    stale = worker.last(Infer)
    worker.hello()
    stage.until(lambda: len(worker.all(Welcome)) == 2 and stage.knows(gateway, "w0", 1))
    request_id = gateway.arrive(2)
    stage.until(lambda: worker.last(Infer).request_ids == (request_id,))
    worker.end(stale)
    stage.until(lambda: stage.status(gateway).dropped_messages.get("stale_result") == 1)
    assert stage.status(gateway).workers[0].outstanding == 1


def test_a_silent_worker_has_left_and_its_requests_go_elsewhere(stage: Stage) -> None:
    stage.start((spec(),), heartbeat_interval_ms=50.0, heartbeat_timeout_ms=400.0)
    gateway, worker = stage.cluster("m0")
    worker.holds = (Infer,)
    request_id = gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Infer)))
    other = stage.worker("w1")
    stage.until(lambda: stage.knows(gateway, "w1", 1))
    worker.answers_pings = False
    stage.until(lambda: bool(other.all(Infer)))
    assert other.last(Infer).request_ids == (request_id,)
    stage.until(lambda: gateway.all(WorkerDown) == [WorkerDown("w0")])
    stage.until(lambda: bool(worker.all(Refused)))
    assert worker.last(Refused).code == "unknown_session"


def test_a_worker_lost_without_another_means_a_rejection(stage: Stage) -> None:
    stage.start((spec(),), heartbeat_interval_ms=50.0, heartbeat_timeout_ms=300.0)
    gateway, worker = stage.cluster("m0")
    worker.holds = (Infer,)
    request_id = gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Infer)))
    worker.answers_pings = False
    stage.until(lambda: bool(gateway.all(Rejected)))
    assert gateway.last(Rejected).request_id == request_id
    assert gateway.last(Rejected).reason in (Reason.WORKER_FAILED, Reason.NO_WORKER)


def test_a_vanished_connection_is_noticed_before_the_heartbeat_times_out(stage: Stage) -> None:
    stage.start((spec(),), heartbeat_timeout_ms=60_000.0)
    gateway, worker = stage.cluster("m0")
    worker.close()
    stage.until(lambda: bool(gateway.all(WorkerDown)))
    assert stage.status(gateway).dropped_messages["peer_gone"] >= 1


def test_a_worker_that_owes_a_result_is_dropped_and_may_join_again(stage: Stage) -> None:
    stage.start((spec(),), SchedulerConfig(action_timeout_ms=100.0, load_window_ms=10.0))
    gateway, worker = stage.cluster("m0")
    worker.holds = (Load,)
    gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Refused)))
    assert worker.last(Refused).code == "unknown_session"
    assert "dropped" in worker.last(Refused).detail
    stage.until(lambda: gateway.all(WorkerDown) == [WorkerDown("w0")])
    worker.holds = ()
    worker.hello()
    stage.until(lambda: stage.knows(gateway, "w0", 1))


def test_goodbyes_end_sessions_at_once(stage: Stage) -> None:
    stage.start((spec(),), heartbeat_timeout_ms=60_000.0)
    gateway, worker = stage.cluster("m0")
    worker.send(Goodbye("told to stop"))
    stage.until(lambda: gateway.all(WorkerDown) == [WorkerDown("w0")])
    assert stage.status(gateway).workers == ()


def test_requests_of_a_gateway_that_left_are_forgotten(stage: Stage) -> None:
    stage.start((spec(infer_ms=2000),))
    gateway, worker = stage.cluster("m0")
    watcher = stage.gateway("g1")
    worker.holds = (Infer,)
    for counter in range(8):
        gateway.arrive(counter, left_ms=None)
    stage.until(lambda: stage.status(watcher).requests_queued > 0)
    gateway.send(Goodbye("told to stop"))
    stage.until(lambda: stage.status(watcher).requests_queued == 0)


def test_a_cancelled_request_is_forgotten_unless_it_is_anothers(stage: Stage) -> None:
    stage.start((spec(infer_ms=2000),))
    gateway, worker = stage.cluster("m0")
    other = stage.gateway("g1")
    worker.holds = (Infer,)
    gateway.arrive(1, left_ms=None)
    stage.until(lambda: bool(worker.all(Infer)))
    waiting = gateway.arrive(2, left_ms=None)
    stage.until(lambda: stage.status(gateway).requests_queued == 1)
    other.send(Cancel(waiting))
    stage.until(lambda: stage.status(gateway).dropped_messages.get("foreign_request") == 1)
    assert stage.status(gateway).requests_queued == 1
    gateway.send(Cancel(waiting))
    stage.until(lambda: stage.status(gateway).requests_queued == 0)


def test_a_request_numbered_for_another_session_is_rejected(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, _ = stage.cluster("m0")
    gateway.send(Arrival((99 << 40) + 1, "m0", 1, 10**9))
    stage.until(lambda: bool(gateway.all(Rejected)))
    assert gateway.last(Rejected).request_id == (99 << 40) + 1
    assert gateway.last(Rejected).reason is Reason.CONTROLLER_UNREACHABLE


def test_a_hopeless_request_is_rejected_with_the_earliest_finish_left(stage: Stage) -> None:
    stage.start((spec(infer_ms=500),))
    gateway, _ = stage.cluster("m0")
    began_ns = time.monotonic_ns()
    gateway.arrive(1, left_ms=20)
    stage.until(lambda: bool(gateway.all(Rejected)))
    # What is left is told as it is when the reply leaves, some time after the decision.
    past_ns = time.monotonic_ns() - began_ns
    rejected = gateway.last(Rejected)
    assert rejected.reason is Reason.DEADLINE_UNREACHABLE
    assert rejected.earliest_finish_left_ns is not None
    assert 500 * MS - past_ns <= rejected.earliest_finish_left_ns < 1000 * MS


@pytest.mark.parametrize("left_ns", [2**63 - 1, -(2**63), 0])
def test_absurd_deadlines_are_survived(stage: Stage, left_ns: int) -> None:
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    gateway.send(Arrival((1 << 40) + 1, "m0", 1, left_ns))
    stage.until(lambda: bool(gateway.all(Rejected)) or bool(worker.all(Infer)))
    assert bool(gateway.all(Rejected)) == (left_ns <= 0)


def test_a_restarted_controller_takes_back_what_workers_hold(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Infer)))
    stage.stop()
    stage.until(lambda: bool(worker.all(Goodbye)) and bool(gateway.all(Goodbye)))
    stage.start((spec(),), address=stage.address)
    gateway.arrive(2)
    stage.until(lambda: bool(gateway.all(Refused)))
    assert gateway.last(Refused).code == "unknown_session"
    loads = len(worker.all(Load))
    gateway.hello()
    worker.hello()
    stage.until(lambda: len(gateway.all(Welcome)) == 2 and stage.knows(gateway, "w0", 1))
    status = stage.status(gateway)
    assert status.workers[0].resident == 1
    assert status.models[0].resident_on == ("w0",)
    infers = len(worker.all(Infer))
    gateway.arrive(3)
    stage.until(lambda: len(worker.all(Infer)) == infers + 1)
    assert worker.last(Infer).cold == (False,)
    assert len(worker.all(Load)) == loads


def test_a_stop_finishes_what_was_accepted_and_turns_the_rest_away(stage: Stage) -> None:
    stage.start((spec(),), drain_timeout_ms=20_000.0)
    gateway, worker = stage.cluster("m0")
    worker.holds = (Infer,)
    gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Infer)))
    _, thread, stop = stage.controllers[-1]
    stop.set()
    stage.pump_for(0.3)
    refused = gateway.arrive(2)
    stage.until(lambda: bool(gateway.all(Rejected)))
    assert gateway.last(Rejected).request_id == refused
    assert gateway.last(Rejected).reason is Reason.SHUTTING_DOWN
    assert stage.admin(gateway, add=spec("m9")).reason is Reason.SHUTTING_DOWN
    assert thread.is_alive()
    worker.end(worker.last(Infer))
    stage.until(lambda: bool(gateway.all(Goodbye)) and bool(worker.all(Goodbye)))
    stage.until(lambda: not thread.is_alive())


def test_a_stop_does_not_wait_for_ever(stage: Stage) -> None:
    stage.start((spec(),), drain_timeout_ms=100.0)
    gateway, worker = stage.cluster("m0")
    worker.holds = (Infer,)
    gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Infer)))
    stage.stop()
    stage.until(lambda: bool(gateway.all(Goodbye)))


def test_a_result_that_cannot_be_true_is_dropped(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    worker.holds = (Infer,)
    gateway.arrive(1)
    stage.until(lambda: bool(worker.all(Infer)))
    action_id = worker.last(Infer).action_id
    for begin_ns, end_ns, name in ((2**62, 2**63 - 1, "w0"), (5, 4, "w0"), (5, 6, "w9")):
        worker.send(Result(action_id, name, Status.OK, begin_ns, end_ns))
    worker.send(Result(action_id, "w0", Status.OK, 5, 6, inputs_ns=7))
    stage.until(lambda: stage.status(gateway).dropped_messages.get("bad_result") == 4)
    assert stage.status(gateway).workers[0].outstanding == 1


def test_an_error_of_ours_is_loud_and_serving_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "Scheduler", Failing)
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    gateway.send(Cancel((1 << 40) + 5))
    gateway.arrive(6)
    stage.until(lambda: bool(worker.all(Infer)))
    assert stage.status(gateway).dropped_messages["scheduler_error"] == 1
    critical = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert len(critical) == 1
    assert "RequestCancelled" in critical[0].getMessage()
    assert "two owners" in caplog.text


def test_a_taken_address_is_named(stage: Stage) -> None:
    stage.start()
    with pytest.raises(OSError, match=stage.address):
        Controller(ControllerConfig(address=stage.address), SchedulerConfig(), ())


def test_a_bad_model_at_the_start_is_named() -> None:
    with pytest.raises(ValueError, match="other weights"):
        Controller(
            ControllerConfig(address="tcp://127.0.0.1:*"),
            SchedulerConfig(),
            (spec("m0", "h0"), spec("m0", "h1")),
        )


def test_run_reports_its_address_and_returns_once_stopped() -> None:
    stop, addresses = threading.Event(), []

    def ready(address: str) -> None:
        addresses.append(address)
        stop.set()

    run(ControllerConfig(address="tcp://127.0.0.1:*"), SchedulerConfig(), (spec(),), stop, ready)
    assert addresses[0].startswith("tcp://127.0.0.1:")


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
