"""What the controller tells observers: a picture of the cluster's state, then its event stream, live.

An *observer* (a console) connects to the controller's one listener, says `ObserverHello` and is welcomed like
any peer. From then on it gets `Records`, each with one frame behind it: a MessagePack array of records
``[now_ns, entry]``, each as the event log has it (`telemetry.log`), Wakeups left out.

First comes a *picture*: entries that rebuild the state, made in slices while the controller goes on serving.
What happens meanwhile comes in between, in order: a slice holds the state at the instant at which it was
made, and the records behind it hold what changed since. Every entry therefore replaces what was known of its
subject, leaves everything else as it was, and may come twice. A picture holds, in this order:

* the log's ``SegmentHeader``, with the run, the calendar and the scheduler's configuration,
* `RequestArrived` for each request that waits,
* for each worker `WorkerJoined`, with its pages and nothing in them, and its outstanding actions, as the
  commands that they were; before an INFER `RequestArrived` for each of its requests,
* `ModelAdded` for each model, `Estimated` for what is expected of its actions,
* `Holding`, in parts, for what each worker has of which models,
* what operators set.

Records of a picture bear the instants at which things happened where those are known (a request's arrival, an
action's sending), so that their instants are not in order.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from mainspring.messages.operating import Operate, Operated


class ObserverHello(msgspec.Struct, frozen=True, tag="observer_hello"):
    """An observer's first message, and its first again after each `Refused`."""

    protocol: int
    observer: str
    """What it calls itself, for the logs; several may have the same name."""


class Stage(StrEnum):
    """What the records of one message belong to."""

    BEGIN = "begin"
    """A picture begins with them: what was known of how things stand is void."""
    PART = "part"
    """They go on with it."""
    END = "end"
    """They are its last; from now on everything is known."""
    LIVE = "live"
    """They are what happened, whether a picture is being made or not."""


class Records(msgspec.Struct, frozen=True, tag="records"):
    """A frame with a MessagePack array of records follows."""

    run: int
    """Names this life of the controller: Unix time in nanoseconds at which it began. Instants of two runs
    can't be compared."""
    stage: Stage
    now_ns: int
    """When it was sent: everything that happened before is in it, or in what came before."""


class Holding(msgspec.Struct, frozen=True, tag="holding"):
    """Of a picture: what a worker has of some models.

    A model that is being prepared, loaded or released is not named: its outstanding action says so. One that
    is never named the worker merely knows of.
    """

    worker: str
    prepared: tuple[str, ...] = ()
    """Models that are prepared and not resident."""
    resident: dict[str, tuple[int, ...]] = {}
    """Pages of those that are resident, in the order of the weights file."""
    failed: dict[str, str] = {}
    """Models that the worker was given up for, and why."""
    stopping: bool = False
    """Whether the worker said that it begins nothing more."""


class Estimated(msgspec.Struct, frozen=True, tag="estimated"):
    """Of a picture: how long the scheduler expects a model's actions to take on one kind of device.

    Models of the same executable and batch sizes share the estimates of INFER, those of as many bytes that of
    LOAD; each is said of one of them only.
    """

    device_kind: str
    model: str
    infer_ns: tuple[int, ...]
    """For each of its batch sizes."""
    transfer_ns: tuple[int, ...]
    """Likewise, how long a batch's inputs keep the way to the worker busy."""
    load_ns: int


FromObserver = ObserverHello | Operate
"""What a controller may receive of an observer, beside `peers.Pong` and `peers.Goodbye`."""

ToObserver = Records | Operated
"""What an observer may receive, beside what every peer may (`peers.ToWorker`)."""

OfPicture = Holding | Estimated
"""Entries that only pictures have."""
