"""Clusters that grow and shrink while they serve: seeded whole-cluster simulations, and by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Command, DropWorker, Infer, Load, LoadReason, Prepare
from mainspring.messages.events import Event, OperatorAsked, Wakeup, WorkerJoined, WorkerLeft
from mainspring.messages.operating import LoadOn, MoveWorker, PinModel, ScaleWorkers
from mainspring.messages.scaling import Offer, Provide, ProviderLeft, ProviderSaid, Retire
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.provider import Pool
from mainspring.simulator.scenario import LONGEST_WAIT_NS, MILLISECOND, SECOND, random_faults, random_model
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from tests.fuzz import seeded
from tests.scheduler.hand import Hand, spec

LENGTH_NS = 6 * SECOND
KIND = "fast"


class Scaled:
    """A simulated cluster that is scaled again and again while requests come."""

    def __init__(self, seed: int, policy: str = "mainspring", *, faulty: bool) -> None:
        rng, chance = np.random.default_rng(seed), random.Random(seed)
        self.entries: list[tuple[int, Event | Command]] = []
        models = [random_model(rng, f"m{index}", f"graph of m{index}") for index in range(8)]
        names = [f"worker-{index}" for index in range(3)]
        pages = max(model.pages for model in models) + chance.randrange(12)
        faults = random_faults(rng, names, LENGTH_NS) if faulty else Faults()
        self.simulation = Simulation(
            SchedulerConfig(policy=policy),
            models,
            [(name, KIND, pages) for name in names],
            seed=seed,
            faults=faults,
            record=lambda *entry: self.entries.append(entry),
            validate_every=5,
        )
        pool = Pool(
            kind=KIND,
            pages=pages,
            workers=tuple(names),
            start_ns=chance.randrange(10, 1500) * MILLISECOND,
            failure_probability=0.3 if faulty else 0.0,
        )
        self.provider = self.simulation.provide([pool])
        when_ns = 0
        while (when_ns := when_ns + chance.randrange(50, 2000) * MILLISECOND) < LENGTH_NS - SECOND:
            self.count = chance.randrange(1, 7)
            event = OperatorAsked("an operator", ScaleWorkers(KIND, self.count))
            self.simulation.feed(when_ns, event)
            if faulty and chance.random() < 0.3:
                self.simulation.at(when_ns + chance.randrange(SECOND), self.provider.disconnect)
                self.simulation.at(when_ns + SECOND, self.provider.connect)
        due_ns, request_id = 0.0, 0
        while (due_ns := due_ns + rng.exponential(SECOND / 150)) < LENGTH_NS:
            request_id += 1
            model = models[int(rng.integers(len(models)))].name
            slo_ns = None if chance.random() < 0.1 else chance.randrange(30, 300) * MILLISECOND
            self.simulation.request(int(due_ns), request_id, model, 1, slo_ns)
        self.simulation.run(LENGTH_NS + LONGEST_WAIT_NS)

    @property
    def cluster(self) -> Cluster:
        return self.simulation.scheduler.cluster


@seeded(12, also=[780_011])  # A worker is to start, is not, and is to start after all.
@pytest.mark.parametrize("faulty", [False, True])
def test_every_request_has_one_reply_and_the_cluster_becomes_as_large_as_was_last_asked(
    seed: int, faulty: bool
) -> None:
    scaled = Scaled(seed, faulty=faulty)
    outcomes = scaled.simulation.outcomes.values()
    assert outcomes
    assert all(outcome.answers == 1 for outcome in outcomes)
    assert scaled.provider.stopped_busy == 0, "stopped while something ran"
    (kind,) = scaled.simulation.scheduler.status().kinds
    # While the provider is away, commands are refused.
    assert kind.wanted == len(scaled.cluster.kinds[KIND].workers)
    assert not scaled.cluster.retiring
    if not faulty:
        # With faults, answers and results are lost independently of one another.
        assert kind.in_time + kind.late == sum(each.reason is None for each in outcomes)
        assert kind.wanted == kind.running == scaled.count
        late = [each for each in outcomes if each.reason is None and not each.in_time]
        assert not late, "a worker that leaves makes no answer late"
        assert kind.worth == f"100.00% of {kind.in_time:,} answers in time"


@pytest.mark.parametrize("policy", ["clockwork", "edf", "fifo", "nexus"])
def test_any_policy_can_be_scaled(policy: str) -> None:
    scaled = Scaled(3, policy, faulty=False)
    assert all(outcome.answers == 1 for outcome in scaled.simulation.outcomes.values())
    assert len(scaled.cluster.workers) == scaled.count
    assert scaled.provider.stopped_busy == 0


@seeded(4)
def test_the_same_log_brings_the_same_decisions_about(seed: int) -> None:
    scaled = Scaled(seed, faulty=True)
    again = Scheduler(scaled.simulation.scheduler.config)
    expected: list[Command] = []
    for now_ns, entry in scaled.entries:
        if not isinstance(entry, Event):
            assert expected, f"{entry} was not decided again"
            assert expected.pop(0) == entry
            continue
        assert not expected, f"{expected[0]} was not in the log"
        again.handle(now_ns, entry)
        expected += again.taken()
        if isinstance(entry, Wakeup):
            expected += again.schedule(now_ns)
    assert any(isinstance(entry, Retire | Provide) for _, entry in scaled.entries)


def provided(hand: Hand, *names: str, most: int = 8, at_ms: float = 1, greets: bool = True) -> list[Command]:
    said = ProviderSaid("launcher", (Offer("gpu", "w", most, names),), greets=greets)
    return hand.feed(at_ms, said)


def scale(hand: Hand, at_ms: float, count: int, kind: str = "gpu") -> list[Command]:
    return hand.feed(at_ms, OperatorAsked("ann", ScaleWorkers(kind, count)))


def told(commands: list[Command]) -> list[tuple[str, ...]]:
    return [command.workers for command in commands if isinstance(command, Provide)]


def loads(commands: list[Command]) -> list[Load]:
    return [command for command in commands if isinstance(command, Load)]


def refusal(hand: Hand, count: int, kind: str = "gpu") -> str:
    return hand.scheduler.refusal(ScaleWorkers(kind, count)) or ""


def test_what_only_a_leaving_worker_holds_is_loaded_elsewhere_before_it_goes() -> None:
    hand = Hand(spec("a"), spec("b"), workers=2)
    provided(hand, "w0", "w1")
    for at_ms, model, worker in ((10, "a", "w0"), (10, "b", "w1")):
        (load,) = loads(hand.feed(at_ms, OperatorAsked("ann", LoadOn(model, worker))))
        hand.ok(at_ms, load)
    commands = scale(hand, 20, 1)
    (load,) = loads(commands)
    assert (load.worker, load.model) == ("w0", "b"), "the newest of those that hold as much goes"
    assert load.evidence is not None
    assert load.evidence.reason is LoadReason.TAKEOVER
    assert not told(commands)
    served = hand.request(22, 7, "b", 100)
    assert [c.worker for c in served if isinstance(c, Infer)] == ["w1"], "it serves until others can"
    hand.ok(25, served[0])
    hand.ok(28, load)
    later = hand.feed(60, Wakeup())
    assert told(later) == [("w0",)]
    hand.feed(61, WorkerLeft("w1", "it left"))
    assert not hand.scheduler.cluster.retiring
    again = hand.request(70, 8, "b", 100)
    assert [c.worker for c in again if isinstance(c, Infer)] == ["w0"]
    assert not any(isinstance(command, Load) for command in again)


def test_a_takeover_evicts_nothing_that_was_used_later() -> None:
    hand = Hand(spec("a"), spec("b"), workers=2, pages=1)
    provided(hand, "w0", "w1")
    for at_ms, model, worker in ((10, "b", "w1"), (20, "a", "w0")):
        (load,) = loads(hand.feed(at_ms, OperatorAsked("ann", LoadOn(model, worker))))
        hand.ok(at_ms + 8, load)
    commands = [*scale(hand, 40, 1), *hand.feed(60, Wakeup()), *hand.feed(80, Wakeup())]
    assert not any(isinstance(command, Load) for command in commands)
    assert told(commands) == [("w0",)]


def test_work_that_was_begun_is_finished_before_a_worker_is_stopped() -> None:
    hand = Hand(spec("a", single_ms=40), workers=2)
    provided(hand, "w0", "w1")
    hand.warm("a")
    holder = hand.scheduler.cluster.models["a"].holders[0].name
    (infer,) = hand.request(100, 1, "a", 200)
    left = {"w0", "w1"} - {holder}
    commands = scale(hand, 101, 1)
    assert told(commands) == [(holder,)], "the one that does nothing goes at once"
    provided(hand, holder, at_ms=102, greets=False)
    hand.feed(103, WorkerLeft(left.pop(), "it left"))
    assert not told(hand.feed(104, Wakeup()))
    assert hand.ok(140, infer) == []


def test_the_newest_command_wins_over_a_scale_under_way() -> None:
    hand = Hand(spec("a", single_ms=40), workers=2)
    provided(hand, "w0", "w1")
    hand.warm("a")
    holder = hand.scheduler.cluster.models["a"].holders[0].name
    hand.request(100, 1, "a", 200)
    scale(hand, 101, 0) if refusal(hand, 0) == "" else scale(hand, 101, 1)
    back = scale(hand, 102, 2)
    assert not hand.scheduler.cluster.workers[holder].retiring
    assert all(len(each) == 2 for each in told(back))
    assert scale(hand, 103, 2) == [], "what is so already changes nothing"


def test_a_worker_that_dies_while_it_leaves_is_not_started_again() -> None:
    hand = Hand(spec("a", single_ms=40), spec("b", single_ms=40), workers=2)
    provided(hand, "w0", "w1")
    hand.request(100, 1, "a", 400)
    (second,) = [w for w in hand.scheduler.cluster.workers.values() if not len(w.load)]
    scale(hand, 101, 1)
    retiring = [*hand.scheduler.cluster.retiring, second.name][0]
    commands = [*hand.feed(102, WorkerLeft(retiring, "killed")), *hand.feed(130, Wakeup())]
    assert all(retiring not in each for each in told(commands))
    assert retiring not in hand.scheduler.cluster.kinds["gpu"].workers
    assert not hand.scheduler.cluster.retiring


def test_new_workers_have_names_that_nobody_has() -> None:
    hand = Hand(spec("a"), workers=2)
    hand.feed(0, WorkerJoined("w-0", "gpu", 8))
    provided(hand, "w1")
    assert told(scale(hand, 2, 3)) == [("w1", "w-1", "w-2")], "w-0 was started by hand"
    hand.feed(3, WorkerJoined("w-2", "gpu", 8))
    assert hand.scheduler.status().kinds[0].running == 2


def test_new_workers_load_before_they_get_work() -> None:
    hand = Hand(spec("a"), workers=1)
    provided(hand, "w0")
    scale(hand, 2, 2)
    joined = hand.feed(3, WorkerJoined("w1", "gpu", 8))
    assert [type(command) for command in joined] == [Prepare]
    assert not [c for c in hand.request(4, 1, "a", 100) if isinstance(c, Infer)]


def test_a_provider_that_lost_its_orders_is_told_again() -> None:
    hand = Hand(spec("a"), workers=2)
    provided(hand, "w0", "w1")
    assert told(scale(hand, 2, 4)) == [("w0", "w1", "w-0", "w-1")]
    hand.feed(3, ProviderLeft("launcher", "silent"))
    assert hand.scheduler.status().kinds[0].provider == ""
    assert told(provided(hand, "w0", "w1", at_ms=4)) == [("w0", "w1", "w-0", "w-1")]
    assert told(provided(hand, "w0", "w1", "w-0", "w-1", at_ms=5, greets=False)) == []


@pytest.mark.parametrize(
    ("count", "kind", "why"),
    [
        (2, "tpu", "nothing that is connected starts workers of kind 'tpu'; kinds are gpu"),
        (-1, "gpu", "there can't be -1 workers; give 0 or more"),
        (9, "gpu", "launcher runs at most 8 workers of kind gpu, not 9"),
        (0, "gpu", "'a' is served, and no other worker can run it; give at least 1"),
    ],
)
def test_what_cant_be_is_refused_and_says_what_can(count: int, kind: str, why: str) -> None:
    hand = Hand(spec("a"), workers=2)
    provided(hand, "w0", "w1")
    assert why in refusal(hand, count, kind)
    assert scale(hand, 2, count, kind) == []
    assert not hand.scheduler.cluster.operations


def test_fewer_than_pinned_models_need_are_refused() -> None:
    hand = Hand(spec("a", pages=8), workers=3, pages=8)
    provided(hand, "w0", "w1", "w2")
    hand.feed(2, OperatorAsked("ann", PinModel("a")))
    assert "pinned models take 8 pages" in refusal(hand, 1)
    assert refusal(hand, 1).endswith("give at least 2")
    assert refusal(hand, 2) == ""


def test_without_a_provider_the_refusal_says_what_would_do() -> None:
    hand = Hand(spec("a"), workers=1)
    assert "mainspring up" in refusal(hand, 2)


def test_a_worker_that_goes_to_another_controller_is_counted_there_and_runs_on() -> None:
    hand = Hand(spec("a"), workers=2)
    provided(hand, "w0", "w1")
    scale(hand, 2, 2)
    hand.warm("a")
    holder = hand.scheduler.cluster.models["a"].holders[0].name
    (other,) = {"w0", "w1"} - {holder}
    commands = hand.feed(100, OperatorAsked("ann", MoveWorker(holder, "tcp://b:1")))
    (load,) = loads(commands)
    assert (load.worker, load.model) == (other, "a"), "what only it holds is loaded elsewhere first"
    assert "on its way" in (hand.scheduler.refusal(MoveWorker(holder, "tcp://b:1")) or "")
    assert "only worker that stays" in (hand.scheduler.refusal(MoveWorker(other, "tcp://b:1")) or "")
    assert hand.scheduler.status().kinds[0].wanted == 2
    hand.ok(108, load)
    commands = hand.feed(140, Wakeup())
    (provide,) = [each for each in commands if isinstance(each, Provide)]
    assert (provide.workers, provide.moved) == ((other,), {holder: "tcp://b:1"})
    (drop,) = [each for each in commands if isinstance(each, DropWorker)]
    assert (drop.worker, drop.to) == (holder, "tcp://b:1")
    (kind,) = hand.scheduler.status().kinds
    assert (kind.wanted, kind.running, kind.leaving) == (1, 1, ())
    assert not hand.scheduler.cluster.moving
    assert not told(hand.feed(150, Wakeup())), "no other one takes its place"


def test_a_worker_that_comes_from_another_controller_is_one_more() -> None:
    hand = Hand(spec("a"), workers=1)
    provided(hand, "w0")
    scale(hand, 2, 1)
    offer = Offer("gpu", "w", 8, ("w0", "w9"), moved=("w9",))
    assert not told(hand.feed(3, ProviderSaid("launcher", (offer,)))), "it is wanted"
    assert hand.scheduler.status().kinds[0].wanted == 2
    assert not told(hand.feed(4, ProviderSaid("launcher", (offer,)))), "said again, it is the same one"
    assert hand.scheduler.status().kinds[0].wanted == 2
    assert told(scale(hand, 5, 1)) == [("w0",)]


def test_a_worker_that_is_about_to_go_elsewhere_counts_until_it_has_gone() -> None:
    hand = Hand(spec("a", single_ms=40), workers=2)
    provided(hand, "w0", "w1")
    hand.warm("a")
    holder = hand.scheduler.cluster.models["a"].holders[0].name
    hand.request(100, 1, "a", 200)
    hand.feed(101, OperatorAsked("ann", MoveWorker(holder, "tcp://b:1")))
    assert told(scale(hand, 102, 3)) == [("w0", "w1", "w-0")]
    hand.feed(103, WorkerLeft(holder, "it died"))
    assert not hand.scheduler.cluster.retiring
    assert not hand.scheduler.cluster.moving
    assert holder in hand.scheduler.cluster.kinds["gpu"].workers, "it may come back, and stays then"


def test_no_new_worker_has_the_name_of_another_controllers() -> None:
    hand = Hand(spec("a"), workers=1)
    hand.feed(
        1, ProviderSaid("launcher", (Offer("gpu", "w", 8, ("w0",), taken=("w-0", "w-2")),), greets=True)
    )
    assert told(scale(hand, 2, 3)) == [("w0", "w-1", "w-3")]
