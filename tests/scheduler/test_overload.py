"""Requests that are refused as soon as they would hardly be in time."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from mainspring.cluster.models import Model
from mainspring.messages.actions import Command, Infer, Reject
from mainspring.messages.codes import Reason
from mainspring.messages.events import Event, QueryArrived, RequestArrived
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.scheduler.overload import LOOKS, SAMPLED
from mainspring.scheduler.policies.registry import policy_class, policy_names
from mainspring.simulator.scenario import SECOND, random_scenario, run_to_end
from tests.cluster import made
from tests.scheduler.hand import MS, spec
from tests.scheduler.overloaded import (
    BUCKETS,
    ERRATIC,
    EVEN,
    POLICIES,
    SLO_MS,
    UNHELD,
    arrivals,
    played,
    refusals,
)
from tests.simulator.played import decided_again

KEPT = {EVEN: 0.97, ERRATIC: 0.8, BUCKETS: 0.93}
"""Of the answers in time under ``last``, how many ``early`` has at least: what takes long, and would be
refused in any case, is refused early, and not what is quick."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("kind", "seed"), [(EVEN, 0), (EVEN, 1), (EVEN, 2), (ERRATIC, 0), (BUCKETS, 0)])
def test_refusals_come_early_and_never_after_the_deadline(kind: str, seed: int, policy: str) -> None:
    simulation, stream = played(seed, policy, "early", kind=kind)
    found = refusals(stream)
    assert {each.answers for each in simulation.outcomes.values()} == {1}
    sent = {each for _, message in stream if isinstance(message, Infer) for each in message.request_ids}
    for _, request, at_ns, _ in found:
        assert request.deadline_ns is not None, "a request without a deadline was refused"
        # One that was to run behind an execution which took many times as long as others is told after it.
        held_up = kind == ERRATIC and request.request_id in sent
        assert held_up or at_ns <= request.deadline_ns
    early = [each for each in found if each[3].reason is Reason.OVERLOADED]
    assert len(early) > len(found) / 6
    times = [(at_ns - since_ns) / (SLO_MS * MS) for since_ns, _, at_ns, _ in found]
    last = refusals(played(seed, policy, "last", kind=kind)[1])
    assert not [each for each in last if each[3].reason is Reason.OVERLOADED]
    at_last = [(at_ns - since_ns) / (SLO_MS * MS) for since_ns, _, at_ns, _ in last]
    assert fmean(times) < 0.97 * fmean(at_last)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", [EVEN, ERRATIC, BUCKETS])
def test_early_refusals_cost_few_answers(kind: str, policy: str) -> None:
    in_time = {
        refuse: sum(
            each.in_time
            for seed in range(3 if kind == EVEN else 1)
            for each in played(seed, policy, refuse, kind=kind)[0].outcomes.values()
            if each.request.deadline_ns is not None
        )
        for refuse in ("early", "last")
    }
    assert in_time["early"] >= KEPT[kind] * in_time["last"]


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
@pytest.mark.parametrize("kind", [EVEN, ERRATIC, BUCKETS])
def test_the_same_events_bring_the_same_refusals(kind: str, policy: str) -> None:
    simulation, stream = played(0, policy, "early", kind=kind)
    assert decided_again(simulation, stream) == stream


@pytest.mark.parametrize("policy", POLICIES)
def test_what_waits_for_a_load_is_refused_at_last(policy: str) -> None:
    """Nothing is known of when its turn comes; at most those of loaded models are refused early."""
    _, stream = played(0, policy, "early", kind=UNHELD)
    found = refusals(stream)
    early = [each for each in found if each[3].reason is Reason.OVERLOADED]
    assert len(found) > 50
    assert len(early) < len(found)
    # `played` looks at each whether its model was held.
    assert all(each[3].evidence is not None and each[3].evidence.ahead is not None for each in early)
    for _, request, at_ns, _ in found:
        assert request.deadline_ns is not None
        assert at_ns <= request.deadline_ns


@pytest.mark.parametrize("wrongly", [0.15, 0.0])
@pytest.mark.parametrize("policy", ["mainspring", "clockwork"])
def test_a_refusal_never_comes_after_its_deadline_unless_its_execution_failed(
    policy: str, wrongly: float
) -> None:
    """In random clusters with faults: only a request that a worker had can be refused later than that."""
    late = early = 0
    for seed in range(6):
        came: dict[int, RequestArrived | QueryArrived] = {}
        sent: set[int] = set()
        refused: list[tuple[int, Reject]] = []

        def note(
            now_ns: int,
            message: Event | Command,
            came: dict[int, RequestArrived | QueryArrived] = came,
            sent: set[int] = sent,
            refused: list[tuple[int, Reject]] = refused,
        ) -> None:
            if isinstance(message, RequestArrived):
                came[message.request_id] = message
            elif isinstance(message, QueryArrived):
                came[message.query_id] = message
            elif isinstance(message, Infer):
                sent.update(message.request_ids)
                sent.update([getattr(came[each], "query", 0) for each in message.request_ids])
            elif isinstance(message, Reject):
                refused.append((now_ns, message))
                deadline_ns = came[message.request_id].deadline_ns
                failed = message.request_id in sent
                assert deadline_ns is None or failed or now_ns <= deadline_ns, message

        simulation = random_scenario(
            seed,
            policy,
            SECOND,
            validate_every=200,
            record=note,
            shaped=seed % 2 == 0,
            refuse_wrongly=wrongly,
        )
        run_to_end(simulation, SECOND)
        simulation.validate()
        assert {each.answers for each in simulation.outcomes.values()} == {1}
        deadlines = [(now_ns, came[each.request_id].deadline_ns) for now_ns, each in refused]
        late += sum(deadline_ns is not None and now_ns > deadline_ns for now_ns, deadline_ns in deadlines)
        early += sum(each.evidence is not None and each.evidence.ahead is not None for _, each in refused)
    assert late, "no execution failed: the runs show nothing"
    assert bool(early) == (wrongly > 0)


