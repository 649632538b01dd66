"""The map that says which of several controllers has which model, and how it places a model. Pure.

A *shard* is one controller with its workers. A model is where rendezvous hashing puts it, weighted by the
shards' pages, unless the map names another place for it. Adding a shard, or giving one more weight, moves
models to that shard alone; taking weight away moves models off that shard alone. A shard's number is its
place in the map, so one that goes for good keeps its place, with no pages.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import msgspec

from mainspring.messages.ids import MAX_SHARDS
from mainspring.messages.scaling import KindStatus

_DRAWS = 1 << 53
"""Number of different values that a float tells apart between 0 and 1."""
MOVED = "moved"
"""A worker was sent to another controller to stay there."""
AGAIN = "again"
"""It came back to a controller that had sent it away, and was sent after."""


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """One controller."""

    address: str
    pages: int
    """Its weight: the pages of its workers together. 0: it gets no model but those the map names for it."""


class ShardMap(msgspec.Struct, frozen=True, tag="shard_map"):
    """All controllers, and the models that are elsewhere than hashing puts them; the newest version counts.

    The first controller keeps it and tells every gateway. A gateway that knows a newer one tells that one to
    the controller, which has lost it.
    """

    version: int
    """0: what a gateway assumes of its configuration until a controller has told a map."""
    shards: tuple[Shard, ...]
    """All shards, in the order of their numbers."""
    models: dict[str, int] = {}
    """Exceptions: the shard's number by the model's name."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the controllers, in the order of their numbers."""
        return tuple(shard.address for shard in self.shards)

    def place(self, model: str) -> int:
        """Return the number of the shard that is to have a model."""
        exception = self.models.get(model)
        return hashed(model, self.shards) if exception is None else exception

    def moved(self, models: dict[str, int]) -> ShardMap:
        """Return the next version, with these models in these shards; useless exceptions go."""
        wanted = {**self.models, **models}
        exceptions = {name: at for name, at in wanted.items() if at != hashed(name, self.shards)}
        return msgspec.structs.replace(self, version=self.version + 1, models=exceptions)


class ShardStatus(msgspec.Struct, frozen=True):
    """One of several controllers with its workers, for a person."""

    number: int
    address: str
    """Address of its controller."""
    pages: int
    """Its weight in the map."""
    up: bool
    """True if its controller answered; the rest is 0 if it did not."""
    workers: int = 0
    models: int = 0
    queued: int = 0
    arrived: int = 0
    """Same as `status.ModelStatus.arrived`, for all models together."""
    rejected: int = 0
    """Same as `status.ModelStatus.rejected`, for all models together."""
    kinds: tuple[KindStatus, ...] = ()
    """Its workers, by kind, if something starts and stops them."""


def first_map(addresses: Sequence[str], pages: Sequence[int] = (), version: int = 1) -> ShardMap:
    """Return the map of a configuration; without ``pages`` all shards have the same weight."""
    weights = pages or [1] * len(addresses)
    return ShardMap(
        version, tuple([Shard(address, each) for address, each in zip(addresses, weights, strict=True)])
    )


def hashed(model: str, shards: Sequence[Shard]) -> int:
    """Return where hashing alone puts a model: the shard with the largest weighted draw, the first of equals.

    With draws u between 0 and 1 that hang on shard and model alone, the largest of ``-weight / log(u)`` is a
    shard's with a probability in proportion to its weight.
    """
    best, best_score = 0, -1.0
    for number, shard in enumerate(shards):
        score = -shard.pages / math.log(_draw(number, model)) if shard.pages > 0 else 0.0
        if score > best_score:
            best, best_score = number, score
    return best


def _draw(number: int, model: str) -> float:
    """Return a number above 0 and below 1, always the same for a shard and a model."""
    digest = hashlib.blake2b(f"{number}/{model}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) % (_DRAWS - 1) + 1) / _DRAWS


def map_fault(shard_map: ShardMap) -> str | None:
    """Return what is wrong with a map, or None."""
    addresses = shard_map.addresses
    if not 0 < len(addresses) <= MAX_SHARDS:
        return f"it has {len(addresses)} shards; there may be 1 to {MAX_SHARDS}"
    twice = [address for index, address in enumerate(addresses) if address in addresses[:index]]
    if twice:
        return f"shards {addresses.index(twice[0])} and another have the address {twice[0]}"
    if any(shard.pages < 0 for shard in shard_map.shards) or not any(
        shard.pages for shard in shard_map.shards
    ):
        return "a shard's pages are 0 or more, and not 0 for all"
    lost = [name for name, at in shard_map.models.items() if not 0 <= at < len(addresses)]
    if lost:
        where = shard_map.models[lost[0]]
        return f"model {lost[0][:128]!r} is in shard {where}; there are 0 to {len(addresses) - 1}"
    return None
