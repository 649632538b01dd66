"""The outcome of requests: each by itself, for tests and stories, or in columns, for runs of any length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason
from mainspring.messages.events import RequestArrived
from mainspring.simulator.gateway import Flight
from mainspring.telemetry.percentiles import DurationHistogram
from mainspring.traces.records import Records

SHOWN_OF = 16
"""Number of answers to each one that goes into the percentiles of the progress."""


@dataclass
class Outcome:
    """The outcome of one request, as its gateway saw it."""

    request: RequestArrived
    arrived_ns: int
    answered_ns: int | None = None
    reason: Reason | None = None
    """Reason why it was rejected; None if it got outputs, or nothing yet."""
    answers: int = 0
    """Replies to the client."""
    cold: bool = False
    batch_size: int = 0

    @property
    def in_time(self) -> bool:
        """Return whether outputs came by the deadline."""
        deadline_ns = self.request.deadline_ns
        return (
            self.answered_ns is not None
            and self.reason is None
            and (deadline_ns is None or self.answered_ns <= deadline_ns)
        )


class Completed(Protocol):
    """A receiver of the news that a closed-loop client has its answer."""

    def completed(self, client: int, now_ns: int) -> None:
        """Take note of it."""


class Ledger:
    """Takes the gateway's replies down; keeps an `Outcome` of each request only if it is to."""

    def __init__(
        self,
        records: Records | None,
        start_ns: int,
        keep: bool,
        source: Completed | None = None,
        comes_back: Callable[[int, Flight, Reason], bool] | None = None,
    ) -> None:
        """Records count from ``start_ns``; what was sent earlier has none.

        ``comes_back`` takes a refusal whose client may ask again, and returns whether it does.
        """
        self.outcomes: dict[int, Outcome] = {}
        self.goodput = self.late = self.rejected = 0
        """Counts since ``start_ns``."""
        self.completed = False
        """True if a closed-loop client had its answer since this was last set to False."""
        self._comes_back = comes_back
        self.tenants: dict[str, list[int]] = {}
        """Requests of each tenant that was named since ``start_ns``, and how many were answered in time."""
        self.latency = DurationHistogram()
        self.start_ns = start_ns
        self._records = records
        self._keep = keep
        self._source = source

    def submitted(self, flight: Flight) -> None:
        """A request came to the gateway."""
        if self._keep:
            request_id = flight.request.request_id
            self.outcomes[request_id] = Outcome(flight.request, flight.arrived_ns)

    def offered(self, flight: Flight) -> None:
        """Count a tenant's request, which may be submitted several times."""
        if flight.key >= 0:
            self.tenants.setdefault(flight.request.tenant, [0, 0])[0] += 1

    def key(self, time_ns: int, model: str, rows: int, slo_ns: int | None) -> int:
        """Return the key of the record of a request that is sent now; -1 if none is kept."""
        if self._records is None or time_ns < self.start_ns:
            return -1
        since_ns = time_ns - self.start_ns
        return self._records.sent(since_ns, since_ns, model, rows, slo_ns)

    def outputs(self, now_ns: int, flight: Flight, timing: Timing) -> None:
        """Same as `gateway.Replies.outputs`."""
        if flight.key >= 0 and self._records is not None:
            tenant = flight.request.tenant
            if self._records.outputs(flight.key, now_ns - self.start_ns, timing):
                self.goodput += 1
                if tenant:
                    self.tenants[tenant][1] += 1
            else:
                self.late += 1
            if not flight.key % SHOWN_OF:
                self.latency.add(timing.total_ns)
        if self._keep:
            outcome = self.outcomes[flight.request.request_id]
            outcome.answers += 1
            outcome.answered_ns = now_ns
            outcome.cold = timing.cold_start
            outcome.batch_size = timing.batch_size
        if flight.client >= 0 and self._source is not None:
            self._source.completed(flight.client, now_ns)
            self.completed = True

    def error(self, now_ns: int, flight: Flight, reason: Reason) -> None:
        """Same as `gateway.Replies.error`; the record of a request that comes back stays open."""
        returns = False
        if flight.retry_ns and self._comes_back is not None:
            returns = self._comes_back(now_ns, flight, reason)
        if flight.key >= 0 and self._records is not None and not returns:
            self._records.error(flight.key, now_ns - self.start_ns, reason)
            self.rejected += 1
        if self._keep:
            outcome = self.outcomes[flight.request.request_id]
            outcome.answers += 1
            outcome.answered_ns = now_ns
            outcome.reason = reason
        if flight.client >= 0 and self._source is not None and not returns:
            self._source.completed(flight.client, now_ns)
            self.completed = True
