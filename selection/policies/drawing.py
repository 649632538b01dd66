"""One member out of several, by probability. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def drawn(shares: Mapping[str, float], at: float) -> str:
    """Return a member, each with the probability that is its share, for ``at`` drawn from 0 to below 1."""
    for member, share in shares.items():
        at -= share
        if at < 0:
            return member
    return next(reversed(dict(shares)))  # Shares may add up to a little less than 1.
