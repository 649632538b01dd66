"""The faults of `make chaos`: drawn by a seed, and judged by what callers noticed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mainspring.experiments.chaos.faults import HITS, KILL, LASTS_S, STOP, WHAT, Fault, Request, draw, effects

PROCESSES = {
    "controller": ["controller", "controller-1"],
    "gateway": ["gateway", "gateway-1"],
    "worker": ["worker-0", "worker-1", "worker-2"],
}


@given(seed=st.integers(0, 1_000), every_s=st.floats(2, 30), seconds=st.floats(10, 900))
def test_faults_are_drawn_alike_by_a_seed_and_end_before_the_next(
    seed: int, every_s: float, seconds: float
) -> None:
    found = draw(seed, seconds, every_s, PROCESSES, list(WHAT))
    assert found == draw(seed, seconds, every_s, PROCESSES, list(WHAT))
    for fault, following in pairwise(found):
        assert fault.at_s + fault.lasts_s < following.at_s
    assert not found or found[-1].at_s + found[-1].lasts_s <= seconds
    for fault in found:
        assert any(fault.process in PROCESSES[role] for role in HITS[fault.kind])
        assert fault.lasts_s <= LASTS_S[fault.kind][1]


def test_each_kind_has_its_turn_with_each_role_before_one_comes_again() -> None:
    pairs = sum(len(roles) for roles in HITS.values())
    found = draw(7, 15.0 * (pairs + 2), 12.0, PROCESSES, list(WHAT))
    kinds = [fault.kind for fault in found[:pairs]]
    assert {kind: kinds.count(kind) for kind in WHAT} == {kind: len(HITS[kind]) for kind in WHAT}
    assert {fault.kind for fault in draw(7, 900, 12.0, PROCESSES, [KILL])} == {KILL}
    assert not [
        fault for fault in draw(7, 900, 12.0, {"worker": ["worker-0"]}, [KILL]) if fault.process != "worker-0"
    ]


def test_a_fault_s_effect_ends_with_the_last_window_that_is_not_as_before() -> None:
    faults = [Fault(10.0, KILL, "worker-0", 0.0), Fault(20.0, STOP, "gateway", 1.0)]
    requests = [Request(number / 10, 0.1) for number in range(300)]
    late = [each._replace(took_s=3.0) if 12.0 <= each.sent_s < 12.5 else each for each in requests]
    lost = [each._replace(took_s=None, reason="lost") if each.sent_s >= 29.0 else each for each in late]
    one, two = effects(faults, lost, 2.0, 30.0)
    assert (one.offered, one.in_time, one.recovered_s) == (100, 95, 2.5)
    assert (two.offered, two.in_time, two.recovered_s) == (100, 90, None)
    assert [each.recovered_s for each in effects(faults, requests, 2.0, 30.0)] == [0.0, 0.0]
