"""What comes out of the scheduler: the actions, and the two words that go elsewhere."""

from __future__ import annotations

import msgspec

from mainspring.messages.actions import Infer, Load, Prepare, Release, Unload
from mainspring.messages.codes import Reason


class Reject(msgspec.Struct, frozen=True, tag="reject"):
    """Tell the request's gateway that the request will not be served."""

    request_id: int
    reason: Reason
    detail: str
    earliest_finish_ns: int | None = None
    """The earliest finish that was possible, where it is known."""


class Unanswered(msgspec.Struct, frozen=True):
    """An INFER whose result was waited for in vain: what it is expected to take grows to this."""

    model: str
    batch_size: int
    waited_ns: int
    """How long it was waited for since it was expected to begin."""


class DropWorker(msgspec.Struct, frozen=True, tag="drop_worker", omit_defaults=True):
    """Break with a worker that left an action unanswered; it may join again."""

    worker: str
    reason: str
    unanswered: Unanswered | None = None
    """The INFER that was executing, if that is why."""


Command = Prepare | Release | Load | Unload | Infer | Reject | DropWorker
