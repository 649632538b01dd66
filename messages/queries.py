"""A query: what a client sent as one request, and what becomes several requests, its *pieces*.

A query has one deadline and gets one reply. It has steps, each of one model; a step's rows are cut into
pieces (`piece_rows`). A piece is an ordinary request of which everything but the end of
its query is decided as of any other. A request with more rows than the model's largest batch is a query of
one step.
"""

from __future__ import annotations

import msgspec

from mainspring.messages.model import ModelSpec

MOST_CHARACTERS = 128
"""Characters of each name in a graph."""
MOST_SLO_MS = 3_600_000.0
MOST_STEPS = 64
"""Steps of a query."""
MOST_PIECES = 10_000
"""Pieces that a query's arrival names, which bounds what one message makes the controller do."""


class QueryStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model of a query."""

    model: str
    rows: int
    """Rows that the step is expected to have; of a step that waits for none, exactly these. 0: it has ended
    or fallen away, where a new controller is told of a query."""
    sizes: tuple[int, ...] = ()
    """Same as `events.RequestArrived.sizes`: of its pieces, in the mean; as expected until it begins."""
    after: tuple[int, ...] = ()
    """Indices of the steps that must have ended before it; each is smaller than its own."""
    required: bool = True
    """False if the query goes on without the step where it can't be in time."""
    certain: bool = True
    """False if a condition decides whether the step has any rows."""
    name: str = ""
    """Its graph's name for it."""
    share: float = 1.0
    """Rows that it has for each row of a request, in the mean of the graph's earlier queries: InferLine's
    scale factor."""
    members: tuple[str, ...] = ()
    """The models that may answer for it, the best first, of which the controller chooses one (`Chosen`);
    ``model`` is the first. Empty of a step of one model, and once it is chosen."""
    scores: tuple[float, ...] = ()
    """The worth of an answer of each of them; descending."""
    at_least: float = 0.0
    """Least score that its client takes; members below it only say what is possible."""


def piece_rows(spec: ModelSpec) -> int:
    """Return how many rows a piece has: those of the batch in which a row takes least time by the profiles,
    of batches within a tenth of that the largest, and of kinds of devices the one with the largest.

    A network that keeps a core busy with one row may take longer for each row of a larger batch, and nothing
    else can run meanwhile. Without a profile it is the largest batch.
    """
    found = 0
    for profile in spec.profiles.values():
        each_ns = {size: ns / size for size, ns in profile.infer_ns.items() if size in spec.batch_sizes}
        right = [size for size, ns in each_ns.items() if ns <= 1.1 * min(each_ns.values())]
        found = max([found, *right])
    return found or spec.max_rows


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A piece as its query's arrival names it."""

    request_id: int
    rows: int
    step: int = 0
    sizes: tuple[int, ...] = ()
    """Same as `events.RequestArrived.sizes`, where they are not those of its step."""


class StepsKnown(msgspec.Struct, frozen=True, tag="steps_known"):
    """More is known of a query's steps: one falls away, or has begun with other rows than were expected.

    A gateway says it before the pieces that begin. Only of steps without a piece so far anything changes.
    """

    query_id: int
    steps: tuple[QueryStep, ...]
    """All of them; a step that has ended or fallen away has 0 rows."""


class Chosen(msgspec.Struct, frozen=True, tag="chosen", omit_defaults=True):
    """A step's model is chosen among its members. The log keeps it, and the query's gateway is told."""

    query_id: int
    step: int
    model: str
    price: float = 0.0
    """Score that a second of the device's time was held to be worth."""


def shape_fault(steps: tuple[QueryStep, ...], pieces: tuple[Piece, ...]) -> str | None:
    """Return what is wrong with a query's shape; None if nothing is."""
    if not 1 <= len(steps) <= MOST_STEPS:
        return f"a query has 1 to {MOST_STEPS} steps, not {len(steps)}"
    if len(pieces) > MOST_PIECES:
        return f"a query has at most {MOST_PIECES:,} pieces, not {len(pieces):,}"
    for index, step in enumerate(steps):
        if step.rows < 0 or not all(0 <= each < index for each in step.after):
            return f"step {index} has {step.rows} rows and waits for the steps {step.after}"
        if len(step.members) != len(step.scores) or (step.members and step.model != step.members[0]):
            return f"step {index} is of {step.model}, with {len(step.scores)} scores for {step.members}"
    if any(not 0 <= piece.step < len(steps) or piece.rows < 1 for piece in pieces):
        return f"a piece is of none of its query's {len(steps)} steps, or has no rows"
    return None
