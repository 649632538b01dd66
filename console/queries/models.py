"""Queries ``models``, the table of models, searched, sorted and cut, and ``model``, one model in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from mainspring.cluster.estimates import LONG, TYPICAL, InferTimes
from mainspring.cluster.models import Model
from mainspring.cluster.placements import PREPARED_STATES, Placement, State
from mainspring.cluster.readiness import takers, why_not
from mainspring.cluster.residency import at, hosts
from mainspring.cluster.state import Cluster
from mainspring.cluster.status import is_erratic
from mainspring.console.pages import ModelPage, ModelSeries, OutlierShown, Spread
from mainspring.console.payloads import ModelLine, Models, RequestLine
from mainspring.console.queries.asking import BadQuery, Unknown, request_line
from mainspring.console.view.models import (
    COLD,
    COUNT_IN_TIME,
    COUNT_LATE,
    COUNT_REJECTED,
    EVICTIONS,
    LOADS,
    ModelHistory,
)
from mainspring.console.view.requests import still_open
from mainspring.console.view.series import SECOND_NS
from mainspring.console.view.view import View
from mainspring.messages.choices import did_you_mean
from mainspring.messages.model import TensorSpec, bucket_name
from mainspring.messages.operating import SetDefaultSlo

_KEYS: dict[str, Callable[[Model, ModelHistory], Any]] = {
    "name": lambda model, _: model.name,
    "queued": lambda model, _: model.waiting,
    "demand": lambda _, seen: seen.demand,
    "in_time": lambda _, seen: seen.counts[COUNT_IN_TIME],
    "late": lambda _, seen: seen.counts[COUNT_LATE],
    "rejected": lambda _, seen: seen.counts[COUNT_REJECTED],
    "cold": lambda _, seen: seen.counts[COLD],
    "pages": lambda model, _: model.pages,
    "resident": lambda model, _: sum(each.state is State.RESIDENT for each in model.usable.values()),
    "last_load": lambda _, seen: seen.last_load_ns or 0,
    "loads": lambda _, seen: seen.counts[LOADS],
    "evictions": lambda _, seen: seen.counts[EVICTIONS],
}
SORTS = tuple(_KEYS)
"""Columns by which the table can be sorted."""
THRASHES = 3
"""Evictions within the last minutes from which a model thrashes, if it was loaded again after most."""
LIMIT = 1_000
"""Rows that one answer holds at most."""


def models(
    view: View,
    *,
    search: str = "",
    sort: str = "name",
    descending: bool = False,
    offset: int = 0,
    limit: int = 100,
) -> Models:
    """Return at most ``limit`` rows from ``offset`` on of the models whose names contain ``search``.

    ``sort`` is one of `SORTS`; models that are equal in it are in the order of their names. Raises `BadQuery`
    for another column, and for an ``offset`` or ``limit`` out of bounds.
    """
    if sort not in _KEYS:
        raise BadQuery(f"there is no column {sort!r} to sort by: choose of {', '.join(SORTS)}")
    if offset < 0 or not 0 <= limit <= LIMIT:
        raise BadQuery(
            f"offset is {offset} and limit {limit}; they must be at least 0, limit at most {LIMIT}"
        )
    sought = search.casefold()
    found = [model for model in view.cluster.models.values() if sought in model.name.casefold()]
    found.sort(key=lambda model: model.name)
    if sort != "name" or descending:
        key = _KEYS[sort]
        found.sort(key=lambda model: key(model, view.traffic.model(model.name)), reverse=descending)
    kind = commonest_kind(view)
    rows = [model_line(view, model, kind) for model in found[offset : offset + limit]]
    return Models(total=len(found), offset=offset, rows=rows)


def model_line(view: View, model: Model, kind: str) -> ModelLine:
    """Return one row; ``kind`` is the kind of device whose estimates it shows, at the largest sizes."""
    seen = view.traffic.model(model.name)
    counts, times = seen.counts, model.by_bucket[-1].infer_times.get(kind)
    minutes = max(1, view.traffic.seconds.in_window(300)) / 60
    latencies_ns = sorted(seen.latencies_ns)
    return ModelLine(
        name=model.name,
        pages=model.pages,
        resident_on=where(view.cluster, model, State.RESIDENT),
        loading_on=where(view.cluster, model, State.LOADING),
        prepared_on=len(where(view.cluster, model, *PREPARED_STATES)),
        failed_on=len(where(view.cluster, model, State.FAILED, State.BROKEN)),
        queued=model.waiting,
        demand_rps=seen.demand / max(1, view.traffic.seconds.in_window(10)),
        in_time=counts[COUNT_IN_TIME],
        late=counts[COUNT_LATE],
        rejected=counts[COUNT_REJECTED],
        cold=counts[COLD],
        last_load_ns=seen.last_load_ns,
        infer_ms=estimates_ms(times),
        pinned=model.name in view.cluster.pinned,
        slo_ms=_slo_ms(view, model),
        loads_pm=counts[LOADS] / minutes,
        evictions_pm=counts[EVICTIONS] / minutes,
        p50_ms=_rank_ms(latencies_ns, 50),
        p99_ms=_rank_ms(latencies_ns, 99),
        erratic=is_erratic(model),
        thrashes=counts[EVICTIONS] >= THRASHES and 2 * counts[LOADS] >= counts[EVICTIONS],
    )


def estimates_ms(times: InferTimes | None) -> dict[int, float]:
    """Return present estimates by batch size; none of a kind of device that no worker has."""
    return {} if times is None else {size: ns / 1e6 for size, ns in zip(times.sizes, times.ns, strict=True)}


def where(cluster: Cluster, model: Model, *states: State) -> list[str]:
    """Return the workers on which a model is in one of these states, and stays."""
    placements = [each for each in model.placements.values() if each.state in states and not each.leaving]
    found = [each.worker for each in placements]
    if State.PREPARED in states and model.prepared & cluster.worker_bits.taken:
        workers = hosts(cluster, model)
        found += [
            each
            for each in workers
            if model.prepared & each.bit and each.name not in model.placements and not each.stopping
        ]
    return [worker.name for worker in sorted(found, key=lambda worker: worker.number)]


def _slo_ms(view: View, model: Model) -> float | None:
    """Return the default SLO that an operator set for a model."""
    _, asked = view.cluster.operations.get(("slo", model.spec.public_name), (0, None))
    if asked is None or not isinstance(asked.command, SetDefaultSlo) or asked.command.slo_ns is None:
        return None
    return asked.command.slo_ns / 1e6


def _rank_ms(ascending_ns: list[int], percent: int) -> float | None:
    """Return a percentile by nearest rank."""
    return ascending_ns[-(-percent * len(ascending_ns) // 100) - 1] / 1e6 if ascending_ns else None


def commonest_kind(view: View) -> str:
    """Return the kind of device that most workers have, the first by name among equals; empty for none."""
    kinds = Counter(worker.kind for worker in view.cluster.workers.values() if worker.device_kind)
    return min(kinds, key=lambda kind: (-kinds[kind], kind), default="")


ROOM = 10
"""Models that are named which it made room for, and which made room for it."""


def model(view: View, name: str) -> ModelPage:
    """Return one model by the scheduler's name; raise `Unknown` for a model that there is not."""
    known = find_model(view, name)
    spec, kind = known.spec, commonest_kind(view)
    return ModelPage(
        line=model_line(view, known, kind),
        versions_of=spec.public_name,
        weights_bytes=spec.weights_bytes,
        extents=[*spec.extents],
        inputs=[_shape(each, whole=spec.whole) for each in spec.inputs],
        outputs=[_shape(each, whole=spec.whole) for each in spec.outputs],
        profiles={
            each: {size: ns / 1e6 for size, ns in sorted(profile.infer_ns.items())}
            for each, profile in sorted(spec.profiles.items())
        },
        load_ms={each: profile.load_ns / 1e6 for each, profile in sorted(spec.profiles.items())},
        placements={
            each.worker.name: _where(each)
            for each in (at(view.cluster, known, worker, keep=False) for worker in hosts(view.cluster, known))
            if each.state is not State.KNOWN and not each.leaving
        },
        recent=_recent(view, known),
        series=_series(view, name),
        not_ready=why_not(view.cluster, known, takers(view.cluster, view.unready.silent)),
        evicted_for=_room(view, name, of_it=True),
        evicted=_room(view, name, of_it=False),
        buckets={
            bucket_name(ceilings): estimates_ms(bucket.infer_times.get(kind))
            for ceilings, bucket in known.buckets.items()
        },
        spread=_spread(known, kind),
        outlier=_outlier(known),
        states=None
        if spec.sequencing is None
        else [f"{each.output} to {each.input}" for each in spec.sequencing.states],
        verified=spec.verified,
        load_now_ms=known.load_times[kind].ns / 1e6 if kind in known.load_times else None,
    )


