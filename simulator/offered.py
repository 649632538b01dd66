"""The load that a spec's workloads offer: which models, at which rates, as which recipe.

A workload's ``load``, a multiple of what all devices can do, becomes a scale of its requests here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from mainspring.messages.curve import Curve
from mainspring.messages.events import RequestArrived
from mainspring.messages.model import ModelSpec, Profile
from mainspring.simulator.spec import LOG, SimulationSpec, SpecError, Spread, WorkloadSpec, matches
from mainspring.telemetry.log import read_log
from mainspring.traces.arrival import Arrival, Kind
from mainspring.traces.recipe import Recipe, at_load, mean_rates
from mainspring.traces.rows import Rows, RowsSpec
from mainspring.traces.shapes import best_request_ns, device_s, drawn_sizes, slowest_of

SIZES_DRAWN = 256
"""Requests whose sizes say what one of a model with open dimensions takes on average."""


def chosen_models(workload: WorkloadSpec, models: Sequence[ModelSpec]) -> list[ModelSpec]:
    """Return the models that a workload's requests are for; raise `SpecError` if there are none."""
    chosen = [model for model in models if matches(model.name, workload.models)]
    if not chosen:
        names = ", ".join(model.name for model in models[:5])
        raise SpecError(f"no model matches models = {workload.models!r}; there are {names}")
    return chosen


def played_seed(spec: SimulationSpec, place: int) -> list[int]:
    """Return the seed by which a spec's workload is played."""
    return [_seed(spec, place), place]


def recipe_of(spec: SimulationSpec, place: int, chosen: Sequence[ModelSpec]) -> Recipe:
    """Return the recipe of a workload for its models; not of one that was recorded.

    Raises `traces.arrival.WorkloadError` for a load of a workload without requests.
    """
    workload = spec.workload[place]
    slos_ns = [round(slo_ms * 1e6) for slo_ms in workload.slos_ms]
    several = len(slos_ns) > 1 and not workload.best_effort
    recipe = Recipe(
        kind=Kind(workload.kind),
        duration_ns=_duration_ns(spec),
        slo_ns=None if workload.best_effort else slos_ns[0],
        slos_ns=tuple(slos_ns) if several else (),
        rows=1 if isinstance(workload.rows, RowsSpec) else workload.rows,
        seed=_seed(spec, place),
        trace=None if workload.trace is None else Path(workload.trace),
        rate=workload.rate,
        scale=workload.scale,
        time_scale=workload.time_scale,
        start_ns=round(workload.start_s * 1e9),
        cv=workload.cv,
        zipf_exponent=workload.zipf_exponent,
        concurrency=workload.concurrency,
        think_ns=round(workload.think_ms * 1e6),
    )
    if workload.load is None:
        return recipe
    needs_s = _needs_s(spec, workload, chosen, slos_ns)
    rng = np.random.default_rng(played_seed(spec, place))
    return at_load(recipe, [model.name for model in chosen], workload.load, needs_s, rng)


def expected_rates(spec: SimulationSpec, models: Sequence[ModelSpec]) -> dict[str, float]:
    """Return each model's requests per second of the whole run, over all workloads.

    A closed-loop client counts as if each answer took as long as EXEC alone. Raises as `chosen_models`,
    `recipe_of` and `traces.recipe.build`, and OSError for a log that can't be read.
    """
    rates = dict.fromkeys([model.name for model in models], 0.0)
    for place, workload in enumerate(spec.workload):
        for name, rate in _own_rates(spec, place, chosen_models(workload, models)).items():
            rates[name] += rate
    return rates


def recorded(spec: SimulationSpec, workload: WorkloadSpec, chosen: Sequence[ModelSpec]) -> Iterator[Arrival]:
    """Yield the arrivals of a log's last run for these models, from the first one on."""
    names, duration_ns = {model.name for model in chosen}, _duration_ns(spec)
    first_ns = None
    for now_ns, event in read_log(Path(str(workload.log)), last_run=True):
        if not isinstance(event, RequestArrived) or event.model not in names:
            continue
        first_ns = now_ns if first_ns is None else first_ns
        if now_ns - first_ns >= duration_ns:
            return
        slo_ns = None if event.deadline_ns is None else max(1, event.deadline_ns - now_ns)
        yield Arrival(
            *(now_ns - first_ns, event.model, event.rows, slo_ns),
            sizes=event.sizes,
            priority=event.priority,
            tenant=event.tenant,
        )


