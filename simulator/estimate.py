"""An estimate of what a spec asks for before it is simulated: the impossible is refused at once."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from mainspring.messages.model import ModelSpec
from mainspring.simulator.offered import chosen_models, recipe_of
from mainspring.simulator.spec import LOG, SimulationSpec, SpecError, WorkloadSpec, matches
from mainspring.traces.arrival import FROM_FILE, Kind
from mainspring.traces.recipe import DEFAULT_RATE

REQUEST_BYTES = 70
"""Memory for each request of a run, as measured (docs/simulation.md)."""
PAIR_BYTES = 100
PAGE_BYTES = 40
"""Memory for each device's page, in bytes."""
REQUESTS_A_SECOND = 30_000
"""Number of requests that are simulated in a second of real time, roughly."""
LONG = 20_000_000
"""Requests from which on a run's estimated time and memory are told before it begins."""
MOST_MODELS = 200_000
MOST_PAIRS = 20_000_000
"""Most pairs of a model and a device."""
MOST_IN_FLIGHT = 1_000_000
"""Most requests of closed-loop clients; each takes about a kilobyte while it is in flight."""


def check_models(count: float) -> None:
    """Raise `SpecError` for more models than fit."""
    if count > MOST_MODELS:
        raise SpecError(
            f"there are {count:,.0f} models; at most {MOST_MODELS:,} can be simulated: lower copies"
        )


def check_size(spec: SimulationSpec, models: Sequence[ModelSpec]) -> None:
    """Raise `SpecError`, with both numbers, for a run that would not fit this machine's memory."""
    devices = sum(group.count for group in spec.devices)
    pairs = devices * len(models)
    if pairs > MOST_PAIRS:
        raise SpecError(
            f"{len(models):,} models on {devices:,} devices are {pairs:,} pairs; at most {MOST_PAIRS:,} can"
            " be simulated"
        )
    pages = sum(group.count * group.pages for group in spec.devices)
    held = sum(
        workload.concurrency * len(chosen_models(workload, models))
        for workload in spec.workload
        if workload.kind == Kind.CLOSED.value
    )
    if held > MOST_IN_FLIGHT:
        raise SpecError(
            f"closed-loop clients keep {held:,} requests in flight; at most {MOST_IN_FLIGHT:,} may be: lower"
            " concurrency"
        )
    requests = expected_requests(spec, models)
    needs = requests * REQUEST_BYTES + pairs * PAIR_BYTES + pages * PAGE_BYTES
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needs > has:
        raise SpecError(
            f"about {requests:,.3g} requests, {pages:,} pages and {pairs:,} pairs of a model and a device"
            f" need some {_gigabytes(needs)}, and this machine has {_gigabytes(has)}: shorten duration_s, or"
            " lower rate, scale or count"
        )


def expected_requests(spec: SimulationSpec, models: Sequence[ModelSpec]) -> float:
    """Return about how many requests come in the whole run.

    Those of closed loops and of files without a rate are not known, and count as none. A request of more rows
    than its model's largest batch counts as the pieces that it is cut into.

    Raises as `offered.recipe_of`.
    """
    length_s = spec.warm_up_s + spec.duration_s
    return math.fsum(length_s * _rate(spec, place, each, models) for place, each in enumerate(spec.workload))


def _rate(spec: SimulationSpec, place: int, workload: WorkloadSpec, models: Sequence[ModelSpec]) -> float:
    if workload.kind in (LOG, Kind.CLOSED.value):
        return 0.0
    if workload.kind in FROM_FILE and workload.rate is None:
        return 0.0
    scale = workload.scale
    if workload.load is not None:
        scale = recipe_of(spec, place, chosen_models(workload, models)).scale
    return (workload.rate or DEFAULT_RATE) * scale * _pieces(workload, models)


def _pieces(workload: WorkloadSpec, models: Sequence[ModelSpec]) -> float:
    """Return into how many pieces a request is cut, in the mean over the models."""
    if not isinstance(workload.rows, int) or workload.rows == 1:
        return 1.0
    # A graph's name matches no model, and its steps' rows are not known.
    chosen = [each for each in models if matches(each.name, workload.models)]
    pieces = [math.ceil(workload.rows / each.batch_sizes[-1]) for each in chosen]
    return sum(pieces) / len(pieces) if pieces else 1.0


def told_first(requests: float) -> str:
    """Return what to say before a long run; empty for one that isn't."""
    if requests < LONG:
        return ""
    minutes = requests / REQUESTS_A_SECOND / 60
    took = f"{minutes:,.0f} minutes" if minutes < 120 else f"{minutes / 60:,.0f} hours"
    size = _gigabytes(requests * REQUEST_BYTES)
    return f"mind: about {requests:,.3g} requests, some {took} and {size} of memory"


def hopeless(spec: SimulationSpec, models: Sequence[ModelSpec]) -> str:
    """Return what to say of models whose INFER alone takes longer than their requests have, if any."""
    speed = max(group.speed for group in spec.devices if group.count)
    found: list[tuple[str, float, float]] = []
    asked = 0
    for workload in spec.workload:
        if workload.kind == LOG or workload.best_effort or workload.kind == Kind.CSV.value:
            continue
        for place, model in enumerate(chosen_models(workload, models)):
            asked += 1
            slo_ms = workload.slos_ms[place % len(workload.slos_ms)]
            fastest_ms = min(_fastest_ns(model)) / 1e6 / speed
            if fastest_ms > slo_ms:
                found.append((model.name, fastest_ms, slo_ms))
    if not found:
        return ""
    name, fastest_ms, slo_ms = found[0]
    return (
        f"mind: none of the requests to {len(found):,} of {asked:,} models can be in time: INFER of {name}"
        f" takes {fastest_ms:,.4g} ms at least, and its requests have {slo_ms:,.4g} ms"
    )


def _fastest_ns(model: ModelSpec) -> list[int]:
    """Return each kind's shortest INFER, of models with buckets in any of them."""
    found: list[int] = []
    for profile in model.profiles.values():
        found += profile.infer_ns.values()
        for bucket in profile.shaped.values():
            found += bucket.values()
    return found


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.3g} GB"
