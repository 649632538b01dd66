"""One action that took far too long: for how long is its model refused because of it?

With Clockwork's estimates, the maximum of the last ten; the default takes no notice of one.
"""

import pytest

from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.commands import Command, Reject
from mainspring.messages.events import Event
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import DeviceGroup, FaultsSpec, ModelGroup, SimulationSpec, WorkloadSpec
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
