"""How a call ends that brings no answer: gRPC's code, a sentence, and trailing metadata for programs."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from mainspring.gateway.oip.errors import grpc_code, sentence
from mainspring.messages.codes import Reason

REASON_METADATA = "x-mainspring-reason"
"""Trailing metadata with the reason code, of `mainspring.messages.codes.Reason`."""
EARLIEST_FINISH_METADATA = "x-mainspring-earliest-finish-ms"
"""Trailing metadata with the time from this answer to the earliest finish that was possible, if known."""

Context = Any
"""A `grpc.aio.ServicerContext`; its package has no types."""
Metadata = tuple[tuple[str, str], ...]


class Ended(Exception):
    """A call that brings no answer, of which no reason code tells: the name of gRPC's code, and why."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class NotServed(Ended):
    """The protocol has it, and this server has not."""

    def __init__(self, what: str) -> None:
        """``what`` begins the sentence."""
        super().__init__("UNIMPLEMENTED", f"{what}, which is not served here")


def metadata(reason: Reason, earliest_finish_left_ns: int | None = None) -> Metadata:
    """Return a refusal's trailing metadata."""
    said = ((REASON_METADATA, reason.value),)
    if earliest_finish_left_ns is None:
        return said
    return (*said, (EARLIEST_FINISH_METADATA, f"{earliest_finish_left_ns / 1e6:.3f}"))


async def refuse(
    context: Context, reason: Reason, detail: str, earliest_finish_left_ns: int | None = None
) -> NoReturn:
    """End a call with a refusal."""
    await end(
        context,
        grpc_code(reason),
        sentence(reason, detail, earliest_finish_left_ns),
        metadata(reason, earliest_finish_left_ns),
    )


async def end(context: Context, code: str, detail: str, trailing: Metadata = ()) -> NoReturn:
    """End a call with a code by its name, such as ``NOT_FOUND``, and a sentence."""
    await context.abort(getattr(grpc.StatusCode, code), detail, trailing)
    raise AssertionError("a call that was aborted went on")
