"""One status, or one set of counts, from those of several controllers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mainspring.messages.metrics import ClusterMetrics, HistogramCounts, ModelActions
from mainspring.messages.scaling import KindStatus
from mainspring.messages.sharding import ShardMap, ShardStatus
from mainspring.messages.status import ClusterStatus


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
    )


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
