"""The end of a call that brings no answer: gRPC's code, a sentence, and trailing metadata for programs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc

from mainspring.gateway.core.effects import Refuse
from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.oip.datatypes import Unserved, Withheld
from mainspring.gateway.oip.errors import grpc_code, retry_after_ns, sentence
from mainspring.gateway.oip.spans import RegionError
from mainspring.gateway.oip.triton_texts import worded
from mainspring.messages.codes import Reason

log = logging.getLogger("mainspring.gateway")

REASON_METADATA = "x-mainspring-reason"
"""Trailing metadata with the reason code, of `mainspring.messages.codes.Reason`."""
EARLIEST_FINISH_METADATA = "x-mainspring-earliest-finish-ms"
"""Trailing metadata with the time from this answer to the earliest finish that was possible, if known."""
RETRY_METADATA = "grpc-retry-pushback-ms"
"""Trailing metadata of gRPC's own that says after how long to try again, of an overloaded cluster."""

Context = Any
"""A `grpc.aio.ServicerContext`; its package has no types."""
T = TypeVar("T")
INTERNAL = "internal: the gateway failed at this request; its log says how"
Metadata = tuple[tuple[str, str], ...]


class Ended(Exception):
    """A call that brings no answer, which no reason code describes: the name of gRPC's code, and why."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Refused(Exception):
    """A call whose request was refused."""

    def __init__(self, refusal: Refuse) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


class NotServed(Ended):
    """The protocol has it, and this server has not."""

    def __init__(self, what: str, instead: str) -> None:
        """``what`` begins the sentence, and what to do ``instead`` ends it."""
        super().__init__("UNIMPLEMENTED", f"{what}, which is not served here; {instead}")


def metadata(reason: Reason, earliest_finish_left_ns: int | None = None) -> Metadata:
    """Return a refusal's trailing metadata."""
    said: Metadata = ((REASON_METADATA, reason.value),)
    if earliest_finish_left_ns is None:
        return said
    again_ns = retry_after_ns(reason, earliest_finish_left_ns)
    if again_ns is not None:
        said = (*said, (RETRY_METADATA, str(-(-again_ns // 1_000_000))))
    return (*said, (EARLIEST_FINISH_METADATA, f"{earliest_finish_left_ns / 1e6:.3f}"))


async def answered(context: Context, answer: Awaitable[T], *, triton: bool = False) -> T:
    """Return an answer; end the call with what it raises instead, in Triton's words if so asked.

    That is `BadRequest` or `Refused` for a refusal, `Ended`, or a fault of this program, which goes to the
    log and not to the client.
    """
    try:
        return await answer
    except Refused as refused:
        refusal = refused.refusal
        left_ns = refusal.earliest_finish_left_ns
        ending = _refusal(refusal.reason, refusal.detail, left_ns, triton=triton)
    except RegionError as apart:
        ending = apart.code, apart.detail, ()
    except BadRequest as wrong:
        ending = _refusal(wrong.reason, worded(wrong, triton=triton), wrong.again_ns, triton=triton)
    except Withheld as withheld:
        ending = "UNAVAILABLE", str(withheld), ()
    except Unserved as unserved:
        ending = "UNIMPLEMENTED", str(unserved), ()
    except Ended as ended:
        ending = ended.code, ended.detail, ()
    except Exception:
        log.exception("no answer to a call")
        ending = "INTERNAL", INTERNAL, ()
    code, detail, trailing = ending
    await context.abort(getattr(grpc.StatusCode, code), detail, trailing)
    raise AssertionError("a call that was aborted went on")


def _refusal(
    reason: Reason, detail: str, earliest_finish_left_ns: int | None = None, *, triton: bool
) -> tuple[str, str, Metadata]:
    """Return code, sentence and trailing metadata."""
    said = sentence(reason, detail, earliest_finish_left_ns, triton=triton)
    return grpc_code(reason), said, metadata(reason, earliest_finish_left_ns)
