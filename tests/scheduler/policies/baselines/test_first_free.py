"""Ribbon's serving: single requests in order of arrival, on the most preferred of the idle devices."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mainspring.messages.actions import Command, Infer
from mainspring.messages.events import Event
from mainspring.messages.model import ModelSpec, Profile
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.options import read_options
from mainspring.scheduler.policies.registry import policy_class
from mainspring.simulator.device import Preloaded
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from tests.fuzz import seeded
from tests.planner.event_driven import serve_by_events
from tests.scheduler.hand import MS, spec

SPEED = {"fast": 1, "slow": 3, "slowest": 7}


def model(name: str = "a") -> ModelSpec:
    made = spec(name)
    profile = made.profiles["gpu"]
    profiles = {
        kind: Profile({size: ns * times for size, ns in profile.infer_ns.items()}, profile.load_ns)
        for kind, times in SPEED.items()
    }
    return msgspec.structs.replace(made, profiles=profiles)


def served(
    workers: list[str], arrivals_ns: list[int], slo_ns: int = 50_000 * MS, models: int = 1, **options: str
) -> tuple[Simulation, list[Infer]]:
    """Play requests of one row on workers of kinds, without messages' times; return what was sent."""
    config = SchedulerConfig(policy="first-free", policy_options={**options})
    known = [model(f"m{number}") for number in range(models)]
    infers: list[Infer] = []

    def note(now_ns: int, entry: Event | Command) -> None:
        if isinstance(entry, Infer):
            infers.append(entry)

    simulation = Simulation(
        config,
        known,
        [(f"w{number}", kind, 64) for number, kind in enumerate(workers)],
        faults=Faults(delay_ns=0, duration_jitter=0),
        preloaded={f"w{number}": Preloaded(known, known) for number in range(len(workers))},
        record=note,
        validate_every=1,
        keep=True,
    )
    for number, when_ns in enumerate(arrivals_ns):
        simulation.request(when_ns, number, f"m{number % models}", 1, slo_ns)
    simulation.run(max(arrivals_ns) + 60_000 * MS)
    return simulation, infers


@seeded(6)
@pytest.mark.parametrize("models", [1, 3])
def test_it_serves_as_a_station_does(seed: int, models: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = [str(kind) for kind in rng.choice(list(SPEED), size=int(rng.integers(1, 14)))]
    kinds.sort(key=list(SPEED).index)
    mean_ms = 4.0 / sum(1 / SPEED[kind] for kind in kinds)
    gaps_ns = rng.exponential(mean_ms * 1.1 * MS, 300).astype(np.int64) + 1
    due_ns = (50 * MS + np.cumsum(gaps_ns)).tolist()
    simulation, infers = served(kinds, due_ns, models=models)
    single_ns = model().profiles["fast"].infer_ns[1]
    durations = [[single_ns * times] * len(due_ns) for times in SPEED.values()]
    done_ns, by = serve_by_events(due_ns, durations, [list(SPEED).index(kind) for kind in kinds])
    assert [infer.request_ids for infer in infers] == [(number,) for number in range(len(due_ns))]
    assert [infer.worker for infer in infers] == [f"w{server}" for server in by]
    answered = [simulation.outcomes[number].answered_ns for number in range(len(due_ns))]
    assert answered == done_ns


def test_kinds_are_preferred_as_the_option_says() -> None:
    _, infers = served(["slow", "fast", "slowest", "fast"], [60 * MS] * 4, kinds="slowest,fast")
    assert [infer.worker for infer in infers] == ["w2", "w1", "w3", "w0"]
    _, infers = served(["slow", "fast", "slowest", "fast"], [60 * MS] * 4)
    assert [infer.worker for infer in infers] == ["w0", "w1", "w2", "w3"]


def test_nothing_is_refused_and_late_requests_are_run() -> None:
    simulation, infers = served(["slow"], [60 * MS + number for number in range(8)], slo_ns=5 * MS)
    assert len(infers) == 8
    assert sum(outcome.in_time for outcome in simulation.outcomes.values()) == 0
    assert all(outcome.answers == 1 for outcome in simulation.outcomes.values())


@pytest.mark.parametrize("kinds", ["a,,b", "a,a", ","])
def test_kinds_that_are_no_order_are_refused(kinds: str) -> None:
    with pytest.raises(ValueError, match="it must name each kind once"):
        read_options("first-free", policy_class("first-free").Options, {"kinds": kinds})
