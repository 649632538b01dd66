"""A request that passed validation, as the request table knows it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from mainspring.gateway.core.validation import Signature


class Turn(msgspec.Struct, frozen=True):
    """Where in which sequence of its model a request is."""

    sequence: int | str
    start: bool
    end: bool


class Accepted(msgspec.Struct, frozen=True):
    """A request that passed: what the request table needs to know of it."""

    model: str
    """By the scheduler's name, which for a repository's model stands for one version of it."""
    rows: int
    slo_ns: int | None
    frame_order: tuple[int, ...]
    """For each input of the model, which of the request's frames holds it."""
    output_order: tuple[int, ...]
    """Which of the model's outputs the client wants, in its order."""
    signature: Signature
    """Of the model when the request came; it may have been removed since."""
    traceparent: str = ""
    priority: int = 0
    back_ns: int = 0
    """What the answer takes from here to its caller, about."""
    late_outputs: bool = True
    """Whether the client has a use for outputs that come after the deadline."""
    sizes: tuple[int, ...] = ()
    """The size of each of the model's symbols in this request; empty if the model has none."""
    turn: Turn | None = None
    """Of a model with sequences. ``signature`` is what clients see of it until the request's turn."""
