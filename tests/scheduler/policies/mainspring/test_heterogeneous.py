"""Unlike kinds of devices under the policy `mainspring`: each does what slower ones can't."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from mainspring.messages.actions import Command, Infer
from mainspring.messages.events import Event
from mainspring.messages.model import ModelSpec, Profile
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.device import Preloaded
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from tests.scheduler.hand import MS, spec

SIZES = (1, 2, 4, 8)
FACTORS = {"fast": 1, "slow": 2}
ROW_MS = 10


def model() -> ModelSpec:
    """Return a model that takes as long for each row of a batch, twice that on the slow kind."""
    profiles = {
        kind: Profile({size: ROW_MS * factor * size * MS for size in SIZES}, 8 * MS)
        for kind, factor in FACTORS.items()
    }
    return msgspec.structs.replace(spec("m"), batch_sizes=SIZES, profiles=profiles)


class Played:
    """What became of requests, and of which workers ran them."""

    def __init__(self, kinds: list[str], requests: list[tuple[int, int, int]]) -> None:
        """``requests`` are (arrival in ms, rows, SLO in ms)."""
        self.infers: list[Infer] = []
        known = [model()]
        self.simulation = Simulation(
            SchedulerConfig(policy="mainspring", dispatch_delay_ms=0, response_margin_ms=0),
            known,
            [(f"w{number}", kind, 64) for number, kind in enumerate(kinds)],
            faults=Faults(delay_ns=0, duration_jitter=0),
            preloaded={f"w{number}": Preloaded(known, known) for number in range(len(kinds))},
            record=self._note,
            validate_every=1,
            keep=True,
        )
        for number, (when_ms, rows, slo_ms) in enumerate(requests):
            self.simulation.request(when_ms * MS, number, "m", rows, slo_ms * MS)
        self.simulation.run(max(when_ms for when_ms, _, _ in requests) * MS + 60_000 * MS)

    def by(self) -> dict[int, str]:
        """Return the worker of each request."""
        return {number: infer.worker for infer in self.infers for number in infer.request_ids}

    def missed(self) -> list[int]:
        """Return the requests that did not end in time."""
        outcomes = self.simulation.outcomes
        return [number for number, each in outcomes.items() if not each.in_time]

    def _note(self, now_ns: int, entry: Event | Command) -> None:
        if isinstance(entry, Infer):
            self.infers.append(entry)


def test_a_fast_device_leaves_to_an_idle_slower_one_what_that_ends_in_time() -> None:
    # The second and the third are left to slow devices, so that the fast one is there for the fourth.
    requests = [(100, 8, 500), (101, 8, 500), (110, 2, 60), (111, 8, 90)]
    played = Played(["fast", "fast", "slow", "slow"], requests)
    assert played.by() == {0: "w0", 1: "w2", 2: "w3", 3: "w1"}
    assert played.missed() == []


def test_what_a_slower_device_would_end_too_late_is_not_left_to_it() -> None:
    requests = [(100, 8, 500), (101, 8, 500), (110, 2, 35)]
    played = Played(["fast", "fast", "slow", "slow"], requests)
    assert played.by()[2] == "w1"
    assert played.missed() == []


def test_where_most_devices_are_idle_the_first_runs_it() -> None:
    played = Played(["fast", "slow", "slow", "slow"], [(100, 1, 500), (300, 1, 500)])
    assert set(played.by().values()) == {"w0"}


def stream(count: int, seed: int) -> list[tuple[int, int, int]]:
    """Return requests of one and two rows, and some of eight that only a fast device ends in time."""
    rng = np.random.default_rng(seed)
    times = 100 + np.cumsum(rng.integers(3, 11, count))
    rows = np.where(rng.random(count) < 0.03, 8, rng.integers(1, 3, count))
    return [(int(when), int(each), 150) for when, each in zip(times, rows, strict=True)]


def test_large_requests_are_in_time_although_small_ones_fill_the_devices() -> None:
    missed: Counter[int] = Counter()
    for seed in range(4):
        requests = stream(600, seed)
        played = Played(["fast", "slow", "slow", "slow", "slow"], requests)
        missed.update(requests[number][1] for number in played.missed())
        large = {number for number, each in enumerate(requests) if each[1] == 8}
        assert {worker for number, worker in played.by().items() if number in large} == {"w0"}
    assert sum(missed.values()) <= 6, f"by rows, of 2,400: {missed}"


def test_requests_share_a_batch_on_slow_devices_too() -> None:
    # While the first two run, six more come, of other rows; the slow device runs them at once.
    requests = [(100, 8, 500), (100, 8, 500), *((110, rows, 900) for rows in (1, 2, 1, 2, 1, 1))]
    played = Played(["fast", "slow"], requests)
    assert played.missed() == []
    assert len(played.infers) == 3


def test_devices_of_one_kind_are_chosen_as_ever() -> None:
    played = Played(["fast", "fast", "fast"], [(100, 8, 500), (101, 8, 500), (110, 1, 500)])
    assert played.by() == {0: "w0", 1: "w1", 2: "w2"}
