"""A snapshot: the cluster's whole state, told entry by entry.

`cluster.snapshot` makes these entries and `cluster.restore` enters them. Each entry replaces what a reader
knows of its subject and leaves everything else as it is, so it may come twice. A snapshot is made in parts
while the scheduler goes on: a part holds how things are at the instant at which it is made, and the records
behind it hold what changes since. The parts come in this order:

1. `Numbering`.
2. `ModelServed` for each model, in the order of their numbers, then `Numbering` again.
3. For each worker `WorkerState`, and with it `OutstandingState`.
4. `LoadRates`, then `InferEstimate` and `LoadEstimate` for everything that is estimated: estimates of what no
   served model has are void.
5. For each worker `PlacementStates`, with the last of them `RecencyState`, and `OutstandingState` again: the
   inputs of what was sent meanwhile are timed by estimates.
6. `OperatorState`, and with it `scaling.ScaleState`.
7. `QueryState` for each query without an end, `RequestState` for each request that is neither answered nor
   rejected.
8. `Numbering`, `ModelState` for each model, and `Numbering` once more: now a reader has the state.

A reader begins with an empty state and enters whole parts. A worker, model or request that no entry has named
yet it makes up (`cluster.follow`), until an entry of its own follows.
"""

from __future__ import annotations

import msgspec

from mainspring.messages.actions import Infer, Load, Open, Prepare, Release, Unload
from mainspring.messages.estimates import InferEstimate, LoadEstimate, LoadRates
from mainspring.messages.events import OperatorAsked, QueryArrived, RequestArrived
from mainspring.messages.metrics import Outlier
from mainspring.messages.model import ModelSpec
from mainspring.messages.scaling import ScaleState


class Numbering(msgspec.Struct, frozen=True, tag="numbering"):
    """The numbers of models and workers that have come; each has the number that its coming made it."""

    models: int
    workers: int


class Losses(msgspec.Struct, frozen=True):
    """Workers in a row that were lost at actions of a model."""

    by_action: dict[str, int]
    """Their number by the kind of action."""
    last_ns: int
    """Time of the last loss that was counted."""
    worker: str = ""
    """The worker that it was."""
    action: str = ""
    """The kind of action that it was at."""


class ModelServed(msgspec.Struct, frozen=True, tag="model_served", omit_defaults=True):
    """A model is served; `ModelState` says the rest of it."""

    number: int
    model: ModelSpec
    overdue: dict[str, int] = {}
    """Number of times in a row that an INFER cost a worker its place, by worker."""
    losses: Losses | None = None


