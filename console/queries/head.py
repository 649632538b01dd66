"""The head of every picture: its subject and instant."""

from __future__ import annotations

from mainspring.console.payloads import Head
from mainspring.console.view.view import View


def head(
    view: View, state: str, operable: bool = False, *, shard: int = 0, shards: tuple[str, ...] = ()
) -> Head:
    """Return the head of a picture; all but ``view`` as `Head` says."""
    return Head(
        now_ns=view.now_ns,
        unix_ns=view.unix_ns(view.now_ns),
        state=state,
        policy=view.policy,
        first_ns=view.first_ns,
        operable=operable,
        shard=shard,
        shards=shards,
    )
