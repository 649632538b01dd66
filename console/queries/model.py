"""Query ``model``: one model in full."""

from __future__ import annotations

from collections import Counter

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.readiness import takers, why_not
from mainspring.cluster.residency_bits import at, hosts
from mainspring.cluster.spread import LONG, TYPICAL
from mainspring.console.pages import ModelPage, ModelSeries, OutlierShown, Spread
from mainspring.console.payloads import RequestLine
from mainspring.console.queries.asking import Unknown
from mainspring.console.queries.models import commonest_kind, estimates_ms, model_line
from mainspring.console.queries.recent import request_line
from mainspring.console.view.limits import SECOND_NS
from mainspring.console.view.requests import still_open
from mainspring.console.view.view import View
from mainspring.messages.choices import did_you_mean
from mainspring.messages.model import TensorSpec, bucket_name

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