def test_clients_that_come_back_once_have_one_answer_for_each_time_they_ask() -> None:
    simulation, stream = played(0, "mainspring", "early", retry_ms=10)
    asked = [message for _, message in stream if isinstance(message, RequestArrived)]
    first = len(arrivals(0))
    assert len(asked) > 1.1 * first
    assert {each.answers for each in simulation.outcomes.values()} == {1}
    for since_ns, request, at_ns, _ in refusals(stream):
        assert request.deadline_ns is not None
        assert at_ns <= max(request.deadline_ns, since_ns), "some come back too late to be there in time"


def test_a_sample_of_what_would_be_refused_is_kept_whenever_it_is_asked() -> None:
    overload = Scheduler(SchedulerConfig(refuse_wrongly=0.15))._overload
    model = Model(spec("m"), 1)
    requests = [made.request(id_, model, 1, 0, 60 * MS) for id_ in range(8_000)]
    kept = {each.id for each in requests if overload.keeps(each)}
    assert 8_000 / SAMPLED * 0.9 < len(kept) < 8_000 / SAMPLED * 1.1
    assert {each.id for each in reversed(requests) if overload.keeps(each)} == kept
    tenths = [sum(low <= id_ < low + 800 for id_ in kept) for low in range(0, 8_000, 800)]
    assert min(tenths) > 0.8 * max(tenths), "some ids are kept more often than others"


def test_margins_settle_where_the_share_of_samples_that_are_served_is_what_may_be_wrong() -> None:
    """The higher the margin, the more is refused, and the more of that would have been served."""
    wrongly = 0.2
    overload = Scheduler(SchedulerConfig(refuse_wrongly=wrongly))._overload
    refused, rng, served = overload._of(Model(spec("m"), 1)), np.random.default_rng(0), []
    for _ in range(6_000):
        margin = overload._margin * refused.margin
        served.append(bool(rng.random() < margin / (1.0 + margin)))
        overload._move(refused, overload._if_wrong if served[-1] else overload._if_right)
    assert abs(fmean(served[1_000:]) - wrongly) < 0.03


def test_requests_that_come_at_once_are_looked_at_one_after_the_other() -> None:
    overload = Scheduler(SchedulerConfig(refuse_wrongly=0.15))._overload
    model, slack_ns, count = Model(spec("m"), 1), 100 * MS, 400
    for _ in range(16):
        overload.refused(0)
    looks: list[int] = []
    for id_ in range(1, count + 1):
        request, now_ns, own = made.request(id_, model, 1, 0, slack_ns), 0, 0
        while (look_ns := overload.next_look_ns(now_ns, request)) is not None:
            assert now_ns < look_ns < slack_ns
            now_ns, own = look_ns, own + 1
            looks.append(look_ns)
        assert own == LOOKS
    first, last = min(looks), max(looks)
    assert first < 0.4 * slack_ns
    tenths = np.histogram(looks, bins=10, range=(first, last))[0]
    assert tenths.min() > 0.8 * tenths.max(), "looks of a burst come together"


@pytest.mark.parametrize(("every", "looked_at"), [(500, False), (20, True)])
def test_a_few_refusals_among_thousands_have_nobody_looked_at(every: int, looked_at: bool) -> None:
    """Each look costs the scheduler time, and where next to nothing is refused there is nothing to win."""
    overload = Scheduler(SchedulerConfig(refuse_wrongly=0.15))._overload
    model, looks = Model(spec("m"), 1), 0
    for id_ in range(1, 4_001):
        if not id_ % every:
            overload.refused(0)
        looks += overload.first_look_ns(0, made.request(id_, model, 1, 0, 100 * MS)) is not None
    assert (looks > 3_000) if looked_at else not looks


def test_a_policy_refuses_early_or_at_last_unless_it_is_told() -> None:
    found = {name: policy_class(name).complete(SchedulerConfig()).refuse_wrongly for name in policy_names()}
    assert {name: share for name, share in found.items() if share} == {"mainspring": 0.15}
    for share in (0.0, 0.3):
        told = policy_class("mainspring").complete(SchedulerConfig(refuse_wrongly=share))
        assert told.refuse_wrongly == share


def test_what_may_be_wrong_is_a_share() -> None:
    with pytest.raises(ValueError, match="refuse_wrongly is 1"):
        SchedulerConfig(refuse_wrongly=1.0)
