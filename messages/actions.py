"""The actions that the controller sends to a worker, and the worker's one `Result` for each action.

Clockwork, sections 4.4 and 5.2. An action may *begin* only within ``[earliest_ns, latest_ns]``. On the
wire these instants are on the **worker's** clock: the controller's shell translates them when it sends,
and translates a result's instants back when it receives.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from mainspring.messages.codes import Reason, Status
from mainspring.messages.model import ModelSpec
from mainspring.messages.queries import Chosen
from mainspring.messages.scaling import Provide, Retain, Retire


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Bring the model's weights into host memory. Lowest priority, no window.

    It ends with ``not_open`` if the worker may not open the model's executable beside EXEC and has not opened
    it for another model: an `Open` has to follow. Otherwise the model can be loaded.
    """

    action_id: int
    worker: str
    model: ModelSpec


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Forget a prepared model that is not resident."""

    action_id: int
    worker: str
    model: str


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Open and warm the executable of a model whose PREPARE ended with ``not_open``; then it can be loaded.

    EXEC does it: on a GPU, loading a module may hold up all other work until the device is idle.
    """

    action_id: int
    worker: str
    model: str
    earliest_ns: int
    latest_ns: int
    predicted_begin_ns: int
    predicted_duration_ns: int


class Load(msgspec.Struct, frozen=True, tag="load", omit_defaults=True):
    """Copy a prepared model's weights into exactly these pages, in the order of the weights file."""

    action_id: int
    worker: str
    model: str
    pages: tuple[int, ...]
    earliest_ns: int
    latest_ns: int
    predicted_begin_ns: int
    predicted_duration_ns: int
    evidence: LoadEvidence | None = None
    """Numbers that the LOAD was decided from; neither on the wire nor in logs of versions 1 and 2."""


class Unload(msgspec.Struct, frozen=True, tag="unload"):
    """Give the model's pages up. Bookkeeping only: takes effect at once, in order of receipt."""

    action_id: int
    worker: str
    model: str


class Infer(msgspec.Struct, frozen=True, tag="infer", omit_defaults=True):
    """Run one batch: the requests' rows in order, padded with zero rows up to ``batch_size``."""

    action_id: int
    worker: str
    model: str
    batch_size: int
    request_ids: tuple[int, ...]
    rows: tuple[int, ...]
    """Rows of each request; their sum is at most ``batch_size``."""
    cold: tuple[bool, ...]
    """True for each request whose model was resident nowhere when the request arrived."""
    earliest_ns: int
    latest_ns: int
    predicted_begin_ns: int
    predicted_duration_ns: int
    evidence: Evidence | None = None
    """Numbers that the batch was decided from; kept where `Load.evidence` is."""
    sizes: tuple[int, ...] = ()
    """The size of each of the model's symbols, that of the largest request; empty if the model has none."""
    request_sizes: tuple[tuple[int, ...], ...] = ()
    """Sizes of each request, if requests differ; smaller ones are padded as `ModelSpec.pad` says. Empty if
    all are alike."""

    def sizes_of(self, index: int) -> tuple[int, ...]:
        """Return the sizes of the request with this index in ``request_ids``."""
        return self.request_sizes[index] if self.request_sizes else self.sizes


Action = Prepare | Release | Open | Load | Unload | Infer
Executed = Infer | Open
"""Actions that EXEC runs."""
Timed = Infer | Load | Open
"""Actions that have a window and a prediction."""
KINDS: dict[type, str] = {
    kind: kind.__name__.upper() for kind in (Infer, Load, Unload, Prepare, Release, Open)
}
"""Name of each action in logs and displays, by its class: ``INFER`` and so on."""


def kind_of(action: Action) -> str:
    """Return what an action is called, one of the values of `KINDS`."""
    return KINDS[type(action)]


def model_of(action: Action) -> str:
    """Return the name of the model that an action is about."""
    return action.model.name if isinstance(action, Prepare) else action.model


class Result(msgspec.Struct, frozen=True, tag="result"):
    """The end of an action; there is exactly one for each action."""

    action_id: int
    worker: str
    status: Status
    begin_ns: int
    """Instant at which the action began or was rejected."""
    end_ns: int
    device_ns: int = 0
    """Duration on the device alone: the copy of a LOAD, the EXEC of an INFER."""
    detail: str = ""
    """Description of what went wrong, for a person."""
    inputs_ns: int = 0
    """Instant at which an INFER's last input was in place, or at which an unusable one came; 0 if not all had
    come."""


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
    ASSIGNED = "assigned"
    """An operator gave it to another model, or gave the model workers of its own."""
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


class Reject(msgspec.Struct, frozen=True, tag="reject", omit_defaults=True):
    """Tell the request's gateway that the request will not be served."""

    request_id: int
    """A request, or a query with all its pieces."""
    reason: Reason
    detail: str
    earliest_finish_ns: int | None = None
    """The earliest finish that was possible, where it is known."""
    evidence: RejectEvidence | None = None
    """Numbers behind it; None if workers had nothing to do with it, and in logs of versions 1 and 2."""


class Unanswered(msgspec.Struct, frozen=True):
    """An INFER whose result did not come: its estimate grows to ``waited_ns``."""

    model: str
    batch_size: int
    waited_ns: int
    """Time from the INFER's expected begin until the wait was given up."""
    sizes: tuple[int, ...] = ()
    """Same as `Infer.sizes`."""


class DropWorker(msgspec.Struct, frozen=True, tag="drop_worker", omit_defaults=True):
    """Drop a worker: one that left an action unanswered, which may join again, or that goes elsewhere."""

    worker: str
    reason: str
    unanswered: Unanswered | None = None
    """The INFER that was executing, if that is why."""
    to: str = ""
    """The address of another controller, which the worker is sent to."""


class Ranked(msgspec.Struct, frozen=True, tag="ranked"):
    """A note: a request with a priority waits as if it were due, or had come, at another instant."""

    request_id: int
    due_ns: int | None
    """Instant by which EXEC must have ended; None for a best-effort request."""
    turn_ns: int
    """Instant that counts as its arrival among best-effort requests."""


class Doubted(msgspec.Struct, frozen=True, tag="doubted"):
    """A note: the estimates that would turn a model's request away were old or outliers, and are doubted."""

    model: str


Note = Ranked | Doubted | Retire | Retain
"""Commands that are logged and not sent: a reader of the log needs them to keep the cluster's state."""

Sent = Prepare | Release | Open | Load | Unload | Infer | Reject | DropWorker | Provide | Chosen
"""Commands that are sent to a worker, a gateway or a provider."""

Command = Sent | Note


def without_evidence(command: Command) -> Command:
    """Return a command as logs of versions 1 and 2 have it."""
    if isinstance(command, Infer | Load | Reject) and command.evidence is not None:
        return msgspec.structs.replace(command, evidence=None)
    return command
