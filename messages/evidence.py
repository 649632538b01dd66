"""What a decision was computed from: the scheduler's own numbers, in the command that it brought about.

Evidence is in the event log (from version 3 of its format on) and in the stream to observers. What is sent
to workers and gateways has none. Instants are on the controller's clock.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Readiness(StrEnum):
    """How ready a worker is to run a model."""

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
    """Why a model is loaded."""

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
    """Why a batch begins when it is predicted to: the latest of three instants."""

    exec_free_ns: int
    """When EXEC has done what is outstanding; if nothing is, when an action that is sent now can begin."""
    inputs_ns: int
    """When the inputs are in place."""
    weights_ns: int
    """When the weights are in their pages; 0 if they are already."""
    load_id: int
    """The LOAD under way that brings the weights; 0 if none does."""
    exec_after: int
    """The action that is outstanding on EXEC as the last; 0 if none is."""
    exec_ahead: int
    """How many actions are outstanding on EXEC."""


class PlanEvidence(Evidence, frozen=True, array_like=True, gc=False):
    """The plan of one worker for one request, alone in its batch and before all that wait."""

    worker: str
    begin_ns: int
    duration_ns: int
    load_ns: int
    """How long the LOAD takes that has to come first; 0 if none has to."""
    load_after: int
    """The action that is outstanding on LOAD as the last; 0 if none is, or no LOAD has to come first."""
    load_ahead: int
    """How many actions are outstanding on LOAD; likewise."""

    @property
    def finish_ns(self) -> int:
        """Predicted end of EXEC."""
        return self.begin_ns + self.duration_ns

    @property
    def readiness(self) -> Readiness:
        """How ready the worker was."""
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
    """What the worker said when it failed."""


class Ahead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What stood before a request that was refused early, since it would have been late behind it."""

    rows: int
    """Rows of its model that were due before it."""
    work_ns: int
    """How long EXEC takes for what ranks before it, on all workers together."""
    workers: int
    """How many share that work."""
    margin: float
    """By how much it counted, as was learnt from earlier refusals of the model."""
    begin_ns: int
    """When its batch could begin, by that."""
    duration_ns: int
    """How long its batch takes."""
    fewer_rows: int
    """With so many rows it would have been in time; 0 if with no fewer."""


class RejectEvidence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a request was turned away: by when each worker could have run it."""

    best: PlanEvidence | None
    """The plan that ends first; None if no worker could run the model."""
    others: tuple[Candidate, ...]
    """Other workers: the soonest first, then those that could not run the model."""
    more: int
    """How many workers beyond those are left out."""
    waiting: int
    """How many other requests waited for the model."""
    ahead: Ahead | None = None
    """Why it was refused early; None if it was not."""


class LoadEvidence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a LOAD was sent, and what stood before it."""

    reason: LoadReason
    load_after: int
    """The action that is outstanding on LOAD as the last; 0 if none is."""
    load_ahead: int
    """How many actions are outstanding on LOAD."""
    evicted: tuple[str, ...]
    """The models that were unloaded for it."""
