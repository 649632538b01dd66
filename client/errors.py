"""Errors of requests that got no outputs, as exceptions; each message says what to do.

`MainspringError` is the base. Below it stand the families that a caller may want to catch as one:
`DeadlineError` (the answer could not come in time), `InvalidRequest` (the request itself is wrong; the
same request will fail again), `Unavailable` (the cluster can't serve it now; try again later).
"""

from __future__ import annotations

from typing import Any, Never

from mainspring.messages.clients import ErrorReply
from mainspring.messages.codes import Reason


class MainspringError(Exception):
    """Base of everything that this client raises about a request.

    ``reason`` is the gateway's code, or None where the client itself gave up.
    """

    remedy = ""

    def __init__(self, detail: str, reason: Reason | None = None) -> None:
        self.detail = detail
        self.reason = reason
        ended = detail if detail.endswith((".", "?", "!")) else f"{detail}."
        super().__init__(f"{ended} {self.remedy}" if self.remedy else detail)

    def __reduce__(self) -> tuple[Any, ...]:
        """Have a copy in another process be equal: the text is made of the arguments, not one of them."""
        return _unpickled, (type(self), self.args), self.__dict__


class DeadlineError(MainspringError):
    """The outputs could not be there by the deadline."""


class DeadlineUnreachable(DeadlineError):
    """Refused at once: no plan could have met the deadline."""

    remedy = "Ask with a longer SLO, or add workers"

    def __init__(
        self, detail: str, reason: Reason | None = None, earliest_finish_ms: float | None = None
    ) -> None:
        self.earliest_finish_ms = earliest_finish_ms
        """Milliseconds from the refusal to the earliest finish that was possible; None if not known."""
        known = (
            "" if earliest_finish_ms is None else f" (earliest possible finish: {earliest_finish_ms:.1f} ms)"
        )
        super().__init__(f"{detail}{known}", reason)


class DeadlinePassed(DeadlineError):
    """Queued until no worker could finish it in time any more."""

    remedy = "Ask with a longer SLO; if the cluster is busy, send less or add workers"


class TimedOut(DeadlineError):
    """Neither outputs nor a rejection came in time."""

    remedy = "Look at the workers' and the controller's logs, then try again"


class InvalidRequest(MainspringError):
    """The request itself is wrong; sent again it fails again."""


class UnknownModel(InvalidRequest):
    """No model of this name is served."""

    remedy = "See Client.models() or `mainspring models list` for the names"


class InvalidInput(InvalidRequest):
    """An input's name, dtype, shape or size is not what the model takes."""


class InvalidValues(InvalidInput):
    """The model's computation fails on what the inputs hold, such as an index out of range."""


class InvalidOutput(InvalidRequest):
    """The request names an output that the model does not have."""


class InvalidSlo(InvalidRequest):
    """The SLO is zero, negative or absurd."""


class TooManyRows(InvalidRequest):
    """More rows than the model's largest batch."""


class UnknownSequence(InvalidRequest):
    """The gateway has no state of the sequence, or has one that the request does not go on with."""

    remedy = "Begin the sequence again"


class DuplicateKey(InvalidRequest):
    """The connection has a request of this key in flight."""


class InvalidMessage(InvalidRequest):
    """The gateway could not read the message."""

    remedy = "Is the client of the same version as the gateway?"


class ModelExists(InvalidRequest):
    """A model of this name is served already."""

    remedy = "Remove it first, or choose another name"


class Unauthenticated(InvalidRequest):
    """The gateway needs a token, and the client sent none that it knows."""

    remedy = "Pass Client(token=...) or set MAINSPRING_TOKEN; `mainspring token new` makes one"


class Forbidden(InvalidRequest):
    """The token may not do this."""


class Cancelled(MainspringError):
    """The request was cancelled before its outputs came."""


class Unavailable(MainspringError):
    """The cluster can't serve the request now; it may later."""


class NoWorker(Unavailable):
    """No worker is there that could run the model."""

    remedy = "Start a worker with `mainspring worker`, or one with a larger page cache"


class ModelNotReady(Unavailable):
    """The model is being compiled or prepared, or can't be loaded."""

    remedy = "Try again in a moment"


