"""The lease that controllers share, of whom its holder leads, and its epoch, which each new holder raises.

A store keeps the lease: `Store` is what it must be able to do, `lease_files` has one for the controllers of
one machine. `Leadership` is what one controller makes of it. Pure.

The lease agrees who is to lead, and no more. A holder may be stopped or cut off at any instant and go on when
another one leads: that it does no harm then rests on the epoch, which its peers compare
(`transport.controllers`). One whose lease has ended goes on for whoever has seen no higher epoch, but grants
no changes.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

TTL_NS: Final = 800_000_000
"""Time for which a lease is held without being renewed."""
RENEWALS: Final = 4
"""Renewals in this time."""
MAX_EPOCH: Final = 1 << 22
"""Epochs are below this, so that the ids of actions fit in 64 bits with a sign."""


class StoreError(Exception):
    """The store could not be asked; who holds the lease is not known."""


class Lease(msgspec.Struct, frozen=True):
    """A lease as the store has it."""

    epoch: int
    holder: str
    """Name of the controller that has it, or had it last."""
    address: str = ""
    """Address of that controller."""
    held: bool = True
    """False if it has ended: it was given back, its time is over, or its holder is dead."""


class Store(Protocol):
    """Keeps one lease. Every method may wait, and raises `StoreError` if the store does not answer."""

    ttl_ns: int
    """Time for which the lease is held without being renewed."""
    look_ns: int
    """Time between two looks of a controller that stands by."""

    def look(self, now_ns: int) -> Lease | None:
        """Return the lease as it is at this instant; None if there has never been one."""

    def claim(self, now_ns: int, epoch: int) -> bool:
        """Take a lease that is not held, in an epoch above all before; return False if another was first."""

    def renew(self, now_ns: int) -> bool:
        """Hold it for ``ttl_ns`` from now on; return False if another controller has a higher epoch."""

    def release(self) -> None:
        """Give it back, so that another controller may claim it at once; harmless if it is not held."""

    def close(self) -> None:
        """Let go of everything."""


class Leadership:
    """One controller's part in it: whether it leads, and in which epoch. Pure: its driver asks the store."""

    def __init__(self, ttl_ns: int = TTL_NS) -> None:
        self._ttl_ns = ttl_ns
        self.epoch = 0
        """The epoch in which this controller leads; 0 while it does not."""
        self.seen = 0
        """The highest epoch that anyone has told of."""
        self._until_ns = 0
        """Instant at which the lease ends if it is not renewed."""

    @property
    def leads(self) -> bool:
        """Say whether this controller leads, as far as it knows."""
        return self.epoch > 0

    @property
    def next_epoch(self) -> int:
        """Return the epoch to claim."""
        return self.seen + 1

    def grants(self, now_ns: int) -> bool:
        """Say whether it may grant changes: it leads, and its lease has not ended."""
        return self.leads and now_ns < self._until_ns

    def told(self, epoch: int) -> None:
        """Take in an epoch that the store or a peer has named; one above its own ends its leading."""
        self.seen = max(self.seen, epoch)
        if self.seen > self.epoch:
            self.epoch = 0

    def claimed(self, asked_ns: int, epoch: int) -> None:
        """Begin to lead: the store granted what was asked for at that instant."""
        self.told(epoch)
        if epoch == self.seen:
            self.epoch = epoch
            self._until_ns = asked_ns + self._ttl_ns

    def renewed(self, asked_ns: int) -> None:
        """Take in that the store renewed what was asked for at that instant, not when it answered."""
        self._until_ns = max(self._until_ns, asked_ns + self._ttl_ns)

    def lost(self) -> None:
        """Stop leading: the lease is another's, or was given back."""
        self.epoch = 0

    def validate(self) -> None:
        """Check what is always so; raise AssertionError."""
        assert 0 <= self.epoch <= self.seen, f"it leads in epoch {self.epoch}, and {self.seen} was seen"
        assert self.epoch in (0, self.seen), f"it leads in epoch {self.epoch} behind {self.seen}"
