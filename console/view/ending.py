"""What a result changes: where the model is, and how long such actions are expected to take from now on."""

from __future__ import annotations

from collections.abc import Container

from mainspring.console.view.actions import Action, Lane
from mainspring.console.view.durations import Durations
from mainspring.console.view.models import BROKEN, FAILED, PREPARED, RESIDENT, Placement
from mainspring.console.view.workers import WorkerState
from mainspring.messages.actions import Result
from mainspring.messages.codes import Status

LOAD_ATTEMPTS = 3
"""LOADs in a row that a worker's engine may fail before the scheduler gives the model up there."""
MISSED_FACTOR = 3, 2
"""Inputs that did not come in time are taken to need so much more than they were given."""
_OK = Status.OK.value
_STOPPING = Status.STOPPING.value
_INPUT_MISSING = Status.INPUT_MISSING.value
_ENGINE_ERROR = Status.ENGINE_ERROR.value


def take_out(worker: WorkerState, result: Result) -> tuple[Lane, Action] | None:
    """Take a result's action out of those that are outstanding; None if it is not among them."""
    for lane in worker.history.lanes():
        action = lane.outstanding.pop(result.action_id, None)
        if action is not None:
            return lane, action
    return None


def close(now_ns: int, seq: int, action: Action, result: Result) -> None:
    """Enter a result into its action."""
    action.done_seq, action.done_ns = seq, now_ns
    action.begin_ns, action.end_ns = result.begin_ns, result.end_ns
    action.inputs_ns, action.detail = result.inputs_ns, result.detail
    # As `value`, which is a call.
    action.status = result.status._value_


class Ending:
    """Enters results."""

    def __init__(self, durations: Durations, dispatch_delay_ns: int) -> None:
        self._durations = durations
        self._dispatch_delay_ns = dispatch_delay_ns

    def ended(
        self, now_ns: int, seq: int, worker: WorkerState, action: Action, waiting: Container[int]
    ) -> None:
        """Enter an action's end into its worker; ``waiting`` are the requests that somebody waits for."""
        worker.history.last_result_ns = now_ns
        ok = action.status == _OK
        if action.status == _STOPPING and not worker.stopping_seq:
            worker.stopping_seq = seq
        if not ok:
            worker.history.failed[f"{action.kind} {action.status}"] += 1
        placement = worker.placements.get(action.model)
        if placement is None:
            return
        if action.kind == "INFER":
            placement.infers -= 1
            self._inferred(now_ns, seq, worker, placement, action, waiting)
        elif action.kind == "LOAD":
            self._loaded(now_ns, seq, worker, placement, action)
        elif action.kind == "PREPARE":
            self._prepared(worker, placement, action)
        elif action.kind == "RELEASE" and ok:
            forget(worker, placement)

    def _inferred(
        self,
        now_ns: int,
        seq: int,
        worker: WorkerState,
        placement: Placement,
        action: Action,
        waiting: Container[int],
    ) -> None:
        """Learn from an INFER what the scheduler learns from it."""
        ok = action.status == _OK
        duration_ns = action.end_ns - action.begin_ns
        if ok:
            worker.history.erred(now_ns, duration_ns - action.predicted_duration_ns, load=False)
        spec = placement.model.spec
        if spec is None or action.batch_size not in spec.batch_sizes or not self._durations.holds(spec):
            return
        index = spec.batch_sizes.index(action.batch_size)
        infers = self._durations.infers(worker.device_kind, spec)
        times = infers.times
        infer_ns, transfer_ns = [*times.ns], [*times.transfer_ns]
        taken_ns = self._inputs_taken_ns(worker, action, waiting)
        if taken_ns is not None:
            times.add_transfer(now_ns, index, taken_ns)
        if ok:
            times.add(now_ns, index, duration_ns)
        infers.note(seq, infer_ns, transfer_ns)

    def _inputs_taken_ns(self, worker: WorkerState, action: Action, waiting: Container[int]) -> int | None:
        """Return how long an INFER's inputs kept the way busy, or None if that teaches nothing."""
        missed = action.status == _INPUT_MISSING and not action.inputs_ns
        if not missed and not action.inputs_ns:
            return None
        until_ns = action.inputs_ns or action.end_ns
        since_ns = max(action.sent_ns + self._dispatch_delay_ns, worker.inputs_seen_ns)
        worker.inputs_seen_ns = max(worker.inputs_seen_ns, until_ns)
        taken_ns = max(0, until_ns - since_ns)
        if missed:
            if any(request_id not in waiting for request_id in action.requests):
                return None
            factor, divisor = MISSED_FACTOR
            taken_ns = taken_ns * factor // divisor
        return taken_ns

    def _loaded(
        self, now_ns: int, seq: int, worker: WorkerState, placement: Placement, action: Action
    ) -> None:
        """A model is in its pages, or they are free again."""
        if action.status != _OK:
            placement.failures += action.status == _ENGINE_ERROR
            placement.detail = action.detail
            worker.give_back(placement)
            placement.enter(BROKEN if placement.failures >= LOAD_ATTEMPTS else PREPARED)
            return
        placement.enter(RESIDENT)
        placement.failures = 0
        took_ns = action.end_ns - action.begin_ns
        worker.history.erred(now_ns, took_ns - action.predicted_duration_ns, load=True)
        spec = placement.model.spec
        if spec is not None and self._durations.holds(spec):
            loads = self._durations.loads(worker.device_kind, spec)
            before_ns = loads.time.ns
            loads.time.add(now_ns, took_ns)
            loads.note(seq, before_ns)
            self._durations.loaded(worker.device_kind, spec, took_ns)

    def _prepared(self, worker: WorkerState, placement: Placement, action: Action) -> None:
        """A model is prepared, or can't be."""
        ok = action.status == _OK
        if worker.stopping_seq and not ok:
            return
        placement.enter(PREPARED if ok else FAILED)
        placement.detail = action.detail
        if placement.leaving and not ok:
            forget(worker, placement)


def forget(worker: WorkerState, placement: Placement) -> None:
    """Strike a placement."""
    worker.give_back(placement)
    worker.strike(placement)
    if placement.model.placements.get(worker.name) is placement:
        del placement.model.placements[worker.name]