def _seed(spec: SimulationSpec, place: int) -> int:
    own = spec.workload[place].seed
    return own if own is not None else spec.seed + place


def _duration_ns(spec: SimulationSpec) -> int:
    return round((spec.warm_up_s + spec.duration_s) * 1e9)


def _own_rates(spec: SimulationSpec, place: int, chosen: Sequence[ModelSpec]) -> dict[str, float]:
    """Return the rates of one workload."""
    workload = spec.workload[place]
    if workload.kind == LOG:
        counts = Counter(arrival.model for arrival in recorded(spec, workload, chosen))
        return {name: count * 1e9 / _duration_ns(spec) for name, count in counts.items()}
    if workload.kind == Kind.CLOSED.value:
        return {
            model.name: workload.concurrency * 1e9 / (workload.think_ms * 1e6 + _single_ns(model))
            for model in chosen
        }
    rng = np.random.default_rng(played_seed(spec, place))
    return mean_rates(recipe_of(spec, place, chosen), [model.name for model in chosen], rng)


def _single_ns(model: ModelSpec) -> int:
    return min(min(profile.infer_ns.values()) for profile in model.profiles.values())


def _needs_s(
    spec: SimulationSpec, workload: WorkloadSpec, chosen: Sequence[ModelSpec], slos_ns: Sequence[int]
) -> dict[str, float]:
    """Return which part of all devices' time a request to each model takes on average, in seconds."""
    devices = Counter[str]()
    for group in spec.devices:
        devices[group.kind] += group.count
    drawn = _drawn_rows(workload, chosen)
    needs_s = {}
    for place, model in enumerate(chosen):
        slo_ns = None if workload.best_effort else slos_ns[place % len(slos_ns)]
        spread = next((each for each in spec.faults.spreads if matches(model.name, each.models)), None)
        request_ns = {
            kind: fmean(
                best_request_ns(
                    _mean_ns(model, model.profiles[kind], workload.shape, spread, rows), slo_ns, rows
                )
                for rows in drawn
            )
            for kind in devices
        }
        needs_s[model.name] = device_s(request_ns, devices)
    return needs_s


def _drawn_rows(workload: WorkloadSpec, chosen: Sequence[ModelSpec]) -> list[int]:
    """Return the rows of some requests of a workload, the same each time."""
    if not isinstance(workload.rows, RowsSpec):
        return [workload.rows]
    rows = Rows(workload.rows, [model.name for model in chosen])
    found: list[int] = rows.draw(np.random.default_rng(0), SIZES_DRAWN).tolist()
    return found


def _mean_ns(
    model: ModelSpec, profile: Profile, shape: Mapping[str, str], spread: Spread | None, rows: int
) -> dict[int, float]:
    """Return the mean durations of a model's full batches on a kind of device, by batch size."""
    infer_ns: dict[int, float] = dict(profile.infer_ns)
    if model.symbols:
        curve = Curve(model, profile)
        drawn = drawn_sizes(model, shape, SIZES_DRAWN)
        infer_ns = {size: fmean(curve.share(size, each)[0] for each in drawn) for size in infer_ns}
    return {size: ns * mean_multiple(spread, max(1, size // rows)) for size, ns in infer_ns.items()}


def mean_multiple(spread: Spread | None, requests: int) -> float:
    """Return how many times as long as its profile says a batch of requests takes on average: as the slowest
    of them."""
    if spread is None:
        return 1.0
    if spread.kind == "bimodal":
        return 1.0 + (spread.long_factor - 1.0) * (1.0 - (1.0 - spread.long_share) ** requests)
    return slowest_of(requests, spread.sigma)
