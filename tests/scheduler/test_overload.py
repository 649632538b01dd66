"""Requests that are refused as soon as they would hardly be in time."""

import functools
from statistics import median

import msgspec
import numpy as np
import pytest

from mainspring.messages.codes import Reason
from mainspring.messages.commands import Command, Reject
from mainspring.messages.events import Event, RequestArrived
from mainspring.messages.model import ModelSpec, Profile
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.device import Preloaded
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from mainspring.traces.arrival import Arrival
from mainspring.traces.source import OpenSource
from tests.scheduler.hand import MS, spec
from tests.simulator.played import decided_again

Stream = list[tuple[int, Event | Command]]
POLICIES = ("mainspring", "clockwork", "edf", "fifo")
MODELS, WORKERS, SLO_MS, LENGTH_MS = 6, 2, 60, 1500
DURATIONS_NS = {size: round((1.7 + size) * MS) for size in (1, 2, 4, 8, 16)}


def models() -> list[ModelSpec]:
    """Models that are alike, as quick as a ResNet-50 on a V100."""
    profiles = {"gpu": Profile(DURATIONS_NS, 8 * MS)}
    return [msgspec.structs.replace(spec(f"m{n}"), profiles=profiles) for n in range(MODELS)]


def arrivals(seed: int, rate: float, retry_ms: int = 0) -> list[Arrival]:
    """A Poisson process over all models; each tenth request has no deadline."""
    draw = np.random.default_rng(seed)
    found, at_s = [], 0.0
    while (at_s := at_s + float(draw.exponential(1 / rate))) < LENGTH_MS / 1e3:
        model = f"m{draw.integers(MODELS)}"
        slo_ns = None if draw.random() < 0.1 else SLO_MS * MS
        found.append(Arrival(round(at_s * 1e9), model, slo_ns=slo_ns, retry_ns=retry_ms * MS))
    return found


@functools.cache
def played(seed: int, policy: str, refuse: str, retry_ms: int = 0) -> tuple[Simulation, Stream]:
    """One and a half times as many requests as two devices can serve."""
    served = models()
    stream: Stream = []
    simulation = Simulation(
        msgspec.convert({"policy": policy, "refuse": refuse}, SchedulerConfig),
        served,
        [(f"w{n}", "gpu", 200) for n in range(WORKERS)],
        seed=seed,
        faults=Faults(delay_ns=100_000, duration_jitter=0.001),
        preloaded={f"w{n}": Preloaded(served, served) for n in range(WORKERS)},
        source=OpenSource(iter(arrivals(seed, 1.5 * WORKERS * 16e9 / DURATIONS_NS[16], retry_ms))),
        record=lambda now_ns, message: stream.append((now_ns, message)),
        keep=True,
        validate_every=50,
    )
    while simulation.now_ns < LENGTH_MS * MS or not simulation.finished():
        simulation.run(simulation.now_ns + 50 * MS)
        assert simulation.now_ns < 60_000 * MS, "some request has no reply"
    simulation.validate()
    return simulation, stream


def refusals(stream: Stream) -> list[tuple[int, RequestArrived, int, Reject]]:
    """(arrival, request, rejection's instant, rejection) of every rejection."""
    came = {each.request_id: (now_ns, each) for now_ns, each in stream if isinstance(each, RequestArrived)}
    return [(*came[each.request_id], now_ns, each) for now_ns, each in stream if isinstance(each, Reject)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_refusals_come_early_and_never_after_the_deadline(seed: int, policy: str) -> None:
    simulation, stream = played(seed, policy, "early")
    found = refusals(stream)
    assert {each.answers for each in simulation.outcomes.values()} == {1}
    for _, request, at_ns, _ in found:
        assert request.deadline_ns is not None, "a request without a deadline was refused"
        assert at_ns <= request.deadline_ns
    early = [each for each in found if each[3].reason is Reason.OVERLOADED]
    assert len(early) > len(found) / 2
    times = [(at_ns - since_ns) / (SLO_MS * MS) for since_ns, _, at_ns, _ in found]
    last = refusals(played(seed, policy, "last")[1])
    assert not [each for each in last if each[3].reason is Reason.OVERLOADED]
    assert median(times) < 0.8 * median((at_ns - since_ns) / (SLO_MS * MS) for since_ns, _, at_ns, _ in last)


@pytest.mark.parametrize("policy", POLICIES)
def test_early_refusals_cost_few_answers(policy: str) -> None:
    in_time = {
        refuse: sum(
            each.in_time
            for seed in range(3)
            for each in played(seed, policy, refuse)[0].outcomes.values()
            if each.request.deadline_ns is not None
        )
        for refuse in ("early", "last")
    }
    assert in_time["early"] >= 0.97 * in_time["last"]


def test_a_refusal_says_what_stands_before_it_and_what_would_be_accepted() -> None:
    _, stream = played(0, "mainspring", "early")
    for since_ns, request, at_ns, reject in refusals(stream):
        ahead = None if reject.evidence is None else reject.evidence.ahead
        assert (ahead is not None) == (reject.reason is Reason.OVERLOADED)
        if ahead is None:
            continue
        assert request.deadline_ns is not None
        assert reject.earliest_finish_ns is not None
        assert ahead.begin_ns >= at_ns
        assert reject.earliest_finish_ns > request.deadline_ns
        assert reject.earliest_finish_ns - ahead.begin_ns - ahead.duration_ns == 3 * MS, "the way back"
        longer_ms = (reject.earliest_finish_ns - since_ns) / MS
        assert f"a deadline of {longer_ms:.0f} ms would be accepted" in reject.detail


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_events_bring_the_same_refusals(policy: str) -> None:
    simulation, stream = played(0, policy, "early")
    assert decided_again(simulation, stream) == stream


def test_clients_that_come_back_once_have_one_answer_for_each_time_they_ask() -> None:
    simulation, stream = played(0, "mainspring", "early", retry_ms=10)
    asked = [message for _, message in stream if isinstance(message, RequestArrived)]
    first = len(arrivals(0, 1.5 * WORKERS * 16e9 / DURATIONS_NS[16]))
    assert len(asked) > 1.1 * first
    assert {each.answers for each in simulation.outcomes.values()} == {1}
    for since_ns, request, at_ns, _ in refusals(stream):
        assert request.deadline_ns is not None
        assert at_ns <= max(request.deadline_ns, since_ns), "some come back too late to be there in time"


def test_what_may_be_wrong_is_a_share() -> None:
    with pytest.raises(ValueError, match="refuse_wrongly is 1"):
        SchedulerConfig(refuse_wrongly=1.0)
    with pytest.raises(msgspec.ValidationError, match="refuse"):
        msgspec.convert({"refuse": "soon"}, SchedulerConfig)
