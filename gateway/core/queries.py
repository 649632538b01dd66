"""Queries: a client's request that becomes several, its *pieces*, each of which is a request to the
controller and to workers. Pure.

Its client sees one request. The table keeps it as one, with one key, one timer and one reply, and beside it
the pieces without an end, in `Pending.pieces`. What the pieces are and what the answer is says its `Flow`
(`Pending.flow`); the core sends them, gives them up and sends them again. To serve something new as a query,
write a `Flow`, and enter it in `begin`:

1. `Flow.steps` is the shape, told to the controller with the query's arrival, which names the first pieces
   (`messages.peers.QueryArrival`). The controller admits or refuses all of it at once.
2. `Flow.begin` returns the pieces that wait for no others, made with `piece`.
3. `Flow.ended` is told that a piece has outputs (`Pending.kept`), and returns the pieces that may begin now:
   those of the next step. Each is sent as a `messages.peers.Arrival` with ``query`` and ``step``. None where
   others must end first. Before them goes `messages.queries.StepsKnown`, if steps have other rows than the
   controller was told (`Flow.news`).
4. `Flow.missed` is asked when a piece is rejected by itself, as one is whose step is not required
   (`messages.queries.QueryStep.required`).
5. Once no piece is without an end, `Flow.outputs` is the answer. The controller is told that the query is
   over, since steps that it expected may not have come.

`Flow.ended`, `Flow.missed` and `Flow.outputs` may raise `QueryFailed`, which refuses the whole. To a new
controller the query is told again: `Flow.steps` has 0 rows then for each step that has ended or fallen away.
All models of a query are one controller's.

`Split` is the flow of a request with more rows than its model's largest batch. Inputs are cut without a copy;
outputs are copied once, when the last piece has its own.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import msgspec

from mainspring.gateway.core.effects import Accepted, Dispatched, Frame, Withdraw
from mainspring.gateway.core.requests import CONTENT, Pending, Refusal
from mainspring.messages.clients import Learnt, StepTiming
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.messages.peers import Output, Rejected, TensorHeader
from mainspring.messages.queries import Chosen, QueryStep


class QueryFailed(Exception):
    """A query that can't go on: the reason, what is wrong for a person, and in how many ns from now it could
    have its answer at the earliest, if that is known."""

    def __init__(self, reason: Reason, detail: str, earliest_finish_left_ns: int | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.earliest_finish_left_ns = earliest_finish_left_ns


class Flow(Protocol):
    """What a query's pieces are, and what becomes of their outputs; see the module's text."""

    @property
    def steps(self) -> tuple[QueryStep, ...]:
        """Return its shape, with the rows of each step that have not ended."""

    @property
    def several(self) -> bool:
        """Say whether it has more steps than one."""

    @property
    def last(self) -> tuple[Dispatched, Output] | None:
        """Return what the last outputs came by; None if none have come."""

    @property
    def graph(self) -> str:
        """Return the name of the graph that it is of; empty of a request with many rows."""

    @property
    def headers(self) -> tuple[TensorHeader, ...]:
        """Return the shapes of the outputs, once they were asked for; empty if the signature says them."""

    @property
    def learnt(self) -> Learnt | None:
        """Return what an application says beside its answer, once `outputs` was asked for."""

    def news(self) -> tuple[QueryStep, ...]:
        """Return `steps` if those to come are others than when it was asked for; empty if they are not."""

    def begin(self) -> list[Pending]:
        """Return the pieces that wait for no others."""

    def took(self, now_ns: int, piece: Pending, by: Dispatched | None, output: Output | None, /) -> None:
        """Note when a piece ended, before `ended` or `missed`; ``by`` and ``output`` are None if it was
        rejected."""

    @property
    def best(self) -> bool:
        """Say whether no step was answered by a smaller member of a family than its best."""

    def chose(self, chosen: Chosen, /) -> None:
        """Note which member of a family the controller has chosen for a step."""

    def timing(self) -> tuple[StepTiming, ...]:
        """Return where its time went, step by step, once no piece is without an end."""

    def ended(self, piece: Pending, /) -> list[Pending]:
        """Go on with a piece's outputs, which it keeps; return the pieces that may begin now."""

    def missed(self, piece: Pending, rejected: Rejected, /) -> list[Pending]:
        """Go on without a piece that was rejected; return the pieces that may begin now."""

    def outputs(self) -> tuple[Frame, ...]:
        """Return the outputs of the whole, in the order of its signature's."""


