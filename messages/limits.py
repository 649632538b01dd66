"""Messages by which gateways share the limits of tokens: reports of use, and parts handed out."""

from __future__ import annotations

import msgspec

MOST_TOKENS = 1_000
"""Tokens that one message is about at most."""


class TokenUse(msgspec.Struct, frozen=True, array_like=True):
    """The limits of one token, and what a gateway uses of them."""

    token: str
    in_flight: int | None
    """Limit of the requests without an answer; None: none."""
    in_flight_bytes: int | None
    """Limit of their inputs' bytes."""
    asked: int
    """Requests since the last report, those that were refused among them."""
    held: int
    """Requests in flight."""
    held_bytes: int
    """Bytes of their inputs."""


class TokensUsed(msgspec.Struct, frozen=True, tag="tokens_used"):
    """A gateway says which tokens with limits were used, and which `TokenParts` it goes by."""

    sequence: int
    """Sequence of the last `TokenParts` that it has taken; 0 before the first."""
    tokens: tuple[TokenUse, ...]


class TokenPart(msgspec.Struct, frozen=True, array_like=True):
    """A gateway's part of one token's limits."""

    rate: float
    """Part of its rate and its burst, from 0 to 1."""
    in_flight: int
    """Requests; of no meaning for a token without this limit."""
    in_flight_bytes: int
    """Bytes of inputs; likewise."""


class TokenParts(msgspec.Struct, frozen=True, tag="token_parts"):
    """The controller tells a gateway its parts. It goes by them at once, and answers `TokensUsed`."""

    sequence: int
    gateways: int
    """Number of gateways: of each token that no message has named it has one part in so many."""
    parts: dict[str, TokenPart]
    """Parts that have changed, by token."""