class PlacementState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model on one worker."""

    model: str
    state: str
    """A value of `cluster.placements.State`."""
    detail: str = ""
    """Reason of the failure, for a person."""
    failures: int = 0
    """LOADs in a row that the engine could not do."""
    given_up: bool = False
    """True if it is not tried again once its UNLOAD is sent."""
    pages: tuple[int, ...] = ()
    last_used_ns: int = 0
    leaving: bool = False
    """True if it is to be taken off the worker."""
    former: ModelSpec | None = None
    """The model, where it is not the one that is served under its name: without tensors and profiles."""
    number: int = 0
    """The number of ``former``."""
    own_infer_times: bool = False
    """True if ``former`` no longer shares its estimates of INFER with models that are served."""
    own_load_time: bool = False
    """True if ``former`` no longer shares its estimate of LOAD with models that are served."""
    own_counts: bool = False
    """True if its requests are not counted with those of the model that is served under its name."""


class WorkerState(msgspec.Struct, frozen=True, tag="worker_state", omit_defaults=True):
    """A worker, with every model on it that is served or leaves."""

    worker: str
    number: int
    device_kind: str
    pages: int
    """Pages of its page cache."""
    stopping: bool = False
    """True if it said that it begins nothing more."""
    states: dict[str, tuple[str, ...]] = {}
    """Models by the value of their `cluster.placements.State`; those that are merely known are left out."""
    former: tuple[PlacementState, ...] = ()
    """Models on the worker that are not served."""
    targets: tuple[str, ...] = ()
    """Same as `peers.WorkerHello.targets`."""


class QueryState(msgspec.Struct, frozen=True, tag="query_state"):
    """A query of which some piece may still run; its open pieces are told as requests."""

    event: QueryArrived
    arrived_ns: int
    done: tuple[int, ...]
    """Rows of each step that have ended."""
    open: tuple[int, ...]
    """Its pieces that have no end yet."""


class RequestState(msgspec.Struct, frozen=True, tag="request_state", omit_defaults=True):
    """A request that is neither answered nor rejected, or of an INFER that runs."""

    event: RequestArrived
    arrived_ns: int
    due_ns: int | None
    """Instant by which EXEC must have ended; None for a best-effort request."""
    turn_ns: int
    """Instant that counts as its arrival among best-effort requests."""
    cold: bool = False
    """True if its model was resident nowhere when it arrived."""
    place: str = "queued"
    """A value of `cluster.requests.Place`: ``gone`` if it was cancelled while it runs."""


class SlotState(msgspec.Struct, frozen=True, omit_defaults=True):
    """An outstanding INFER, OPEN or LOAD with its current prediction (`cluster.timeline.Slot`)."""

    action: Infer | Open | Load
    begin_ns: int
    end_ns: int
    ready_ns: int
    soonest_ns: int
    transfer_ns: int = 0
    requests: tuple[RequestState, ...] = ()
    """Requests of an INFER, in its order."""


class OutstandingState(msgspec.Struct, frozen=True, tag="outstanding_state", omit_defaults=True):
    """The actions that a worker was sent and has not answered."""

    worker: str
    exec: tuple[SlotState, ...] = ()
    exec_free_ns: int = 0
    """Instant at which EXEC will be free."""
    inputs_free_ns: int = 0
    """Instant at which the transfer of inputs will be free."""
    inputs_came_ns: int = 0
    """Instant at which the transfer of inputs was last seen free."""
    load: tuple[SlotState, ...] = ()
    load_free_ns: int = 0
    others: tuple[tuple[Unload | Prepare | Release, int], ...] = ()
    """Actions without a window, each with the instant at which it was sent."""
    prepares: int = 0
    lead_ns: int = 0
    """Time by which EXEC is asked for work earlier, so that inputs travel meanwhile."""


class PlacementStates(msgspec.Struct, frozen=True, tag="placement_states"):
    """Some of a worker's models, of which there is more to say than `WorkerState` has."""

    worker: str
    placements: tuple[PlacementState, ...]


class RecencyState(msgspec.Struct, frozen=True, tag="recency_state"):
    """A worker's resident models, the least recently used first."""

    worker: str
    models: tuple[str, ...]


class OperatorState(msgspec.Struct, frozen=True, tag="operator_state"):
    """The settings that operators made."""

    drained: tuple[str, ...]
    """Workers that get no work."""
    pinned: tuple[str, ...]
    """Models that are kept resident."""
    operations: tuple[tuple[int, OperatorAsked], ...]
    """The last about each subject, the newest last, each with its instant."""
    shares: dict[str, dict[str, float]] = {}
    """The share of rows of each step, by graph and step, as gateways have learnt it."""
    owners: dict[str, str] = {}
    """The model that alone runs on a worker, by worker."""


class ModelState(msgspec.Struct, frozen=True, tag="model_state", omit_defaults=True):
    """A model that is served: its number, and the orders in which it has things."""

    model: str
    number: int
    counts: tuple[int, int, int, int]
    """Requests since it was added: arrived, executed in time, executed late, rejected."""
    overdue: dict[str, int] = {}
    """Number of times in a row that an INFER cost a worker its place, by worker."""
    device_kinds: tuple[str, ...] | None = None
    """Kinds of devices that it has estimates for; None: those of all workers."""
    usable: tuple[str, ...] | None = None
    """The workers where it is resident or loading, in the order in which that began; None: as they joined."""
    backlog: tuple[int, ...] = ()
    """Its queued best-effort requests in the order of their turns."""
    slo_ns: int | None = None
    """The time to its deadline that the newest request had when it came."""
    outlier: Outlier | None = None
    """Its last INFER or LOAD that took far longer than expected."""
    losses: Losses | None = None


Told = (
    Numbering
    | ModelServed
    | WorkerState
    | OutstandingState
    | LoadRates
    | InferEstimate
    | LoadEstimate
    | PlacementStates
    | RecencyState
    | OperatorState
    | ScaleState
    | QueryState
    | RequestState
    | ModelState
)
"""The entries of a snapshot."""
