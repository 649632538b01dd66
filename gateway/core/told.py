"""What each of several controllers has told this gateway, and what clients are served of it. Pure.

A model is taken to the shard that the newest map names for it, if that has it, and else to one that has: to
shards that are about to let go of it only while no other has it. With one controller, what it tells is what
clients are served, and nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.gateway.core.catalog import Catalog
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import ModelDown
from mainspring.messages.served import ServedModel
from mainspring.messages.sharding import ShardMap, first_map


class Told:
    """The catalogs of all shards, and the one that front ends look into."""

    def __init__(self, catalog: Catalog, addresses: Sequence[str]) -> None:
        """``catalog`` is what front ends look into; ``addresses`` are the controllers', by shard."""
        self.catalog = catalog
        self._several = len(addresses) > 1
        self.parts = [Catalog() for _ in addresses] if self._several else [catalog]
        """What each shard's controller has told."""
        for part in self.parts:
            part.complete = False
        self.shards: dict[str, int] = {}
        """The shard of each model that is not taken to shard 0."""
        self.map = first_map(addresses, version=0)
        self._leaving: dict[str, set[int]] = {}
        """Shards that let go of a model once another one has it, by the model's name."""

    @property
    def ready(self) -> bool:
        """Whether a controller has told all of its models and workers."""
        return any(part.complete for part in self.parts)

    def shard_of(self, model: str) -> int | None:
        """Return the shard that requests for a model are taken to; None if none has it."""
        return self.shards.get(model, 0) if model in self.catalog.signatures else None

    def told_all(self, now_ns: int, shard: int) -> None:
        """Note that a controller has told all that it knew at its welcome; it may say so again."""
        self.parts[shard].told_all(now_ns)
        self.catalog.complete = all(part.complete for part in self.parts)

    # --- each method returns the models whose requests now go to another shard than before ---

    def take_map(self, new: ShardMap) -> list[str]:
        """Route by a newer map from now on."""
        self.map = new
        twice = [name for name in self.catalog.signatures if len(self._holders(name)) > 1]
        return [name for name in twice if self._settle(name)]

    def model_up(self, shard: int, spec: ModelSpec) -> list[str]:
        """Take requests for a model; raise ValueError if its spec makes no sense."""
        self.parts[shard].model_up(spec)
        if (leaving := self._leaving.get(spec.name)) is not None:
            leaving.discard(shard)
        return [spec.name] if self._settle(spec.name) else []

    def model_down(self, shard: int, message: ModelDown) -> list[str]:
        """Take no more requests for a model to a shard, once another one has it if it only moves."""
        if self._several and message.moves and message.drain:
            self._leaving.setdefault(message.name, set()).add(shard)
        else:
            self.parts[shard].model_down(message.name)
        return [message.name] if self._settle(message.name) else []

    def serve(self, shard: int, model: ServedModel) -> None:
        """Take requests for a repository's model to these versions from now on."""
        self.parts[shard].serve(model)
        if self._several:
            self.catalog.serve(model)

    def set_default_slo(self, shard: int, name: str, slo_ns: int | None) -> None:
        """Give requests for a model that bring no SLO this one; None for the configured one."""
        self.parts[shard].set_default_slo(name, slo_ns)
        if self._several:
            self.catalog.set_default_slo(name, slo_ns)

    def worker_up(self, shard: int, worker: str, address: str) -> str:
        """Send inputs for a worker to this address; return what is wrong with that, if anything."""
        other = [
            number
            for number, part in enumerate(self.parts)
            if number != shard and part.workers.get(worker, address) != address
        ]
        self.parts[shard].worker_up(worker, address)
        if self._several:
            self.catalog.worker_up(worker, address)
        if not other:
            return ""
        return (
            f"shards {other[0]} and {shard} each have a worker {worker!r}, at different addresses: name the "
            "workers of a cluster differently, whichever controller they have"
        )

    def worker_down(self, shard: int, worker: str) -> bool:
        """Note that a shard has a worker no more; return whether no other shard has it either."""
        self.parts[shard].worker_down(worker)
        return not self._several or self._worker_gone(worker)

    def next_wakeup_ns(self) -> int | None:
        """Return when `tick` is to be called next."""
        if not self._several:
            return self.catalog.next_wakeup_ns()
        return min((due for part in self.parts if (due := part.next_wakeup_ns()) is not None), default=None)

    def tick(self, now_ns: int) -> tuple[list[str], list[str]]:
        """Forget what controllers did not confirm: return the workers among it, and the models that moved."""
        if not self._several:
            return self.catalog.tick(now_ns), []
        workers, moved = [], []
        for number, part in enumerate(self.parts):
            due_ns = part.next_wakeup_ns()
            if due_ns is None or now_ns < due_ns:
                continue
            served = list(part.served)
            workers += [worker for worker in part.tick(now_ns) if self._worker_gone(worker)]
            for name in served:
                if not any(name in each.served for each in self.parts):
                    self.catalog.serve(ServedModel(name, {}))
            mine = [name for name in self.catalog.signatures if self.shards.get(name, 0) == number]
            moved += [name for name in mine if name not in part.signatures and self._settle(name)]
        return workers, moved

    def _worker_gone(self, worker: str) -> bool:
        """Take a worker off the catalog unless some shard still has it; return whether none has."""
        found = [part.workers[worker] for part in self.parts if worker in part.workers]
        if found:
            self.catalog.worker_up(worker, found[0])
        else:
            self.catalog.worker_down(worker)
        return not found

    def _holders(self, model: str) -> list[int]:
        return [number for number, part in enumerate(self.parts) if model in part.signatures]

    def _settle(self, model: str) -> bool:
        """Choose the shard of a model again; return whether its requests go to another one than before."""
        if not self._several:
            return False
        holders, leaving = self._holders(model), self._leaving.get(model, set())
        stay = [number for number in holders if number not in leaving]
        if stay:
            for number in leaving:
                self.parts[number].model_down(model)
        if stay or not holders:
            self._leaving.pop(model, None)
        before = self.shard_of(model)
        at = _chosen(model, stay or holders, self.map)
        if at is None:
            self.catalog.model_down(model)
            self.shards.pop(model, None)
            return False
        self.catalog.signatures[model] = self.parts[at].signatures[model]
        if at:
            self.shards[model] = at
        else:
            self.shards.pop(model, None)
        return before is not None and before != at


def _chosen(model: str, holders: Sequence[int], shard_map: ShardMap) -> int | None:
    """Return which of the shards that have a model its requests are taken to."""
    if len(holders) < 2:
        return holders[0] if holders else None
    place = shard_map.place(model)
    return place if place in holders else holders[0]
