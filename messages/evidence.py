"""The scheduler's own numbers that a decision was computed from, in the command that it brought about.

Evidence is in the event log (from version 3 of its format on) and in the stream to observers. What is sent
to workers and gateways has none. Instants are on the controller's clock.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Readiness(StrEnum):
    """The readiness of a worker to run a model."""

    RESIDENT = "resident"
    LOADING = "loading"
    PREPARED = "prepared"
    """A LOAD has to come first."""

    # The others: it could not run the model.
    KNOWN = "known"
    """It has not prepared the model."""
    PREPARING = "preparing"
    CLOSED = "closed"
    """It has the weights, and has yet to open the executable."""
    OPENING = "opening"
    LEAVING = "leaving"
    """It holds an older model of the name, which it is about to give up."""
    RELEASING = "releasing"
    """It is giving up an older model of the name."""
    FAILED = "failed"
    """It could not prepare the model."""
    BROKEN = "broken"
    """The model was given up there."""
    TOO_LARGE = "too_large"
    """The model needs more pages than it has."""
    DRAINED = "drained"
    """It was drained, or is to leave."""
    STOPPING = "stopping"


class LoadReason(StrEnum):
    """The reason why a model is loaded."""

    PINNED = "pinned"
    """An operator wants it kept resident."""
    OPERATOR = "operator"
    """An operator asked for this LOAD."""
    DEMAND = "demand"
    """Requests wait for it."""
    MISSED = "missed"
    """Requests that needed it were rejected, and LOAD is idle."""
    REPLICATION = "replication"
    """The workers that hold it are busy, and LOAD is idle."""
    TAKEOVER = "takeover"
    """The only workers that hold it are to leave, and LOAD is idle."""


class Evidence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The three instants that a batch's predicted begin was computed from: it is the latest of them."""

    exec_free_ns: int
    """Instant at which EXEC has done what is outstanding; if nothing is, at which an action that is sent now
    can begin."""
    inputs_ns: int
    """Instant at which the inputs are in place."""
    weights_ns: int
    """Instant at which the weights are in their pages; 0 if they are already."""
    load_id: int
    """The LOAD under way that brings the weights; 0 if none does."""
    exec_after: int
    """The action that is outstanding on EXEC as the last; 0 if none is."""
    exec_ahead: int
    """Number of actions that are outstanding on EXEC."""


class PlanEvidence(Evidence, frozen=True, array_like=True, gc=False):
    """The plan of one worker for one request, alone in its batch and before all that wait."""

    worker: str
    begin_ns: int
    duration_ns: int
    load_ns: int
    """Duration of the LOAD that has to come first, in nanoseconds; 0 if none has to."""
    load_after: int
    """The action that is outstanding on LOAD as the last; 0 if none is, or no LOAD has to come first."""
    load_ahead: int
    """Number of actions that are outstanding on LOAD; 0 if no LOAD has to come first."""

    @property
    def finish_ns(self) -> int:
        """Predicted end of EXEC."""
        return self.begin_ns + self.duration_ns

    @property
    def readiness(self) -> Readiness:
        """Return how ready the worker was."""
        if not self.weights_ns:
            return Readiness.RESIDENT
        return Readiness.LOADING if self.load_id else Readiness.PREPARED


class Candidate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A worker that was not the best."""

    worker: str
    readiness: Readiness
    finish_ns: int
    """Predicted end of EXEC; 0 if it could not run the model."""
    detail: str = ""
    """Text of the worker's failure, as the worker reported it."""


class Ahead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The work that stood before a request that was refused early, since it would have been late behind
    it."""

    rows: int
    """Rows of its model that were due before it."""
    work_ns: int
    """Time that EXEC takes for what ranks before it, on all workers together."""
    workers: int
    """Number of workers that share that work."""
    margin: float
    """Factor by which that work counted, as was learnt from earlier refusals of the model."""
    begin_ns: int
    """Instant at which its batch could begin, by that."""
    duration_ns: int
    """Duration of its batch."""
    fewer_rows: int
    """Number of rows with which it would have been in time; 0 if there is none."""


class RejectEvidence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The plans that a request was turned away for: by when each worker could have run it."""

    best: PlanEvidence | None
    """The plan that ends first; None if no worker could run the model."""
    others: tuple[Candidate, ...]
    """Other workers: the soonest first, then those that could not run the model."""
    more: int
    """Number of workers beyond those, which are left out."""
    waiting: int
    """Number of other requests that waited for the model."""
    ahead: Ahead | None = None
    """Work for which it was refused early; None if it was not."""


class LoadEvidence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The reason why a LOAD was sent, and what stood before it."""

    reason: LoadReason
    load_after: int
    """The action that is outstanding on LOAD as the last; 0 if none is."""
    load_ahead: int
    """Number of actions that are outstanding on LOAD."""
    evicted: tuple[str, ...]
    """The models that were unloaded for it."""
