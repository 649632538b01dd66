"""What the controller tells a worker to do, and the worker's one `Result` for each action.

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
    """Not on the wire, nor in logs of versions 1 and 2."""


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
    """For each request, whether the model was resident nowhere when it arrived."""
    earliest_ns: int
    latest_ns: int
    predicted_begin_ns: int
    predicted_duration_ns: int
    evidence: Evidence | None = None
    """As `Load.evidence`."""
    sizes: tuple[int, ...] = ()
    """The size of each of the model's symbols, that of the largest request; empty if the model has none."""
    request_sizes: tuple[tuple[int, ...], ...] = ()
    """Of each request, where they differ: smaller ones are padded as `ModelSpec.pad` says."""

    def sizes_of(self, index: int) -> tuple[int, ...]:
        """Return the sizes of the request with this index in ``request_ids``."""
        return self.request_sizes[index] if self.request_sizes else self.sizes


Action = Prepare | Release | Open | Load | Unload | Infer
Executed = Infer | Open
"""What EXEC does."""
Timed = Infer | Load | Open
"""What has a window and a prediction."""
KINDS: dict[type, str] = {
    kind: kind.__name__.upper() for kind in (Infer, Load, Unload, Prepare, Release, Open)
}
"""What logs and displays call each action, by its class: ``INFER`` and so on."""


def kind_of(action: Action) -> str:
    """Return what an action is called, one of the values of `KINDS`."""
    return KINDS[type(action)]


def model_of(action: Action) -> str:
    """Return the name of the model that an action is about."""
    return action.model.name if isinstance(action, Prepare) else action.model


class Result(msgspec.Struct, frozen=True, tag="result"):
    """How an action ended: exactly one for each action."""

    action_id: int
    worker: str
    status: Status
    begin_ns: int
    """When it began, or when it was rejected."""
    end_ns: int
    device_ns: int = 0
    """Duration on the device alone: the copy of a LOAD, the EXEC of an INFER."""
    detail: str = ""
    """What went wrong, for a person."""
    inputs_ns: int = 0
    """When an INFER's last input was in place, or one that can't be used came; 0 if not all had come."""
