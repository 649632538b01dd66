"""Status and code of a refusal in HTTP and in gRPC, and the sentence that says it.

Triton answers a request that missed its deadline with 503, and so does every refusal here that another
moment may turn into an answer; 504 would make gateways between blame themselves. gRPC has a code of its own
for deadlines.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

import msgspec

from mainspring.gateway.oip.triton_texts import begun
from mainspring.messages import served
from mainspring.messages.codes import Reason

BAD_REQUEST = (400, "INVALID_ARGUMENT")
NOT_FOUND = (404, "NOT_FOUND")
UNAUTHENTICATED = (401, "UNAUTHENTICATED")
FORBIDDEN = (403, "PERMISSION_DENIED")
EXISTS = (409, "ALREADY_EXISTS")
CANCELLED = (499, "CANCELLED")
FAILED = (500, "INTERNAL")
UNAVAILABLE = (503, "UNAVAILABLE")
RATE_LIMITED = (429, "RESOURCE_EXHAUSTED")
OVERLOADED = (503, "RESOURCE_EXHAUSTED")
COMES_AGAIN = (Reason.OVERLOADED, Reason.RATE_LIMITED, Reason.OVER_SHARE)
"""Refusals that say when to come again."""
LATE = (503, "DEADLINE_EXCEEDED")

STATUSES: Mapping[Reason, tuple[int, str]] = MappingProxyType(
    {
        Reason.DEADLINE_UNREACHABLE: LATE,
        Reason.DEADLINE_PASSED: LATE,
        Reason.TIMED_OUT: LATE,
        Reason.UNKNOWN_MODEL: NOT_FOUND,
        Reason.BAD_INPUT: BAD_REQUEST,
        Reason.BAD_VALUES: BAD_REQUEST,
        Reason.BAD_OUTPUT: BAD_REQUEST,
        Reason.BAD_SLO: BAD_REQUEST,
        Reason.TOO_MANY_ROWS: BAD_REQUEST,
        Reason.UNKNOWN_SEQUENCE: BAD_REQUEST,
        Reason.DUPLICATE_KEY: BAD_REQUEST,
        Reason.BAD_MESSAGE: BAD_REQUEST,
        Reason.CANCELLED: CANCELLED,
        Reason.UNAUTHENTICATED: UNAUTHENTICATED,
        Reason.FORBIDDEN: FORBIDDEN,
        Reason.RATE_LIMITED: RATE_LIMITED,
        Reason.OVER_SHARE: RATE_LIMITED,
        Reason.NO_WORKER: UNAVAILABLE,
        Reason.MODEL_NOT_READY: UNAVAILABLE,
        Reason.MODEL_REMOVED: NOT_FOUND,
        Reason.MODEL_EXISTS: EXISTS,
        Reason.WORKER_FAILED: FAILED,
        Reason.OVERLOADED: OVERLOADED,
        Reason.CONTROLLER_UNREACHABLE: UNAVAILABLE,
        Reason.SHUTTING_DOWN: UNAVAILABLE,
    }
)
"""HTTP status and the name of the gRPC code for each reason."""


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refusal as JSON. Standard clients read ``error``; the rest is for programs that know of it."""

    error: Annotated[str, msgspec.Meta(description="What was wrong, and what would be right")]
    reason: Annotated[str, msgspec.Meta(description="A code of docs/messages.md")] = ""
    earliest_finish_ms: Annotated[
        float | None,
        msgspec.Meta(
            description="When an answer was possible, or if the cluster is overloaded when to come again"
        ),
    ] = None


_NOT_READY: Mapping[str, Reason] = MappingProxyType(
    {
        served.NO_CONTROLLER: Reason.CONTROLLER_UNREACHABLE,
        served.NO_WORKER: Reason.NO_WORKER,
        served.LEAVING: Reason.SHUTTING_DOWN,
    }
)


def not_ready(why: str) -> ErrorBody:
    """Return what says that the server or a model is not ready, with a reason of `messages.readiness`."""
    reason = _NOT_READY.get(why.partition(":")[0], Reason.MODEL_NOT_READY)
    return ErrorBody(why, reason.value)


def http_status(reason: Reason) -> int:
    """Return the status of a refusal over HTTP."""
    return STATUSES.get(reason, FAILED)[0]


def grpc_code(reason: Reason) -> str:
    """Return the name of a refusal's code over gRPC, such as ``DEADLINE_EXCEEDED``."""
    return STATUSES.get(reason, FAILED)[1]


def sentence(
    reason: Reason, detail: str, earliest_finish_left_ns: int | None = None, *, triton: bool = False
) -> str:
    """Return what a person reads: the code, what was wrong, and when an answer was possible.

    ``triton``: with Triton's sentence for the reason, if it has one, in the place of the code.
    """
    said = begun(reason, detail) if triton else f"{reason.value}: {detail}"
    if earliest_finish_left_ns is None:
        return said
    if reason in COMES_AGAIN:
        return f"{said}; come again in {max(earliest_finish_left_ns / 1e9, 0.1):.1f} s"
    return f"{said}; the earliest finish that was possible is {earliest_finish_left_ns / 1e6:.1f} ms from now"


def retry_after_ns(reason: Reason, earliest_finish_left_ns: int | None) -> int | None:
    """Return after how long to come again, where a full queue or a token's rate says that."""
    return max(0, earliest_finish_left_ns) if earliest_finish_left_ns and reason in COMES_AGAIN else None


def error_body(
    reason: Reason, detail: str, earliest_finish_left_ns: int | None = None, *, triton: bool = False
) -> ErrorBody:
    """Return a refusal as JSON says it; ``triton`` as in `sentence`."""
    return ErrorBody(
        sentence(reason, detail, earliest_finish_left_ns, triton=triton),
        reason.value,
        None if earliest_finish_left_ns is None else round(earliest_finish_left_ns / 1e6, 3),
    )
