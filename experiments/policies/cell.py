"""One policy in one scenario at one load: played in virtual time, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.experiments.policies.played import (
    Instants,
    Served,
    arrivals,
    bound_of,
    fluid_rate,
    instants,
    models_of,
    read_table,
)
from mainspring.experiments.policies.scenarios import SCENARIOS, Scenario
from mainspring.messages.codes import Reason
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.cluster import preload
from mainspring.simulator.run import play
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from mainspring.traces.arrival import SECOND_NS, Arrival
from mainspring.traces.records import FIRST_REASON, NO_DEADLINE, OUTPUTS, REASONS, Columns, Records
from mainspring.traces.source import OpenSource

ACCEPTED_FIRST = [
    FIRST_REASON + REASONS.index(reason) for reason in (Reason.DEADLINE_PASSED, Reason.OVERLOADED)
]
"""Outcomes of requests that waited before they were refused; no queue has a bound here."""
DELAY_NS = 100_000
"""Each way between any two processes; inputs come by way of the gateway."""
FAULTS = Faults(
    delay_ns=DELAY_NS,
    duration_jitter=0.0003,
    slow_probability=1e-6,
    slow_ns=20_000_000,
    detection_ns=SECOND_NS,
)
GUARD_MS = 0.02
"""Largest error of predictions."""
SCHEDULERS = ("best_effort_share", "estimate_rank", "refuse_wrongly")
"""Options of the scheduler that may stand among a policy's."""
WARMED_UP = 2.0
"""The warm-up takes at most so many times as many requests as what is measured."""
LONGEST_SLOS = 10.0
"""Least length of what is measured, in longest SLOs. In less time a policy that puts off what has time would
serve much of it after the last arrival, beside no other request."""
WORST = 0.1
"""Part of the models whose share of answers is told by itself."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A run to play."""

    scenario: str
    policy: str
    """A policy's name, or with options as ``name@key=value,key=value``."""
    load: float
    seed: int
    seconds: float
    """Longest time that is measured."""
    warm_up: float
    most_requests: int
    """A scenario with many requests per second is measured for a shorter time, but for `LONGEST_SLOS`."""
    table: str
    bounds: str | None
    """Folder of the bounds; None to leave them out."""
    fairness: float = 0.0
    """Floor of a fair share: above 0, the bound is that of schedules which keep it."""
    ample: bool = False
    """True if each device has memory for all models, and holds them from the start. The bound stays that of
    the scenario: what is gained so is about the most that other LOADs could bring."""
    lost: float = 0.0
    """Part of each device's time that is lost to the same requests: executions take so much longer."""
    retry_ms: float = 0.0
    """The same as `WorkloadSpec.retry_ms`."""
    constants: dict[str, float] = {}
    """Other values of the default policy's constants; of one at most where neighbours are compared."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a job; rates in requests with a deadline per second."""

    job: Job
    seconds: float
    fluid: float
    offered: float
    goodput: float
    bound: float | None
    worst_tenth: float
    """Share of answers in time, over the tenth of the models with the lowest."""
    unanswered: int
    """Models with a deadline that were asked and had no answer in time."""
    late: float
    """Share of requests that were answered after their deadline."""
    best_effort: float
    """Answers to requests without a deadline per second."""
    weighed: float | None = None
    """Share in time of the requests for models whose answers count as more than others', or that are told
    apart, where there are any."""
    even: float | None = None
    """Share of the requests in time for models with a deadline whose durations do not vary, where others'
    do."""
    even_late: float | None = None
    """Share of these that were answered late, or that were accepted and not answered."""

    @property
    def of_bound(self) -> float | None:
        """Goodput as a part of what was possible."""
        return None if self.bound is None else self.goodput / self.bound

    @property
    def in_time(self) -> float:
        """Share of the requests that were answered in time."""
        return self.goodput / self.offered


def play_cell(job: Job) -> Cell:
    """Play a job; the result depends on it alone."""
    scenario = SCENARIOS[job.scenario]
    models = models_of(scenario, read_table(Path(job.table)))
    fluid = fluid_rate(models)
    warm_up, seconds = lengths(job, fluid)
    since_ns = round(warm_up * SECOND_NS)
    drawn = instants(models, job.load, warm_up + seconds, job.seed + scenario.seed - 1)
    if job.lost:
        scenario = _slowed(scenario, job.lost)
        models = models_of(scenario, read_table(Path(job.table)))
    played = _with_memory_for_all(scenario, models) if job.ample else scenario
    served, in_time, late, lost = _play(job, played, models, drawn, since_ns)
    tight = np.array([model.slo_ns is not None for model in models])
    offered = np.bincount(served[tight[served]], minlength=len(models))
    good = np.bincount(served[in_time], minlength=len(models))
    even = np.array([model.spread is None for model in models])[served] if scenario.spreads else None
    weighed = np.array([model.group.apart or model.group.goodput_weight != 1.0 for model in models])[served]
    beside = even is not None and 0 < even.sum() < len(even)
    return Cell(
        job=job,
        seconds=seconds,
        fluid=fluid,
        offered=float(offered.sum()) / seconds,
        goodput=float(good[tight].sum()) / seconds,
        bound=_bound(job, scenario, models, drawn, since_ns, seconds),
        worst_tenth=worst_share(good[tight & (offered > 0)] / offered[tight & (offered > 0)]),
        unanswered=int((tight & (offered > 0) & (good == 0)).sum()),
        late=float(late.mean()),
        best_effort=float(good[~tight].sum()) / seconds,
        weighed=float(in_time[weighed].mean()) if weighed.any() else None,
        even=float(in_time[even].mean()) if beside else None,
        even_late=float((late | lost)[even].mean()) if beside else None,
    )


