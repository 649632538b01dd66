"""Models of architectures that no worker has open come while requests are served (`scheduler.opening`)."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest

from mainspring.cluster.device_kinds import UNKNOWN_OPEN_NS
from mainspring.cluster.placements import PREPARED_STATES
from mainspring.messages.actions import Command, Infer, Open, Prepare, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import Event, ModelAdded, ModelRemoved
from mainspring.messages.model import ModelSpec
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.registry import policy_names
from mainspring.simulator.device import Preloaded
from mainspring.simulator.outcomes import Outcome
from mainspring.simulator.scenario import MILLISECOND, SECOND, random_model
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from tests.fuzz import seeded

Entry = TypeVar("Entry")

LENGTH_NS = 4 * SECOND
SLO_NS = 100 * MILLISECOND
OPEN_NS = 200 * MILLISECOND
CONFIG = SchedulerConfig(open_patience_ms=300.0, open_within_ms=2000.0)


def copies(rng: np.random.Generator, name: str, executables: int, models: int) -> list[ModelSpec]:
    """Models that share executables."""
    firsts = [random_model(rng, "", f"{name} graph {index}") for index in range(executables)]
    return [
        msgspec.structs.replace(
            firsts[index % executables], name=f"{name}{index}", weights_hash=f"weights of {name}{index}"
        )
        for index in range(models)
    ]


class Newcomers:
    """A cluster under steady load, to which models of new architectures come.

    Each of the old models is resident on so many workers as ``holders``, or on all, and prepared on all.
    """

    def __init__(
        self,
        seed: int,
        *,
        config: SchedulerConfig = CONFIG,
        workers: int = 3,
        load: float = 0.3,
        holders: int | None = None,
        **faults: Any,
    ) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.stream: list[tuple[int, Event | Command]] = []
        self.old = copies(rng, "old", executables=3, models=6)
        self.new = copies(rng, "new", executables=2, models=5)
        names = [f"w{index}" for index in range(workers)]
        held = {
            name: [
                model
                for number, model in enumerate(self.old)
                if (index - number) % workers < (workers if holders is None else holders)
            ]
            for index, name in enumerate(names)
        }
        given = msgspec.structs.replace(Faults(open_ns=OPEN_NS), **faults)
        self.simulation = Simulation(
            config,
            self.old,
            [(name, "fast", 64) for name in names],
            seed=seed,
            faults=given,
            preloaded={name: Preloaded(self.old, held[name]) for name in names},
            record=lambda now_ns, entry: self.stream.append((now_ns, entry)),
            validate_every=40,
        )
        self.added_ns: dict[str, int] = {}
        for model in self.new:
            at_ns = int(rng.integers(SECOND // 2, SECOND))
            self.added_ns[model.name] = at_ns
            self.simulation.feed(at_ns, ModelAdded(model))
        self._requests(load * workers)

    def _requests(self, load: float) -> None:
        mean_ns = sum(model.profiles["fast"].infer_ns[model.batch_sizes[0]] for model in self.old) / len(
            self.old
        )
        when_ns, request_id = 0.0, 0
        while (when_ns := when_ns + self.rng.exponential(mean_ns / load)) < LENGTH_NS:
            request_id += 1
            model = self.old[int(self.rng.integers(len(self.old)))]
            self.simulation.request(int(when_ns), request_id, model.name, 1, SLO_NS)

    def run(self) -> None:
        self.simulation.run(LENGTH_NS + 2 * SECOND)
        self.simulation.validate()

    def of(self, kind: type[Entry]) -> Iterator[tuple[int, Entry]]:
        return ((now_ns, entry) for now_ns, entry in self.stream if isinstance(entry, kind))

    def missed(self) -> list[Outcome]:
        """The requests that were accepted, and not answered in time."""
        return [each for each in self.simulation.outcomes.values() if not each.in_time and not refused(each)]

    def check_ready(self, models: list[ModelSpec]) -> None:
        """Check that each worker has prepared these models within the bound, OPENs and rests besides."""
        openings = len(self.simulation.workers) * len({model.executable for model in self.new})
        bound_ns = int(CONFIG.open_within_ms * MILLISECOND) + (2 * openings + 1) * OPEN_NS
        for model in models:
            for worker in self.simulation.workers:
                ready_ns = self.ready_ns(model.name, worker)
                assert ready_ns is not None, f"{worker} has not prepared {model.name}"
                assert ready_ns - self.added_ns[model.name] < bound_ns

    def ready_ns(self, name: str, worker: str) -> int | None:
        """When a worker had prepared a model."""
        sent = {
            entry.action_id
            for _, entry in self.stream
            if isinstance(entry, Prepare | Open)
            and entry.worker == worker
            and (entry.model.name if isinstance(entry, Prepare) else entry.model) == name
        }
        ends = [
            now_ns
            for now_ns, entry in self.stream
            if isinstance(entry, Result) and entry.action_id in sent and entry.status is Status.OK
        ]
        return ends[0] if ends else None


def refused(outcome: Outcome) -> bool:
    """Whether a request was rejected on arrival: nobody promised it anything."""
    return outcome.reason in (Reason.DEADLINE_UNREACHABLE, Reason.MODEL_NOT_READY, Reason.NO_WORKER)


@pytest.mark.parametrize("policy", [name for name in policy_names() if name != "symphony"])
@seeded(3)
def test_no_accepted_request_is_late_for_a_newcomer(seed: int, policy: str) -> None:
    """`symphony` puts batches off to their last moment, and loses one now and then without any newcomer."""
    config = msgspec.structs.replace(CONFIG, policy=policy)
    cluster = Newcomers(seed, config=config)
    cluster.run()
    assert cluster.missed() == []
    opens = [entry for _, entry in cluster.of(Open)]
    assert {each.worker for each in opens} == set(cluster.simulation.workers)
    # Once for each of two executables, whatever number of models shares it.
    assert len(opens) == 2 * len(cluster.simulation.workers)
    cluster.check_ready(cluster.new)


@pytest.mark.parametrize("policy", ["nexus", "symphony"])
@pytest.mark.parametrize("workers", [2, 4])
def test_policies_that_wait_for_a_worker_or_an_instant_lose_nothing_by_openings(
    policy: str, workers: int
) -> None:
    config = msgspec.structs.replace(CONFIG, policy=policy)
    missed = [0, 0]
    for seed in range(4):
        for index, open_ns in enumerate([OPEN_NS, 0]):
            cluster = Newcomers(seed, config=config, workers=workers, load=0.35, open_ns=open_ns)
            cluster.run()
            missed[index] += len(cluster.missed())
    assert missed[0] <= missed[1]


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize(("workers", "load"), [(2, 0.3), (3, 0.5)])
def test_what_only_the_worker_holds_that_opens_is_served_elsewhere(
    policy: str, workers: int, load: float
) -> None:
    config = msgspec.structs.replace(CONFIG, policy=policy)
    missed = [0, 0]
    for seed in range(2):
        for index, open_ns in enumerate([OPEN_NS, 0]):
            cluster = Newcomers(seed, config=config, workers=workers, load=load, holders=1, open_ns=open_ns)
            cluster.run()
            missed[index] += len(cluster.missed())
            cluster.check_ready(cluster.new)
    assert missed[0] <= missed[1] + 1


@pytest.mark.parametrize("policy", policy_names())
def test_hardly_a_request_is_lost_where_the_others_are_overloaded_meanwhile(policy: str) -> None:
    config = msgspec.structs.replace(CONFIG, policy=policy)
    missed, asked = [0, 0], 0
    for seed in range(2):
        for index, open_ns in enumerate([OPEN_NS, 0]):
            cluster = Newcomers(seed, config=config, workers=2, load=0.6, open_ns=open_ns)
            cluster.run()
            missed[index] += len(cluster.missed())
            asked += len(cluster.simulation.outcomes)
    assert missed[0] <= missed[1] + asked // 400


@pytest.mark.parametrize("policy", ["mainspring", "clockwork"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_no_accepted_request_is_lost_where_the_others_can_not_do_all_work_meanwhile(
    workers: int, policy: str
) -> None:
    config = msgspec.structs.replace(CONFIG, policy=policy)
    refusals = 0
    for seed in range(30):
        cluster = Newcomers(seed, config=config, workers=workers, load=0.6)
        cluster.run()
        assert cluster.missed() == [], f"seed {seed}"
        refusals += sum(refused(each) for each in cluster.simulation.outcomes.values())
    assert refusals or workers == 3


@pytest.mark.parametrize("policy", ["mainspring", "clockwork"])
def test_hardly_one_is_lost_at_a_load_that_leaves_no_slack(policy: str) -> None:
    config = msgspec.structs.replace(CONFIG, policy=policy)
    missed = asked = 0
    for seed in range(6):
        cluster = Newcomers(seed, config=config, workers=2, load=0.8)
        cluster.run()
        missed += len(cluster.missed())
        asked += len(cluster.simulation.outcomes)
    assert missed <= asked // 1000


@seeded(3)
def test_openings_that_nobody_plans_make_requests_late(seed: int) -> None:
    cluster = Newcomers(seed, surprising_opens=True)
    cluster.run()
    assert cluster.missed() != []


@pytest.mark.parametrize("policy", policy_names())
def test_under_any_policy_all_become_ready_also_where_no_gap_comes(policy: str) -> None:
    config = msgspec.structs.replace(CONFIG, policy=policy)
    cluster = Newcomers(7, config=config, load=1.6)
    cluster.run()
    cluster.check_ready(cluster.new)
    assert all(outcome.answers == 1 for outcome in cluster.simulation.outcomes.values())


@seeded(6)
def test_workers_crash_and_lose_the_controller_meanwhile(seed: int) -> None:
    rng = np.random.default_rng(seed)
    at = [int(rng.integers(SECOND // 2, 2 * SECOND)) for _ in range(4)]
    cluster = Newcomers(
        seed,
        crashes=((at[0], "w0", SECOND // 2), (at[1], "w1", SECOND // 2)),
        session_losses=((at[2], "w2", SECOND // 5), (at[3], "w0", SECOND // 5)),
        detection_ns=SECOND // 5,
    )
    cluster.run()
    assert all(outcome.answers == 1 for outcome in cluster.simulation.outcomes.values())
    states = cluster.simulation.scheduler.cluster.workers
    for worker in states.values():
        assert {each.state for each in worker.placements.values()} <= set(PREPARED_STATES)
        held = cluster.simulation.workers[worker.name].core.residency.prepared()
        assert held.keys() == {model.name for model in (*cluster.old, *cluster.new)}


@seeded(8)
def test_models_are_removed_while_their_openings_are_planned(seed: int) -> None:
    cluster = Newcomers(seed, duration_jitter=0.05)
    rng = np.random.default_rng(seed)
    gone, kept = cluster.new[:3], cluster.new[3:]
    for model in gone:
        added_ns = cluster.added_ns[model.name]
        removed_ns = added_ns + int(rng.integers(1, 3 * SECOND // 2))
        cluster.simulation.feed(removed_ns, ModelRemoved(model.name))
    cluster.run()
    cluster.check_ready(kept)
    assert cluster.missed() == []
    for worker in cluster.simulation.workers.values():
        residency = worker.core.residency
        assert residency.prepared().keys() == {model.name for model in (*cluster.old, *kept)}
        assert all(residency.closed(model.name) is None for model in cluster.new)


def test_nothing_is_executed_over_an_opening() -> None:
    cluster = Newcomers(5)
    cluster.run()
    results = {entry.action_id: entry for _, entry in cluster.of(Result)}
    spans: dict[str, list[tuple[int, int]]] = {name: [] for name in cluster.simulation.workers}
    for _, entry in cluster.stream:
        if isinstance(entry, Infer | Open) and results[entry.action_id].status is Status.OK:
            result = results[entry.action_id]
            spans[entry.worker].append((result.begin_ns, result.end_ns))
    for found in spans.values():
        found.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(found))


def test_the_second_opening_of_an_executable_is_expected_to_take_as_long_as_the_first() -> None:
    cluster = Newcomers(2, duration_jitter=0.0)
    cluster.run()
    opens = [entry for _, entry in cluster.of(Open)]
    assert opens[0].predicted_duration_ns == UNKNOWN_OPEN_NS
    assert opens[-1].predicted_duration_ns == OPEN_NS