def _outlier(model: Model) -> OutlierShown | None:
    """Return the last of a model's actions that stood out."""
    last = model.counts.outlier
    if last is None:
        return None
    took_ms, expected_ms = last.duration_ns / 1e6, last.expected_ns / 1e6
    return OutlierShown(last.count, last.at_ns, last.worker, last.action_id, took_ms, expected_ms)


def _spread(model: Model, kind: str) -> Spread | None:
    """Return how a model's durations spread on one kind of device, where most are known."""
    most: Spread | None = None
    for ceilings, bucket in model.buckets.items() or (((), model),):
        times = bucket.infer_times.get(kind)
        for index, size in enumerate(times.sizes if times else ()):
            chances = times.spreads.chances(index) if times else None
            if times is None or chances is None or (most is not None and chances.total <= most.durations):
                continue
            most = Spread(
                batch_size=size,
                sizes=bucket_name(ceilings) if ceilings else "",
                durations=chances.total,
                median_ms=chances.quantile_ns(TYPICAL) / 1e6,
                mean_ms=chances.mean_ns / 1e6,
                p99_ms=chances.quantile_ns(LONG) / 1e6,
                estimate_ms=times.ns[index] / 1e6,
            )
    return most


def _recent(view: View, model: Model) -> list[RequestLine]:
    """Return a model's requests that have not ended, and those that ended last, the newest first."""
    most = view.limits.requests_of_model
    opened = [each for each in view.cluster.requests.values() if each.model.base is model][-most:]
    found = [request_line(still_open(view.cluster, each, view.now_ns)) for each in reversed(opened)]
    found += [request_line(each) for each in reversed(view.traffic.model(model.name).recent or ())]
    return found[:most]