def piece(whole: Pending, accepted: Accepted, frames: tuple[Frame, ...], step: int = 0) -> Pending:
    """Return a piece: what runs, its inputs in the order of the model's, and the index of its step."""
    found = Pending(
        *(whole.serial, whole.connection, whole.key, accepted, frames),
        *(whole.arrived_ns, whole.deadline_ns, whole.due_ns, whole.expires_ns),
    )
    found.whole, found.step = whole, step
    return found


def unsplit_because(spec: ModelSpec) -> str:
    """Return why a request for a model is never cut into pieces; empty if it may be."""
    if spec.sequencing is not None:
        return "its requests come in sequences"
    if spec.unshared:
        return spec.unshared
    if any(tensor.varies for tensor in spec.outputs):
        return "the shape of its outputs is known only after a run"
    return ""


def too_many_rows(model: str, rows: int, most: int, unsplit: str) -> str:
    """Return the sentence for a request with more rows than it may have, and why it can't be split, if so."""
    because = unsplit or "by the gateway's max_rows_per_request"
    return (
        f"{rows} rows are more than model {model!r} takes at once ({most}), {because}: split the rows over "
        "several requests"
    )


def at_least_fault(at_least: float, best: float | None, model: str) -> str:
    """Return why a request can't ask for a score; empty if it can. ``best`` is the highest that there is."""
    if best is None:
        return f"at_least is for families of models, and {model!r} is none, and has no step of one"
    if 0 < at_least <= best:
        return ""
    return f"at_least is {at_least:g}; it has to be above 0, and {model!r} has answers of up to {best:g}"


def begin(request: Pending) -> Refusal | None:
    """Give a request that is a query its flow and the pieces that wait for no others.

    Return why it can't be served, or None.
    """
    signature = request.accepted.signature
    try:
        if signature.graph is not None:
            request.flow = signature.graph.flow(request)
        elif request.accepted.rows > signature.max_rows:
            request.flow = Split(request)
        if request.flow is not None:
            request.pieces = request.flow.begin()
            if not request.pieces:
                request.flow.outputs()
    except QueryFailed as failed:
        return failed.reason, failed.detail
    return None


def uses(request: Pending, model: str) -> bool:
    """Say whether a model runs for a request, by the scheduler's name."""
    if request.flow is None:
        return request.accepted.model == model
    return any(model in (step.model, *step.members) for step in request.flow.steps)


def cut(request: Pending, accepted: Accepted, given: tuple[Frame, ...], step: int = 0) -> list[Pending]:
    """Return the pieces of what a query asks of one model: its rows in order, in batches that it takes.

    ``accepted`` has all rows, ``given`` their inputs in the order of the model's.
    """
    most = accepted.signature.piece_rows
    if accepted.rows <= most:
        return [piece(request, accepted, given, step)]
    tensors = accepted.signature.at(accepted.sizes).spec.inputs
    shapes = {rows: msgspec.structs.replace(accepted, rows=rows) for rows in (most, accepted.rows % most)}
    pieces = []
    for first in range(0, accepted.rows, most):
        rows = min(most, accepted.rows - first)
        frames = [
            _cut(frame, tensor, accepted.rows, first, first + rows)
            for frame, tensor in zip(given, tensors, strict=True)
        ]
        pieces.append(piece(request, shapes[rows], tuple(frames), step))
    return pieces


