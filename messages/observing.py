"""What the controller tells observers: a snapshot of the cluster's state, then its event stream, live.

An *observer* (a console) connects to the controller's one listener, says `ObserverHello` and is welcomed like
any peer. From then on it gets `Records`, each with one frame behind it: a MessagePack array of records
``[now_ns, entry]``, each as the event log has it (`telemetry.log`), Wakeups left out.

First comes a snapshot, behind the log's ``SegmentHeader`` with the run, the calendar and the scheduler's
configuration. `messages.snapshot` has its entries, their order and how to read them. It is made in slices
while the controller goes on serving, and what happens meanwhile comes in between, in order.

Beside the records comes what no log has: what workers' GPUs say of themselves (`Devices`), how their clocks
go (`Clocks`), and what can't be counted on at the moment (`Unready`).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from mainspring.messages.metrics import DeviceHealth
from mainspring.messages.operating import Operate, Operated

OBSERVER_VERSION = 5
"""Version of this conversation and of the event stream's entries."""


class ObserverHello(msgspec.Struct, frozen=True, tag="observer_hello"):
    """An observer's first message, and its first again after each `Refused`."""

    protocol: int
    observer: str
    """What it calls itself, for the logs; several may have the same name."""


class Stage(StrEnum):
    """What the records of one message belong to."""

    BEGIN = "begin"
    """A snapshot begins with them: what was known of the state is void."""
    PART = "part"
    """They go on with it."""
    END = "end"
    """They are its last; from now on everything is known."""
    LIVE = "live"
    """They are what happened, whether a snapshot is being made or not."""


class Records(msgspec.Struct, frozen=True, tag="records"):
    """A frame with a MessagePack array of records follows."""

    run: int
    """Names this life of the controller: Unix time in nanoseconds at which it began. Instants of two runs
    can't be compared."""
    stage: Stage
    now_ns: int
    """When it was sent: everything that happened before is in it, or in what came before."""


class Devices(msgspec.Struct, frozen=True, tag="devices"):
    """What workers' GPUs say of themselves: sent once a second, if it has changed."""

    workers: dict[str, DeviceHealth]
    """By worker; one whose device says nothing is left out."""


class WorkerClock(msgspec.Struct, frozen=True, array_like=True):
    """What the controller knows of a worker's clock."""

    offset_ns: int
    """The worker's clock less the controller's."""
    error_ns: int
    """By how much that may be wrong; the windows of its actions end earlier by as much."""
    rate_ppm: float
    """What the worker's clock gains, in microseconds for a second."""


class Clocks(msgspec.Struct, frozen=True, tag="clocks"):
    """What is known of workers' clocks: sent once a second, if any worker has joined."""

    workers: dict[str, WorkerClock]


class Unready(msgspec.Struct, frozen=True, tag="unready"):
    """What can't be counted on: sent at a heartbeat, if it has changed."""

    silent: tuple[str, ...] = ()
    """Workers that give no sign of life, and are not given up yet."""
    awaited: dict[str, str] = {}
    """Models that are to be served and are not yet, by what clients call them, each with why
    (`messages.readiness`)."""
    more: int = 0
    """How many more there are of these than are named."""


FromObserver = ObserverHello | Operate
"""What a controller may receive of an observer, beside `peers.Pong` and `peers.Goodbye`."""

ToObserver = Records | Operated | Devices | Clocks | Unready
"""What an observer may receive, beside what every peer may (`peers.ToWorker`)."""