class ModelRemoved(Unavailable):
    """The model was removed while the request waited."""


class WorkerFailed(Unavailable):
    """The work failed on its worker and the deadline allowed no other try."""

    remedy = "Look at the worker's log, then try again"


class TryLater(Unavailable):
    """Too many requests came: by when to come again may be known."""

    def __init__(self, detail: str, reason: Reason | None = None, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        """Seconds from the refusal after which to come again; None if not known."""
        again = "" if retry_after_s is None else f" (come again in {max(retry_after_s, 0.1):.1f} s)"
        super().__init__(f"{detail}{again}", reason)


class Overloaded(TryLater):
    """A bounded queue is full."""

    remedy = "Have fewer requests in flight, or add workers"


class RateLimited(TryLater):
    """The token's requests come faster than it may send them."""

    remedy = "Send fewer requests a second, or raise the rate in the file of tokens"


class OverShare(TryLater):
    """Requests are being dropped, and the token's tenant is ahead of its share of the devices' time."""

    remedy = "Send less for now, or raise the tenant's weight in [tenants]"


class ControllerUnreachable(Unavailable):
    """The gateway has no controller."""

    remedy = "Start it with `mainspring controller` or `mainspring up`"


class ShuttingDown(Unavailable):
    """The gateway is about to stop."""

    remedy = "Try again once it is back"


class GatewayUnreachable(Unavailable):
    """No gateway answers at the address, or the connection to it broke."""


ERROR_OF_REASON: dict[Reason, type[MainspringError]] = {
    Reason.DEADLINE_UNREACHABLE: DeadlineUnreachable,
    Reason.DEADLINE_PASSED: DeadlinePassed,
    Reason.TIMED_OUT: TimedOut,
    Reason.UNKNOWN_MODEL: UnknownModel,
    Reason.BAD_INPUT: InvalidInput,
    Reason.BAD_VALUES: InvalidValues,
    Reason.BAD_OUTPUT: InvalidOutput,
    Reason.BAD_SLO: InvalidSlo,
    Reason.TOO_MANY_ROWS: TooManyRows,
    Reason.UNKNOWN_SEQUENCE: UnknownSequence,
    Reason.DUPLICATE_KEY: DuplicateKey,
    Reason.BAD_MESSAGE: InvalidMessage,
    Reason.CANCELLED: Cancelled,
    Reason.UNAUTHENTICATED: Unauthenticated,
    Reason.FORBIDDEN: Forbidden,
    Reason.RATE_LIMITED: RateLimited,
    Reason.OVER_SHARE: OverShare,
    Reason.NO_WORKER: NoWorker,
    Reason.MODEL_NOT_READY: ModelNotReady,
    Reason.MODEL_REMOVED: ModelRemoved,
    Reason.MODEL_EXISTS: ModelExists,
    Reason.WORKER_FAILED: WorkerFailed,
    Reason.OVERLOADED: Overloaded,
    Reason.CONTROLLER_UNREACHABLE: ControllerUnreachable,
    Reason.SHUTTING_DOWN: ShuttingDown,
}


def kind_of(value: object) -> str:
    """Return what a value of a wrong type is, for a message: ``an int``, ``a str``, ``None``."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _unpickled(kind: type[MainspringError], args: tuple[object, ...]) -> MainspringError:
    return kind.__new__(kind, *args)


def error_of(reply: ErrorReply) -> MainspringError:
    """Return the exception that says what ``reply`` says."""
    kind, left_ns = ERROR_OF_REASON[reply.reason], reply.earliest_finish_left_ns
    if issubclass(kind, TryLater):
        return kind(reply.detail, reply.reason, None if left_ns is None else left_ns / 1e9)
    if kind is DeadlineUnreachable:
        return DeadlineUnreachable(reply.detail, reply.reason, None if left_ns is None else left_ns / 1e6)
    return kind(reply.detail, reply.reason)


class OfOneProcess:
    """A class whose objects can't be pickled, with what to pass in their place."""

    _instead = "pass its address, and make a Client(address) in the other process"

    def __reduce_ex__(self, _protocol: Any) -> Never:
        raise TypeError(f"a {type(self).__name__} is of one process and can't be pickled: {self._instead}")
