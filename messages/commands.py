"""The scheduler's output: actions for workers, rejections for gateways, notes for readers."""

from __future__ import annotations

import msgspec

from mainspring.messages.actions import Infer, Load, Open, Prepare, Release, Unload
from mainspring.messages.codes import Reason
from mainspring.messages.evidence import RejectEvidence
from mainspring.messages.scaling import Provide, Retain, Retire


class Reject(msgspec.Struct, frozen=True, tag="reject", omit_defaults=True):
    """Tell the request's gateway that the request will not be served."""

    request_id: int
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

Sent = Prepare | Release | Open | Load | Unload | Infer | Reject | DropWorker | Provide
"""Commands that are sent to a worker, a gateway or a provider."""

Command = Sent | Note


def without_evidence(command: Command) -> Command:
    """Return a command as logs of versions 1 and 2 have it."""
    if isinstance(command, Infer | Load | Reject) and command.evidence is not None:
        return msgspec.structs.replace(command, evidence=None)
    return command
