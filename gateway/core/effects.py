"""What the core asks its driver to do: a closed vocabulary of messages to send.

`Arrive`, `StepsKnown` and `Withdraw` go to the controller, `Push` to a worker, `Answer` and `Refuse` to the
front end that the request came through.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Arrival, Input, QueryArrival, TensorHeader
from mainspring.messages.queries import Piece, QueryStep, StepsKnown

if TYPE_CHECKING:
    from mainspring.gateway.core.accounts import Account
    from mainspring.gateway.core.validation import Signature


Frame = Sized
"""Bytes of one tensor as they were received; the table only holds them and knows their number."""


class Connection(NamedTuple):
    """The connection that asked, of one front end."""

    front_end: str
    peer: bytes


class Dispatched(msgspec.Struct, frozen=True):
    """One time that the controller sent the request to a worker."""

    action_id: int
    worker: str
    batch_size: int
    cold: bool
    at_ns: int


class Arrive(msgspec.Struct, frozen=True):
    """Tell the controller of a request; its time left is computed when this is sent."""

    request_id: int
    model: str
    rows: int
    deadline_ns: int | None
    """Instant at which the answer is to leave, on the gateway's clock; None without a deadline."""
    priority: int = 0
    sizes: tuple[int, ...] = ()
    """The sizes of the request's symbols, as `Accepted.sizes`."""
    pieces: tuple[Piece, ...] = ()
    """Of a query, the pieces without outputs that have begun."""
    query: int = 0
    """Of a piece that is submitted by itself, the query."""
    step: int = 0
    """Of such a piece, the index of its query's step."""
    steps: tuple[QueryStep, ...] = ()
    """The shape of a query."""
    graph: str = ""
    """The graph of a query, if it is of one."""
    tenant: str = ""
    """The tenant whose request it is; empty if its token names none."""


def arrival_of(effect: Arrive, left_ns: int | None) -> Arrival | QueryArrival:
    """Return the message that tells the controller; ``left_ns``: the time left as it is sent."""
    if effect.steps:
        return QueryArrival(
            *(effect.request_id, left_ns, effect.steps, effect.pieces, effect.priority, effect.graph),
            effect.tenant,
        )
    return Arrival(
        *(effect.request_id, effect.model, effect.rows, left_ns, effect.priority, effect.sizes),
        *(effect.query, effect.step, effect.tenant),
    )


class Withdraw(msgspec.Struct, frozen=True):
    """Tell the controller that a request is answered or unwanted."""

    request_id: int


class Push(msgspec.Struct, frozen=True):
    """Send a request's inputs to a worker."""

    worker: str
    message: Input
    frames: tuple[Frame, ...]


class Answer(msgspec.Struct, frozen=True):
    """A request's one reply: its outputs."""

    connection: Connection
    key: int
    outputs: tuple[TensorHeader, ...]
    frames: tuple[Frame, ...]
    timing: Timing


class Refuse(msgspec.Struct, frozen=True):
    """A request's one reply: why there are no outputs."""

    connection: Connection
    key: int
    reason: Reason
    detail: str
    earliest_finish_left_ns: int | None = None


Effect = Arrive | StepsKnown | Withdraw | Push | Answer | Refuse


class Turn(msgspec.Struct, frozen=True):
    """The place of a request in a sequence of its model."""

    sequence: int | str
    start: bool
    end: bool


class Accepted(msgspec.Struct, frozen=True):
    """A request that passed: what the request table needs to know of it."""

    model: str
    """The scheduler's name of the model, which for a repository's model stands for one version of it."""
    rows: int
    slo_ns: int | None
    frame_order: tuple[int, ...]
    """The place among the request's frames of each input of the model."""
    output_order: tuple[int, ...]
    """The places among the model's outputs of those that the client wants, in its order."""
    signature: Signature
    """The signature of the model when the request came; the model may have been removed since."""
    traceparent: str = ""
    priority: int = 0
    back_ns: int = 0
    """Nanoseconds that the answer takes from here to its caller, about."""
    late_outputs: bool = True
    """True if the client has a use for outputs that come after the deadline."""
    sizes: tuple[int, ...] = ()
    """The size of each of the model's symbols in this request; empty if the model has none."""
    turn: Turn | None = None
    """The request's place in its sequence, for a model with sequences; ``signature`` is what clients see of
    the model until the request's turn."""
    at_least: float = 0.0
    """The least score that its client takes, of a family."""
    context: str = ""
    """Whose state an application answers by."""
    account: Account | None = None
    """Account of its token, if that has a tenant or a limit of what is in flight."""
