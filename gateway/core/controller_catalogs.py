"""What each of several controllers has told this gateway, and what clients are served of it. Pure.

A model is taken to the shard that the newest map names for it, if that has it, and else to one that has: to
shards that are about to let go of it only while no other has it. With one controller, what it tells is what
clients are served, and nothing is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.graphs.served import NO_SHARES
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.metrics import ClusterMetrics, HistogramCounts, ModelActions, TenantStatus
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import ModelDown
from mainspring.messages.scaling import KindStatus
from mainspring.messages.served import ServedModel
from mainspring.messages.sharding import ShardMap, ShardStatus, first_map
from mainspring.messages.status import ClusterStatus


class Told:
    """The catalogs of all shards, and the one that front ends look into."""

    def __init__(self, catalog: Catalog, addresses: Sequence[str]) -> None:
        """``catalog`` is what front ends look into; ``addresses`` are the controllers', by shard."""
        self.catalog = catalog
        self._several = len(addresses) > 1
        self.parts = (
            [Catalog(most_rows=catalog.most_rows, most_rows_of=catalog.most_rows_of) for _ in addresses]
            if self._several
            else [catalog]
        )
        """The catalog of each shard, as its controller has told it."""
        for part in self.parts:
            part.complete = False
        self.shards: dict[str, int] = {}
        """The shard of each model that is not taken to shard 0."""
        catalog.graphs.shards = self.shards
        self.map = first_map(addresses, version=0)
        self._leaving: dict[str, set[int]] = {}
        """Shards that let go of a model once another one has it, by the model's name."""

    @property
    def ready(self) -> bool:
        """Return whether a controller has told all of its models and workers."""
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

    def set_graph(
        self, shard: int, name: str, graph: GraphSpec | None, shares: Mapping[str, float] = NO_SHARES
    ) -> None:
        """Take requests for a graph of models from now on; None: no more. ``shares`` as of `peers.Graph`."""
        self.parts[shard].set_graph(name, graph, shares)
        if self._several:
            self.catalog.set_graph(name, graph, shares)

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
        self.catalog.graphs.models_changed()
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


def merged_status(parts: Mapping[int, ClusterStatus], shard_map: ShardMap) -> ClusterStatus:
    """Return the status of a cluster from those of its shards that answered, one at least, by number."""
    found = [parts[number] for number in sorted(parts)]
    dropped: Counter[str] = Counter()
    for each in found:
        dropped.update(each.dropped_messages)
    shards = [
        _shard(number, shard.address, shard.pages, parts.get(number))
        for number, shard in enumerate(shard_map.shards)
    ]
    return ClusterStatus(
        policy=", ".join(dict.fromkeys(each.policy for each in found)),
        workers=tuple([worker for each in found for worker in each.workers]),
        models=tuple([model for each in found for model in each.models]),
        requests_queued=sum(each.requests_queued for each in found),
        dropped_messages=dict(dropped),
        left_out={name: why for each in found for name, why in each.left_out.items()},
        shards=tuple(shards),
        map_version=shard_map.version,
        kinds=_kinds([each.kinds for each in found]),
        tenants=_tenants([each.tenants for each in found]),
    )


def _tenants(parts: Iterable[Sequence[TenantStatus]]) -> tuple[TenantStatus, ...]:
    """Return the tenants of all shards; of a tenant of several, counts and shares are added up."""
    found: dict[str, TenantStatus] = {}
    for tenant in (each for part in parts for each in part):
        known = found.get(tenant.tenant)
        found[tenant.tenant] = tenant if known is None else known.plus(tenant)
    return tuple(found.values())


def _shard(number: int, address: str, pages: int, status: ClusterStatus | None) -> ShardStatus:
    if status is None:
        return ShardStatus(number, address, pages, up=False)
    models = status.models
    return ShardStatus(
        number,
        address,
        pages,
        up=True,
        workers=len(status.workers),
        models=len(models),
        queued=status.requests_queued,
        arrived=sum([model.arrived for model in models]),
        rejected=sum([model.rejected for model in models]),
        kinds=status.kinds,
    )


def _kinds(parts: Sequence[tuple[KindStatus, ...]]) -> tuple[KindStatus, ...]:
    """Return the workers of each kind that all shards have together."""
    found: dict[str, KindStatus] = {}
    for kind in [each for part in parts for each in part]:
        known = found.get(kind.kind)
        if known is not None:
            kind = msgspec.structs.replace(  # noqa: PLW2901 - what is known so far, with this one
                known,
                provider=known.provider or kind.provider,
                most=max(known.most, kind.most),
                wanted=known.wanted + kind.wanted,
                running=known.running + kind.running,
                leaving=known.leaving + kind.leaving,
                fault="; ".join(dict.fromkeys(each for each in (known.fault, kind.fault) if each)),
                price=known.price or kind.price,
                in_time=known.in_time + kind.in_time,
                late=known.late + kind.late,
            )
        found[kind.kind] = kind
    return tuple(found.values())


def merged_metrics(parts: Mapping[int, ClusterMetrics]) -> ClusterMetrics:
    """Return what all shards count together; models that share a label in several are added up."""
    found = [parts[number] for number in sorted(parts)]
    by_label: dict[tuple[str, str], list[ModelActions]] = {}
    for model in (model for each in found for model in each.models):
        by_label.setdefault((model.model, model.version), []).append(model)
    return msgspec.structs.replace(
        found[0],
        models=tuple([_added(each) for each in by_label.values()]),
        workers=tuple([worker for each in found for worker in each.workers]),
        models_served=sum(each.models_served for each in found),
        requests_queued=sum(each.requests_queued for each in found),
        kinds=_kinds([each.kinds for each in found]),
        tenants=_tenants([each.tenants for each in found]),
    )


def _added(models: list[ModelActions]) -> ModelActions:
    if len(models) == 1:
        return models[0]
    return ModelActions(
        models[0].model,
        models[0].version,
        load=_sum(model.load for model in models),
        infer_error=_sum(model.infer_error for model in models),
        load_error=_sum(model.load_error for model in models),
        batch=_sum(model.batch for model in models),
        rows=sum(model.rows for model in models),
        erratic=sum(model.erratic for model in models),
    )


def _sum(histograms: Iterable[HistogramCounts]) -> HistogramCounts:
    found = list(histograms)
    counts = tuple(map(sum, zip(*(each.counts for each in found), strict=True)))
    return HistogramCounts(counts, sum(each.sum for each in found))
