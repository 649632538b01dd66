"""From an event stream to records: what became of each request as the controller saw it.

For comparing a recorded run with a simulated one from the same place. An answer's instant is when its INFER's
result, or its rejection, passed the controller; clients and gateways are one way further.
"""

from __future__ import annotations

from mainspring.messages.actions import Infer, Result
from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason, Status
from mainspring.messages.commands import Command, Reject
from mainspring.messages.events import Event, GatewayLeft, RequestArrived, RequestCancelled
from mainspring.messages.ids import gateway_of
from mainspring.simulator.agenda import NEVER_NS
from mainspring.traces.records import Records


class StreamRecords:
    """Takes every entry of an event log, or of a simulation's stream, in order."""

    def __init__(self) -> None:
        self.records = Records()
        self.start_ns = NEVER_NS
        """The first request's arrival, from which records count."""
        self._open: dict[int, tuple[int, int, int | None]] = {}
        """Unanswered requests: (record's key, arrival, deadline)."""
        self._infers: dict[int, tuple[int, Infer]] = {}
        """Outstanding INFERs, with the instant of sending."""

    def take(self, now_ns: int, entry: Event | Command) -> None:
        """Take one entry in."""
        if isinstance(entry, RequestArrived):
            self._arrived(now_ns, entry)
        elif isinstance(entry, Infer):
            self._infers[entry.action_id] = (now_ns, entry)
        elif isinstance(entry, Result):
            self._result(now_ns, entry)
        elif isinstance(entry, Reject):
            self._error(now_ns, entry.request_id, entry.reason)
        elif isinstance(entry, RequestCancelled):
            self._error(now_ns, entry.request_id, Reason.CANCELLED)
        elif isinstance(entry, GatewayLeft):
            gone = [request_id for request_id in self._open if gateway_of(request_id) == entry.number]
            for request_id in gone:
                self._error(now_ns, request_id, Reason.CANCELLED)

    def _arrived(self, now_ns: int, event: RequestArrived) -> None:
        self.start_ns = min(self.start_ns, now_ns)
        since_ns = now_ns - self.start_ns
        slo_ns = None if event.deadline_ns is None else event.deadline_ns - now_ns
        key = self.records.sent(since_ns, since_ns, event.model, event.rows, slo_ns)
        self._open[event.request_id] = (key, now_ns, event.deadline_ns)

    def _result(self, now_ns: int, result: Result) -> None:
        sent_ns, action = self._infers.pop(result.action_id, (0, None))
        if action is None or result.status is not Status.OK:
            return
        for request_id, cold in zip(action.request_ids, action.cold, strict=True):
            known = self._open.pop(request_id, None)
            if known is not None:
                key, arrived_ns, deadline_ns = known
                left_ns = None if deadline_ns is None else deadline_ns - now_ns
                queue_ns, execute_ns = sent_ns - arrived_ns, result.end_ns - result.begin_ns
                timing = Timing(
                    now_ns - arrived_ns, queue_ns, execute_ns, left_ns, action.batch_size, cold, action.worker
                )
                self.records.outputs(key, now_ns - self.start_ns, timing)

    def _error(self, now_ns: int, request_id: int, reason: Reason) -> None:
        known = self._open.pop(request_id, None)
        if known is not None:
            self.records.error(known[0], now_ns - self.start_ns, reason)
