"""A workload being played: when the next request is due, and what follows from an answer.

The replayer and the simulator drive the same `Source`: `next_ns`, `take`, and `completed` for each answer. An
open loop ignores answers; in a closed loop (Clockwork, section 6.2: "16 closed-loop clients") an answer
decides when its client sends the next request.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mainspring.traces.arrival import Arrival, WorkloadError


class Source(Protocol):
    """A workload being played. Times are nanoseconds from its start."""

    def next_ns(self) -> int | None:
        """Return when the next request is due; None if none is scheduled as things stand."""

    def take(self) -> Arrival:
        """Return the next request; only when `next_ns` is not None."""

    def completed(self, client: int, now_ns: int) -> None:
        """Note that the request of this client (`Arrival.client`) has a reply, of any kind."""

    def done(self, now_ns: int, /) -> bool:
        """Return whether no arrival follows, whatever is answered."""


class Playable(Protocol):
    """An object that can be played: a `Workload` or a `ClosedLoop`."""

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that may be named."""

    def source(self, rng: np.random.Generator) -> Source:
        """Start to play."""


class OpenSource:
    """Arrivals that come when they come."""

    def __init__(self, arrivals: Iterator[Arrival]) -> None:
        self._arrivals = arrivals
        self._next = next(arrivals, None)

    def next_ns(self) -> int | None:
        """Same as `Source.next_ns`."""
        return None if self._next is None else self._next.time_ns

    def take(self) -> Arrival:
        """Same as `Source.take`; raises RuntimeError when the workload is over."""
        taken = self._next
        if taken is None:
            raise RuntimeError("the workload is over: nothing is left to take")
        self._next = next(self._arrivals, None)
        return taken

    def completed(self, client: int, now_ns: int) -> None:
        """Ignore the answer."""

    def done(self, _now_ns: int, /) -> bool:
        """Same as `Source.done`."""
        return self._next is None


@dataclass(frozen=True)
class ClosedClient:
    """A client that keeps ``concurrency`` requests to one model in flight."""

    model: str
    concurrency: int = 1
    rows: int = 1
    slo_ns: int | None = None
    think_ns: int = 0
    """Pause between an answer and the next request."""

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.rows < 1 or self.think_ns < 0:
            raise WorkloadError(
                f"closed-loop client of {self.model!r}: concurrency {self.concurrency} and rows {self.rows}"
                f" must be at least 1, think_ns {self.think_ns} at least 0"
            )


@dataclass(frozen=True)
class ClosedLoop:
    """Clients that send their next request when the last is answered, until ``duration_ns``."""

    clients: tuple[ClosedClient, ...]
    duration_ns: int
    ramp_ns: int = 100_000_000
    """The first requests come at random within this time, so that clients do not march in step."""

    @property
    def models(self) -> tuple[str, ...]:
        """Models of all clients, each once."""
        return tuple(dict.fromkeys(client.model for client in self.clients))

    def source(self, rng: np.random.Generator) -> ClosedSource:
        """Start to play."""
        return ClosedSource(self.clients, self.duration_ns, self.ramp_ns, rng)


class ClosedSource:
    """A closed loop being played. Its order does not depend on anything but seed and answers."""

    def __init__(
        self, clients: Sequence[ClosedClient], duration_ns: int, ramp_ns: int, rng: np.random.Generator
    ) -> None:
        self._clients = clients
        self._duration_ns = duration_ns
        slots = [number for number, client in enumerate(clients) for _ in range(client.concurrency)]
        starts = (rng.random(len(slots)) * min(ramp_ns, duration_ns)).astype(np.int64).tolist()
        self._due = list(zip(starts, slots, strict=True))
        heapq.heapify(self._due)

    def next_ns(self) -> int | None:
        """Same as `Source.next_ns`."""
        return self._due[0][0] if self._due else None

    def take(self) -> Arrival:
        """Same as `Source.take`."""
        time_ns, number = heapq.heappop(self._due)
        client = self._clients[number]
        return Arrival(time_ns, client.model, client.rows, client.slo_ns, number)

    def completed(self, client: int, now_ns: int) -> None:
        """Schedule the client's next request, unless time is up."""
        due_ns = now_ns + self._clients[client].think_ns
        if due_ns < self._duration_ns:
            heapq.heappush(self._due, (due_ns, client))

    def done(self, now_ns: int, /) -> bool:
        """Same as `Source.done`."""
        return now_ns >= self._duration_ns
