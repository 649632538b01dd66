"""Sources: an open loop ignores answers, a closed loop lives on them."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.generators import Poisson, closed_loop
from mainspring.traces.source import ClosedClient, ClosedLoop


def test_an_open_source_gives_all_arrivals_and_then_none() -> None:
    workload = Poisson({"a": 100.0}).cut(0, SECOND_NS)
    expected = list(workload.arrivals(np.random.default_rng(0)))
    source = workload.source(np.random.default_rng(0))
    taken = []
    while (due := source.next_ns()) is not None:
        assert not source.done(due)
        taken.append(source.take())
        source.completed(-1, due)
    assert taken == expected
    assert source.done(0)
    with pytest.raises(RuntimeError, match="over"):
        source.take()


@given(
    concurrency=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    service_ns=st.integers(1, SECOND_NS // 4),
    think_ns=st.integers(0, SECOND_NS // 10),
)
@settings(max_examples=30, deadline=None)
def test_a_closed_loop_never_has_more_in_flight_than_its_concurrency(
    concurrency: list[int], service_ns: int, think_ns: int
) -> None:
    service_ns = max(service_ns, SECOND_NS // 100)
    clients = tuple(ClosedClient(f"m{i}", count, think_ns=think_ns) for i, count in enumerate(concurrency))
    source = ClosedLoop(clients, SECOND_NS).source(np.random.default_rng(1))
    in_flight = [0] * len(clients)
    ends: list[tuple[int, int]] = []
    now_ns = served = 0
    while source.next_ns() is not None or ends:
        due_ns = source.next_ns()
        if due_ns is not None and (not ends or due_ns <= ends[0][0]):
            arrival = source.take()
            assert arrival.time_ns >= now_ns
            now_ns = arrival.time_ns
            in_flight[arrival.client] += 1
            assert in_flight[arrival.client] <= concurrency[arrival.client]
            assert arrival.model == f"m{arrival.client}"
            heapq.heappush(ends, (now_ns + service_ns, arrival.client))
        else:
            now_ns, client = heapq.heappop(ends)
            in_flight[client] -= 1
            served += 1
            source.completed(client, now_ns)
    assert served >= sum(concurrency)
    assert source.done(SECOND_NS)
    assert not source.done(SECOND_NS - 1)


def test_a_closed_loop_waits_for_answers() -> None:
    source = closed_loop(["a"], concurrency=2, duration_ns=SECOND_NS, slo_ns=7, rows=3).source(
        np.random.default_rng(0)
    )
    first, second = source.take(), source.take()
    assert (first.slo_ns, first.rows, first.client) == (7, 3, 0)
    assert source.next_ns() is None
    source.completed(second.client, 500)
    assert source.next_ns() == 500