def _series(view: View, name: str) -> ModelSeries:
    """Return a model's whole seconds, as far back as anything is known."""
    end = view.now_ns // SECOND_NS
    first = view.first_ns // SECOND_NS
    zeros, nothing = [0] * max(0, end - first), [None] * max(0, end - first)
    found = ModelSeries(
        first * SECOND_NS, zeros, [*zeros], [*zeros], [*zeros], mean_ms=[*nothing], longest_ms=[*nothing]
    )
    for point in view.traffic.model(name).seconds.points(first, end):
        at = point.second - first
        found.offered[at], found.in_time[at] = point.offered, point.in_time
        found.late[at], found.rejected[at] = point.late, point.rejected
        executed = point.in_time + point.late
        if executed:
            found.mean_ms[at] = point.total_ns / executed / 1e6
            found.longest_ms[at] = point.longest_ns / 1e6
    return found


def _room(view: View, name: str, *, of_it: bool) -> dict[str, int]:
    """Return how often a model made room for which others, or (not ``of_it``) which others for it."""
    counts: Counter[str] = Counter()
    for history in view.histories.values():
        for each in history.evictions:
            giver, taker = each.model, each.for_model
            if (giver if of_it else taker) == name and taker:
                counts[taker if of_it else giver] += 1
    return dict(counts.most_common(ROOM))


def find_model(view: View, name: str) -> Model:
    """Return a model by name; raise `Unknown`, with the nearest name, for a model that there is not."""
    known = view.cluster.models.get(name)
    if known is None:
        hint = did_you_mean(name, view.cluster.models)
        removed_ns = view.removed.get(name)
        if removed_ns is not None:
            ago_s = (view.now_ns - removed_ns) / SECOND_NS
            raise Unknown(f"model {name[:200]!r} was removed {ago_s:.0f} s ago{hint}")
        raise Unknown(f"there is no model {name[:200]!r}{hint}")
    return known


def _where(placement: Placement) -> str:
    return f"failed: {placement.detail}" if placement.failed else placement.state.value


def _shape(tensor: TensorSpec, *, whole: bool) -> str:
    shape = [*map(str, tensor.shape)]
    if not whole:
        shape.insert(tensor.rows_axis, "rows")
    return f"{tensor.name}: {tensor.dtype}[{', '.join(shape)}]"