def _slowed(scenario: Scenario, lost: float) -> Scenario:
    slowness = {kind: scenario.slowness.get(kind, 1.0) / (1.0 - lost) for kind in scenario.devices}
    return msgspec.structs.replace(scenario, slowness=slowness)


def lengths(job: Job, fluid: float) -> tuple[float, float]:
    """Return how long the warm-up and what is measured take, in seconds; ``fluid`` is the capacity."""
    groups = SCENARIOS[job.scenario].groups
    longest_ms = max(slo_ms for each in groups for slo_ms, _ in each.mix or ((each.slo_ms or 0.0, 1),))
    most_seconds = max(job.most_requests / (fluid * job.load), LONGEST_SLOS * longest_ms / 1e3)
    return min(job.warm_up, WARMED_UP * most_seconds), min(job.seconds, most_seconds)


def _with_memory_for_all(scenario: Scenario, models: Sequence[Served]) -> Scenario:
    pages = sum(model.spec.pages for model in models)
    return msgspec.structs.replace(scenario, pages=max(scenario.pages, pages))


def worst_share(shares: npt.NDArray[np.float64]) -> float:
    """Return the mean of the lowest tenth of models' shares, of one model at least."""
    return float(np.sort(shares)[: max(1, round(WORST * len(shares)))].mean())


def configuration(policy: str) -> SchedulerConfig:
    """Return a scheduler's configuration for a policy with options; those of `SCHEDULERS` are the scheduler's
    own; raise ValueError if it is not one.

    Nothing is refused early unless ``refuse_wrongly`` says so: what that costs is measured by itself
    (`refusals`).
    """
    name, _, text = policy.partition("@")
    options: dict[str, bool | int | float | str] = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} in {policy!r} is not an option: give it as key=value")
        options[key] = msgspec.json.decode(value) if _is_json(value) else value
    own = {"refuse_wrongly": 0.0, **{key: options.pop(key) for key in SCHEDULERS if key in options}}
    try:
        config = msgspec.convert(own, SchedulerConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"{policy!r}: {error}") from None
    return msgspec.structs.replace(
        config,
        policy=name,
        policy_options=options,
        dispatch_delay_ms=2 * DELAY_NS / 1e6,
        response_margin_ms=DELAY_NS / 1e6 + GUARD_MS,
        max_queued_requests=10**9,
        max_queued_requests_per_model=10**9,
    )


def _weighed(config: SchedulerConfig, models: Sequence[Served]) -> SchedulerConfig:
    """Return a configuration in which answers count as the scenario says."""
    weights = {
        each.spec.public_name: each.group.goodput_weight
        for each in models
        if each.group.goodput_weight != 1.0
    }
    return msgspec.structs.replace(config, goodput_weights=weights)


def _is_json(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), bool | int | float)
    except msgspec.DecodeError:
        return False


def play_requests(
    job: Job,
    scenario: Scenario,
    models: Sequence[Served],
    drawn: Sequence[Instants],
    given: Sequence[Arrival] = (),
) -> tuple[list[Arrival], Columns, Columns]:
    """Play a job's requests, or those given; return them, and their records as of `Records.columns`."""
    kinds = [kind for kind, count in scenario.devices.items() for _ in range(count)]
    workers = [(f"worker-{index}", kind, scenario.pages) for index, kind in enumerate(kinds)]
    wanted = sorted(range(len(models)), key=lambda index: (-models[index].rate, index))
    preloaded = preload([models[index].spec for index in wanted], workers, "fill")
    requests = list(given) or arrivals(models, drawn, round(job.retry_ms * 1e6))
    records = Records()
    simulation = Simulation(
        _weighed(configuration(job.policy), models),
        [model.spec for model in models],
        workers,
        seed=job.seed,
        faults=msgspec.structs.replace(FAULTS, spreads=scenario.spreads),
        preloaded=preloaded,
        source=OpenSource(iter(requests)),
        records=records,
    )
    play(simulation, records, requests[-1].time_ns + 1, None)
    return requests, *records.columns()


def _play(
    job: Job, scenario: Scenario, models: Sequence[Served], drawn: Sequence[Instants], since_ns: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return for each measured request its model's index, whether it was answered in time, answered late, or
    accepted and not answered."""
    requests, sent, replied = play_requests(job, scenario, models, drawn)
    index_of = {model.spec.name: index for index, model in enumerate(models)}
    served = np.array([index_of[each.model] for each in requests], np.int64)
    answered = replied["outcome"] == OUTPUTS
    has_deadline = sent["slo_ns"] != NO_DEADLINE
    # What has no deadline waits behind all that came before it, and so counts where it is answered: while
    # there is anything to compete with.
    last_ns = requests[-1].time_ns
    measured = np.where(
        has_deadline,
        sent["intended_ns"] >= since_ns,
        (replied["replied_ns"] >= since_ns) & (replied["replied_ns"] <= last_ns),
    )
    in_time = answered & (~has_deadline | (replied["replied_ns"] - sent["intended_ns"] <= sent["slo_ns"]))
    late = answered & ~in_time
    lost = np.isin(replied["outcome"], ACCEPTED_FIRST)
    return served[measured], in_time[measured], late[measured], lost[measured]


def _bound(
    job: Job,
    scenario: Scenario,
    models: Sequence[Served],
    drawn: Sequence[Instants],
    since_ns: int,
    seconds: float,
) -> float | None:
    if job.bounds is None or any(group.mix for group in scenario.groups):
        # The bound's batches are contiguous in arrival, with as many rows each.
        return None
    return bound_of(scenario, models, drawn, since_ns, Path(job.bounds), job.fairness) / seconds