class Split:
    """The flow of a request with more rows than a batch: one step, whose pieces all begin at once."""

    headers: tuple[TensorHeader, ...] = ()
    graph = ""
    several = False
    best = True
    learnt: Learnt | None = None

    def __init__(self, request: Pending) -> None:
        self.last: tuple[Dispatched, Output] | None = None
        self._request = request

    @property
    def steps(self) -> tuple[QueryStep, ...]:
        """Return the one step, with the rows of the pieces without outputs."""
        accepted = self._request.accepted
        rows = sum([piece.accepted.rows for piece in self._request.pieces if piece.kept is None])
        return (QueryStep(accepted.model, rows, accepted.sizes),)

    def news(self) -> tuple[QueryStep, ...]:
        """Return nothing: there is no step to come."""
        return ()

    def took(self, _now_ns: int, _piece: Pending, by: Dispatched | None, output: Output | None) -> None:
        """Note what outputs came by."""
        self.last = None if by is None or output is None else (by, output)

    def chose(self, _chosen: Chosen) -> None:
        """Do nothing: it has no families."""

    def timing(self) -> tuple[StepTiming, ...]:
        """Return nothing: it has no steps that its client knows of."""
        return ()

    def begin(self) -> list[Pending]:
        """Return the pieces, in the order of the rows."""
        return cut(self._request, self._request.accepted, self._request.frames)

    def ended(self, _piece: Pending) -> list[Pending]:
        """Return nothing: all pieces have begun."""
        return []

    def missed(self, _piece: Pending, rejected: Rejected) -> list[Pending]:
        """Raise `QueryFailed`: the answer has all rows or there is none."""
        raise QueryFailed(rejected.reason, rejected.detail, rejected.earliest_finish_left_ns)

    def outputs(self) -> tuple[Frame, ...]:
        """Return the outputs of the pieces, put together."""
        parts = [piece.kept for piece in self._request.pieces if piece.kept is not None]
        accepted = self._request.accepted
        tensors = accepted.signature.at(accepted.sizes).spec.outputs
        return tuple([_join([part[at] for part in parts], tensor) for at, tensor in enumerate(tensors)])


def withdrawn(request: Pending) -> list[Withdraw]:
    """Return what ends those pieces of a request that the controller may know by themselves, since they came
    after their query; the end of the others is that of the query."""
    known = [piece.request_id for piece in request.pieces if piece.done or piece.step]
    return [Withdraw(request_id) for request_id in known if request_id is not None]


def _outer(tensor: TensorSpec) -> int:
    """Return how many stretches of bytes the rows of a tensor are in: 1 where its rows are in front."""
    return math.prod(tensor.shape[: tensor.rows_axis])


def _cut(frame: Any, tensor: TensorSpec, rows: int, first: int, end: int) -> Frame:
    """Return some rows of a tensor; only rows that are not in front are copied."""
    view = memoryview(frame).cast("B") if isinstance(frame, CONTENT) else frame
    outer = _outer(tensor)
    row_bytes = len(view) // (rows * outer)
    if outer == 1:
        piece: Frame = view[first * row_bytes : end * row_bytes]
        return piece
    if not isinstance(frame, CONTENT):
        return range((end - first) * row_bytes * outer)
    starts = [each * rows * row_bytes for each in range(outer)]
    return b"".join([view[start + first * row_bytes : start + end * row_bytes] for start in starts])


def _join(frames: list[Any], tensor: TensorSpec) -> Frame:
    """Return a tensor whose rows are those of several, one behind the other."""
    if not isinstance(frames[0], CONTENT):
        return range(sum(map(len, frames)))
    outer = _outer(tensor)
    if outer == 1:
        return b"".join(frames)
    views = [memoryview(frame) for frame in frames]
    each = [len(view) // outer for view in views]
    return b"".join(
        [
            view[at * size : (at + 1) * size]
            for at in range(outer)
            for view, size in zip(views, each, strict=True)
        ]
    )
