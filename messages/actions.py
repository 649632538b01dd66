"""The actions that the controller sends to a worker, and the worker's one `Result` for each action.

Clockwork, sections 4.4 and 5.2. An action may *begin* only within ``[earliest_ns, latest_ns]``. On the
wire these instants are on the **worker's** clock: the controller's shell translates them when it sends,
and translates a result's instants back when it receives.
"""

from __future__ import annotations

import msgspec

from mainspring.messages.codes import Status
from mainspring.messages.evidence import Evidence, LoadEvidence
from mainspring.messages.model import ModelSpec


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
