"""One action that took far too long: for how long is its model refused because of it?

With Clockwork's estimates, the maximum of the last ten; the default takes no notice of one.
"""

import random

import pytest

from mainspring.messages.actions import Command, Infer, Reject, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import Event, Wakeup
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import DeviceGroup, FaultsSpec, ModelGroup, SimulationSpec, WorkloadSpec
from tests.fuzz import seeded
from tests.scheduler.hand import MS, Hand, reasons, spec

SLO_MS = 40


def test_a_request_is_taken_once_as_much_time_has_passed_as_the_outlier_took() -> None:
    hand = Hand(spec("m", single_ms=1), estimate_rank=1)
    hand.warm("m")
    (infer,) = [c for c in hand.request(100, 1, "m", SLO_MS) if isinstance(c, Infer)]
    hand.feed(151, Result(infer.action_id, "w0", Status.OK, 101 * MS, 151 * MS))
    assert reasons(hand.request(152, 2, "m", SLO_MS)) == [Reason.DEADLINE_UNREACHABLE]
    assert reasons(hand.request(200.9, 3, "m", SLO_MS)) == [Reason.DEADLINE_UNREACHABLE]
    (infer,) = [c for c in hand.request(201, 4, "m", SLO_MS) if isinstance(c, Infer)]
    hand.ok(203, infer)
    assert reasons(hand.request(204, 5, "m", SLO_MS)) == []


def test_by_default_it_is_taken_at_once() -> None:
    hand = Hand(spec("m", single_ms=1))
    hand.warm("m")
    (infer,) = [c for c in hand.request(100, 1, "m", SLO_MS) if isinstance(c, Infer)]
    hand.feed(151, Result(infer.action_id, "w0", Status.OK, 101 * MS, 151 * MS))
    assert reasons(hand.request(152, 2, "m", SLO_MS)) == []


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("stopped_ms", [200, 2_000])
def test_the_first_of_all_that_stood_still_turns_nobody_away(rank: int, stopped_ms: int) -> None:
    hand = Hand(spec("m", single_ms=18), estimate_rank=rank)
    hand.warm("m")
    (infer,) = [c for c in hand.request(100, 1, "m", 4_000) if isinstance(c, Infer)]
    end_ms = 101 + stopped_ms
    hand.feed(end_ms, Result(infer.action_id, "w0", Status.OK, 101 * MS, end_ms * MS))
    (infer,) = [c for c in hand.request(end_ms + 1, 2, "m", SLO_MS) if isinstance(c, Infer)]
    assert infer.predicted_duration_ns == 18 * MS
    state = hand.scheduler.status().models[0]
    assert state.outlier is not None
    assert state.outlier.count == 1
    assert (state.outlier.worker, state.outlier.duration_ns) == ("w0", stopped_ms * MS)
    assert state.outlier.expected_ns == 18 * MS


def test_a_device_that_has_become_slow_is_believed_after_three() -> None:
    hand, now_ms = Hand(spec("m", single_ms=18)), 100
    hand.warm("m")
    for number in range(3):
        (infer,) = [c for c in hand.request(now_ms, number, "m", 4_000) if isinstance(c, Infer)]
        assert infer.predicted_duration_ns == 18 * MS
        begin_ms, now_ms = now_ms + 1, now_ms + 301
        hand.feed(now_ms, Result(infer.action_id, "w0", Status.OK, begin_ms * MS, now_ms * MS))
        now_ms += 1
    assert reasons(hand.request(now_ms, 9, "m", 250)) == [Reason.DEADLINE_UNREACHABLE]


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("policy", ["mainspring", "clockwork"])
def test_an_outlier_costs_the_requests_of_twice_its_own_time(policy: str, rank: int) -> None:
    """The seed is one without an outlier that is only a little shorter than the SLO.

    After such a one, with the maximum as estimate, single requests are feasible and yet held until they no
    longer are.
    """
    stream: list[tuple[int, Event | Command]] = []
    cluster = SimulationSpec(
        devices=(DeviceGroup(count=1),),
        models=(ModelGroup(name="m", infer_ms={"1": 1.0, "4": 1.6, "16": 4.0}),),
        workload=(WorkloadSpec(rate=500.0, slo_ms=SLO_MS),),
        scheduler=SchedulerConfig(policy=policy, estimate_rank=rank),
        faults=FaultsSpec(slow_probability=0.001, slow_ms=200.0),
        warm_up_s=0.5,
        duration_s=15.0,
        seed=1,
    )
    simulate(cluster, analyse=False, record=lambda now_ns, entry: stream.append((now_ns, entry)))
    outliers = [
        (entry.begin_ns, 2 * entry.end_ns - entry.begin_ns)
        for _, entry in stream
        if isinstance(entry, Result) and entry.end_ns - entry.begin_ns > SLO_MS * MS // 2
    ]
    refused_ns = [now_ns for now_ns, entry in stream if isinstance(entry, Reject)]
    # What waits while the device is held up is refused or given up within its own deadline.
    slack_ns = SLO_MS * MS
    unexplained = [
        now_ns for now_ns in refused_ns if not any(a <= now_ns <= b + slack_ns for a, b in outliers)
    ]
    assert len(outliers) >= 2
    assert refused_ns
    assert unexplained == []


