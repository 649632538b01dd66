"""Who calls: what a call's metadata say, and whether it may pass by the token among them."""

from __future__ import annotations

from time import monotonic_ns

from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.grpc.status import Context
from mainspring.transport.tokens import Gate, from_header

TOKEN = "authorization"
"""Metadata with ``Bearer TOKEN``."""


class Caller:
    """What is known of a call beside its messages."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._metadata = dict(context.invocation_metadata() or ())

    def said(self, name: str) -> str | None:
        """Return the text of the metadata of this name, in lower case; None if there is none."""
        value = self._metadata.get(name)
        return value if value is None or isinstance(value, str) else repr(value)

    def left_s(self) -> float | None:
        """Return the seconds that the call's own deadline leaves; None if it has none."""
        left_s: float | None = self._context.time_remaining()
        return left_s


def check(gate: Gate, caller: Caller, model: str | None, *, administers: bool = False) -> None:
    """Raise `BadRequest` if a call about this model, or about none, may not pass; count it for its token."""
    if not gate.closed:
        return
    refusal = gate.authorise(caller.said(TOKEN), model, monotonic_ns(), administers=administers)
    if refusal is not None:
        raise BadRequest(*refusal)


def priority(gate: Gate, caller: Caller, asked: int) -> int:
    """Return the priority that a call's request gets which asks for one."""
    return gate.priority(from_header(caller.said(TOKEN)), asked) if asked and gate.closed else asked


def sees(gate: Gate, caller: Caller, model: str) -> bool:
    """Say whether a model may be listed for a call."""
    return not gate.closed or gate.may_see(from_header(caller.said(TOKEN)), model)
