"""The stream from the controller to observers: a snapshot of the cluster's state, then its events, live.

An *observer* (a console) connects to the controller's one listener, says `ObserverHello` and is welcomed like
any peer. From then on it gets `Records`, each with one frame behind it: a MessagePack array of records
``[now_ns, entry]``, each as the event log has it (`telemetry.log`), Wakeups left out.

First comes a snapshot, behind the log's ``SegmentHeader`` with the run, the calendar and the scheduler's
configuration. `messages.snapshot` has its entries, their order and how to read them. It is made in slices
while the controller goes on serving, and what happens meanwhile comes in between, in order.

Beside the records comes what no log has: what workers' GPUs say of themselves (`Devices`), how their clocks
go (`Clocks`), what can't be counted on at the moment (`Unready`), and what applications learnt
(`learning.LearningOfGateways`).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from mainspring.messages.learning import LearningOfGateways
from mainspring.messages.metrics import DeviceHealth
from mainspring.messages.operating import Operate, Operated

OBSERVER_VERSION = 6
"""Version of this conversation and of the event stream's entries."""


class ObserverHello(msgspec.Struct, frozen=True, tag="observer_hello"):
    """An observer's first message, and its first again after each `Refused`."""

    protocol: int
    observer: str
    """Name that it gives itself, for the logs; several may have the same name."""


class Stage(StrEnum):
    """The part of the stream that the records of one message belong to."""

    BEGIN = "begin"
    """A snapshot begins with them: what was known of the state is void."""
    PART = "part"
    """The snapshot goes on with them."""
    END = "end"
    """The snapshot ends with them; from now on everything is known."""
    LIVE = "live"
    """The records are what happened, whether a snapshot is being made or not."""


class Records(msgspec.Struct, frozen=True, tag="records"):
    """A frame with a MessagePack array of records follows."""

    run: int
    """Names this life of the controller: Unix time in nanoseconds at which it began. Instants of two runs
    can't be compared."""
    stage: Stage
    now_ns: int
    """Instant at which it was sent: everything that happened before is in it, or in what came before."""


class Devices(msgspec.Struct, frozen=True, tag="devices"):
    """Reports of workers' GPUs about themselves: sent once a second, if one has changed."""

    workers: dict[str, DeviceHealth]
    """Report of each worker's device, by worker; one whose device reports nothing is left out."""


class WorkerClock(msgspec.Struct, frozen=True, array_like=True):
    """The controller's knowledge of a worker's clock."""

    offset_ns: int
    """The worker's clock less the controller's."""
    error_ns: int
    """Bound on the error of ``offset_ns``; the windows of the worker's actions end earlier by as much."""
    rate_ppm: float
    """Rate at which the worker's clock gains, in microseconds for a second."""


class Clocks(msgspec.Struct, frozen=True, tag="clocks"):
    """The clocks of workers: sent once a second, if any worker has joined."""

    workers: dict[str, WorkerClock]


class Unready(msgspec.Struct, frozen=True, tag="unready"):
    """The workers and models that can't be counted on: sent at a heartbeat, if they have changed."""

    silent: tuple[str, ...] = ()
    """Workers that give no sign of life, and are not given up yet."""
    awaited: dict[str, str] = {}
    """Models that are to be served and are not yet, by what clients call them, each with why
    (`messages.readiness`)."""
    more: int = 0
    """Number of these that are not named."""


FromObserver = ObserverHello | Operate
"""Messages that a controller may receive from an observer, beside `peers.Pong` and `peers.Goodbye`."""

ToObserver = Records | Operated | Devices | Clocks | Unready | LearningOfGateways
"""Messages that an observer may receive, beside those that every peer may (`peers.ToWorker`)."""
