"""One runner of workers for several controllers: each knows those that are its own (`provider.Runner`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mainspring.cli.launcher.provider import Runner
from mainspring.cli.launcher.worker_jobs import stem_at
from mainspring.messages.scaling import Offer

_NOBODY = -1
"""The shard of a worker that went to a controller of which nothing is known here."""


class ShardWorkers:
    """The assignment of one runner's workers to controllers."""

    def __init__(self, runner: Runner, controllers: Sequence[str], first: Iterable[tuple[str, int]]) -> None:
        """``controllers``: their addresses, by shard; ``first``: the workers of the start, with their
        shards."""
        self.runner = runner
        self.controllers = tuple(controllers)
        self.shards = dict(first)
        """The shard of each worker that is to run."""
        self.came: set[str] = set()
        """Workers that came from another controller, of which theirs has not spoken yet."""

    def part(self, shard: int) -> ShardPart:
        """Return the runner of one controller's workers."""
        return ShardPart(self, shard)


class ShardPart:
    """The workers of one controller."""

    def __init__(self, whole: ShardWorkers, shard: int) -> None:
        self._whole = whole
        self._shard = shard

    def offers(self) -> tuple[Offer, ...]:
        """Return what runs for this controller, and what is wrong with it."""
        return tuple([self._own(offer) for offer in self._whole.runner.offers()])

    def run(self, kind: str, workers: tuple[str, ...], moved: Mapping[str, str]) -> None:
        """Run just these workers of a kind for this controller; those that moved, for theirs."""
        whole = self._whole
        for name, address in moved.items():
            if whole.shards.get(name) == self._shard:
                known = address in whole.controllers
                whole.shards[name] = whole.controllers.index(address) if known else _NOBODY
                whole.came.add(name)
        whole.came.difference_update(workers)
        there = next((each.workers for each in whole.runner.offers() if each.kind == kind), ())
        for name in there:
            if whole.shards.get(name) == self._shard and name not in workers:
                del whole.shards[name]
        mine = [name for name in workers if whole.shards.setdefault(name, self._shard) == self._shard]
        others = [name for name in there if whole.shards.get(name, self._shard) != self._shard]
        whole.runner.run(kind, (*others, *mine), {})

    def _own(self, offer: Offer) -> Offer:
        shards = self._whole.shards
        own = tuple([name for name in offer.workers if shards.get(name) == self._shard])
        # What is wrong begins with the worker's name.
        faulty = offer.fault.partition(" ")[0].rstrip(":")
        return msgspec.structs.replace(
            offer,
            stem=stem_at(offer.stem, self._shard),
            workers=own,
            fault=offer.fault if faulty in own else "",
            moved=tuple([name for name in own if name in self._whole.came]),
            taken=tuple([name for name in offer.workers if name not in own]),
        )
