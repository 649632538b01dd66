"""The vocabulary between journals and stores: a job of reads, writes and erasures, and what came of it. Pure.

A store keeps records by application and key, each with a version, which is the token of the write that made
it: the 31 bits of its gateway's seed above a counter. No two writes have the same one, also after a record
was erased, so that "compare and set" can't take a new record for the old one. 0 stands for no record.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from mainspring.selection.policy import State

SHARED, TOTAL, CONTEXT = "shared", "total", "context:"
"""Keys: of the state of requests without a context, of the contexts' sums, and in front of a context."""
MOST_TOKENS = 16
"""Gateways whose last write of a record it names."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A state as a store keeps it."""

    policy: str
    """The policy that learnt it: no other can go on with it."""
    state: dict[str, tuple[float, ...]]
    tokens: tuple[int, ...]
    """The last write of each gateway that is part of it: one whose reply got lost finds itself here."""


_DECODER = msgspec.msgpack.Decoder(Record)


class Read(NamedTuple):
    """Tell what is stored."""

    application: str
    key: str


class Write(NamedTuple):
    """Store a record if the version there is ``expected``, and tell what is there if it is another."""

    application: str
    key: str
    expected: int
    token: int
    record: bytes


class Erase(NamedTuple):
    """Erase a record, and tell what it was."""

    application: str
    key: str


class Stored(NamedTuple):
    """A record and its version."""

    version: int
    record: bytes = b""


NOTHING = Stored(0)


class Job(NamedTuple):
    """Requests to a store, done together: erasures first, then reads, then writes."""

    erasures: tuple[Erase, ...] = ()
    reads: tuple[Read, ...] = ()
    writes: tuple[Write, ...] = ()


class Outcome(NamedTuple):
    """Results of a job, in its order."""

    epoch: int
    """Drawn when the store began: with another one, what was written before is gone."""
    erased: tuple[Stored, ...] = ()
    read: tuple[Stored, ...] = ()
    conflicts: tuple[Stored | None, ...] = ()
    """None for each write that was done, else the record that is there."""


class StoreAway(Exception):
    """The store can't be reached, or does not answer in time; the text says why."""

    def __init__(self, why: str, *, doubtful: bool) -> None:
        """``doubtful``: whether writes may have been done all the same."""
        super().__init__(why)
        self.doubtful = doubtful


def encoded(policy: str, state: State, tokens: tuple[int, ...], token: int) -> bytes:
    """Return a record with a write's token, in place of an earlier one of its gateway."""
    others = [each for each in tokens if each >> 32 != token >> 32]
    return msgspec.msgpack.encode(Record(policy, dict(state), (*others[1 - MOST_TOKENS :], token)))


def decoded(stored: Stored) -> Record | None:
    """Return a record; None if there is none, or none that can be read."""
    try:
        return _DECODER.decode(stored.record) if stored.version else None
    except msgspec.DecodeError:
        return None
