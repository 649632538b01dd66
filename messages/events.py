"""The scheduler's input: the closed vocabulary of events.

An event has no time of its own: the driver hands ``now_ns`` to `Scheduler.handle` beside it, and the
event log stores the pair.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mainspring.messages.actions import Result
from mainspring.messages.estimates import InferEstimate, LoadEstimate, LoadRates
from mainspring.messages.model import Artifact, ModelSpec
from mainspring.messages.operating import OperatorCommand
from mainspring.messages.queries import Piece, QueryStep, StepsKnown
from mainspring.messages.scaling import ProviderLeft, ProviderSaid


class RequestArrived(msgspec.Struct, frozen=True, tag="request_arrived", omit_defaults=True):
    """A gateway has accepted a request."""

    request_id: int
    """Unique in the cluster: the gateway's number and its own counter (`messages.ids`)."""
    model: str
    rows: int
    deadline_ns: int | None
    """Instant by which the outputs must have reached the gateway; None for a best-effort request."""
    priority: int = 0
    """Its turn among requests of equal slack: 1 before 2 and so on, 0 behind all."""
    sizes: tuple[int, ...] = ()
    """The size of each of the model's symbols in this request; empty if the model has none."""
    query: int = 0
    """The query that it is a piece of; 0 if it is of none."""
    step: int = 0
    """Index of the query's step."""
    tenant: str = ""
    """The tenant whose request it is (`scheduler.tenants`); empty if the token that it came with names
    none."""


class QueryArrived(msgspec.Struct, frozen=True, tag="query_arrived", omit_defaults=True):
    """A gateway has accepted a query; its pieces follow as requests, once the whole is admitted."""

    query_id: int
    """Unique among requests and queries (`messages.ids`)."""
    deadline_ns: int | None
    """Instant by which the last outputs must have reached the gateway; None for a best-effort query."""
    steps: tuple[QueryStep, ...]
    priority: int = 0
    """Same as `RequestArrived.priority`."""
    graph: str = ""
    """Name of the graph; empty of a request with more rows than a batch."""
    tenant: str = ""
    """Same as `RequestArrived.tenant`."""


def pieces_of(event: QueryArrived, pieces: tuple[Piece, ...]) -> Iterator[RequestArrived]:
    """Yield the arrivals of a query's pieces."""
    for piece in pieces:
        step = event.steps[piece.step]
        yield RequestArrived(
            *(piece.request_id, step.model, piece.rows, event.deadline_ns, event.priority),
            *(piece.sizes or step.sizes, event.query_id, piece.step, event.tenant),
        )


class RequestCancelled(msgspec.Struct, frozen=True, tag="request_cancelled"):
    """The client does not want the request any more, or its gateway has already answered it."""

    request_id: int
    """A request, or a query with all its pieces."""


class GatewayLeft(msgspec.Struct, frozen=True, tag="gateway_left"):
    """A gateway is gone; its requests are given up."""

    number: int


class GatewayRefused(msgspec.Struct, frozen=True, tag="gateway_refused"):
    """A gateway has refused requests that no controller saw; nothing is decided by it."""

    gateway: str
    """Its name."""
    requests: dict[str, int]
    """Number of requests since its last report, by `Reason`."""


class ModelAdded(msgspec.Struct, frozen=True, tag="model_added"):
    """A model may be served from now on."""

    model: ModelSpec


class ModelRemoved(msgspec.Struct, frozen=True, tag="model_removed"):
    """A model may not be served any more."""

    name: str


class ModelRestored(msgspec.Struct, frozen=True, tag="model_restored"):
    """The files of a model that a worker failed on have changed since: it may be tried there again."""

    worker: str
    model: str


class Resident(msgspec.Struct, frozen=True):
    """A model in a worker's pages."""

    model: str
    artifact: Artifact
    pages: tuple[int, ...]


class WorkerJoined(msgspec.Struct, frozen=True, tag="worker_joined"):
    """A worker is connected, with what its memory already holds and no action outstanding."""

    worker: str
    device_kind: str
    pages: int
    """Pages of its page cache."""
    prepared: dict[str, Artifact] = {}
    """Artifact that is prepared of each model, by the model's name."""
    resident: tuple[Resident, ...] = ()
    targets: tuple[str, ...] = ()
    """Same as `peers.WorkerHello.targets`."""
    again: bool = False
    """Same as `peers.WorkerHello.again`."""


class WorkerLeft(msgspec.Struct, frozen=True, tag="worker_left"):
    """A worker is gone, with all that was outstanding on it."""

    worker: str
    reason: str


class OperatorAsked(msgspec.Struct, frozen=True, tag="operator_asked", rename={"command": "wish"}):
    """An operator's command was granted."""

    who: str
    command: OperatorCommand
    """Called ``wish`` in the event log, in all versions of its format."""


class Remembered(msgspec.Struct, frozen=True, tag="remembered"):
    """A controller has begun with estimates that another one had learnt."""

    estimates: tuple[LoadRates | InferEstimate | LoadEstimate, ...]


class Wakeup(msgspec.Struct, frozen=True, tag="wakeup"):
    """Nothing happened, but `Scheduler.schedule` was called: a log needs this to be replayed exactly."""


Event = (
    Wakeup
    | RequestArrived
    | QueryArrived
    | StepsKnown
    | RequestCancelled
    | GatewayLeft
    | GatewayRefused
    | ModelAdded
    | ModelRemoved
    | ModelRestored
    | WorkerJoined
    | WorkerLeft
    | OperatorAsked
    | ProviderSaid
    | ProviderLeft
    | Remembered
    | Result
)