def test_what_waits_behind_an_outlier_is_reported_while_that_runs() -> None:
    """As live: the worker looks a few milliseconds after an action could have begun at last."""
    stream: list[tuple[int, Event | Command]] = []
    cluster = SimulationSpec(
        devices=(DeviceGroup(count=2),),
        models=(ModelGroup(name="m", infer_ms={"1": 4.0, "4": 6.0, "16": 15.0}, copies=2),),
        workload=(WorkloadSpec(rate=500.0, slo_ms=SLO_MS),),
        faults=FaultsSpec(slow_probability=0.01, slow_ms=200.0),
        warm_up_s=0.0,
        duration_s=3.0,
        seed=1,
    )
    simulate(cluster, analyse=False, record=lambda now_ns, entry: stream.append((now_ns, entry)))
    infers = {entry.action_id: entry for _, entry in stream if isinstance(entry, Infer)}
    late_ns = [
        now_ns - infers[entry.action_id].latest_ns
        for now_ns, entry in stream
        if isinstance(entry, Result) and entry.status is Status.TOO_LATE
    ]
    assert len(late_ns) > 3
    assert max(late_ns) < 3 * MS


@seeded(4)
@pytest.mark.parametrize("policy", ["mainspring", "clockwork"])
def test_what_stood_still_once_is_expected_of_no_later_execution(policy: str, seed: int) -> None:
    """Many models that run seldom, so that each has few measurements; some wait for up to four seconds, in
    which workers are dropped for what they owe."""
    stream: list[tuple[int, Event | Command]] = []
    cluster = SimulationSpec(
        devices=(DeviceGroup(count=3),),
        models=tuple([ModelGroup(name=f"m{number}", infer_ms={"1": 18.0, "4": 40.0}) for number in range(8)]),
        workload=(WorkloadSpec(rate=20.0, slo_ms=2_000.0),),
        scheduler=SchedulerConfig(policy=policy),
        faults=FaultsSpec(slow_probability=0.03, slow_ms=4_000.0),
        warm_up_s=0.0,
        duration_s=20.0,
        seed=seed,
    )
    simulate(cluster, analyse=False, record=lambda now_ns, entry: stream.append((now_ns, entry)))
    still = [
        entry for _, entry in stream if isinstance(entry, Result) and entry.end_ns - entry.begin_ns > SLOW_NS
    ]
    expected_ms = [entry.predicted_duration_ns / MS for _, entry in stream if isinstance(entry, Infer)]
    assert len(still) >= 3
    assert max(expected_ms) < 90


SLOW_NS = 200 * MS
POLICIES = ("mainspring", "clockwork", "clockwork-release", "nexus", "edf", "clipper", "fifo")


def run(hand: Hand, now_ms: float, number: int, slo_ms: float, took_ms: float) -> float | None:
    """Ask for the model, whose INFER takes so long; return when that ends, None if the request is refused."""
    commands = hand.request(now_ms, number, "m", slo_ms)
    while not commands:
        wake_ns = hand.scheduler.next_wakeup_ns()
        assert wake_ns is not None
        now_ms = max(now_ms, wake_ns / MS)
        commands = hand.feed(now_ms, Wakeup())
    infers = [each for each in commands if isinstance(each, Infer)]
    if not infers:
        return None
    begin_ms = now_ms + 0.5
    end_ms = begin_ms + took_ms
    result = Result(infers[0].action_id, "w0", Status.OK, round(begin_ms * MS), round(end_ms * MS))
    hand.feed(end_ms, result)
    return end_ms


@seeded(3)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_that_was_slow_for_a_while_is_not_refused_for_ever(policy: str, seed: int) -> None:
    """Its last ten INFERs were all longer than every deadline that is asked for from then on."""
    draws = random.Random(seed)
    hand = Hand(spec("m", single_ms=1), policy=policy)  # type: ignore[arg-type]
    hand.warm("m")
    now_ms = 100.0
    for number in range(20):
        ended_ms = run(hand, now_ms, number, 2_000, draws.randint(100, 300))
        assert ended_ms is not None
        now_ms = ended_ms + 10
    asked = range(100, 1_100)
    served = [run(hand, now_ms + 20 * number, number, SLO_MS, 1) is not None for number in asked]
    assert all(served[750:]), "the last five of twenty seconds"
