"""The station: query for query what a simulation of events does, compiled and interpreted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.planner import queues
from tests.planner.event_driven import serve_by_events

NEVER = np.iinfo(np.int64).max


@st.composite
def stations(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[int]]:
    """Draw arrivals with ties, durations by kind, and servers."""
    gaps = draw(st.lists(st.integers(0, 6), max_size=60))
    kinds = draw(st.integers(1, 3))
    durations = [
        draw(st.lists(st.integers(1, 20), min_size=len(gaps), max_size=len(gaps))) for _ in range(kinds)
    ]
    servers = draw(st.lists(st.integers(0, kinds - 1), min_size=1, max_size=6).map(sorted))
    return np.cumsum(gaps, dtype=np.int64).tolist(), durations, servers


def served(
    due_ns: list[int],
    durations_ns: list[list[int]],
    kinds: list[int],
    most_late: int = NEVER,
    slo_ns: int = 0,
) -> tuple[list[int], list[int]]:
    due = np.array(due_ns, np.int64)
    times = np.array(durations_ns, np.int64).reshape(len(durations_ns), len(due_ns))
    done_ns, by, count = queues.serve(due, times, kinds, due + slo_ns, most_late)
    return done_ns[:count].tolist(), by[:count].tolist()


@settings(max_examples=300, deadline=None)
@given(stations())
def test_each_query_ends_as_in_a_simulation_of_events(
    station: tuple[list[int], list[list[int]], list[int]],
) -> None:
    assert served(*station) == serve_by_events(*station)


@settings(max_examples=50, deadline=None)
@given(stations(), st.integers(0, 10), st.integers(0, 30))
def test_interpreted_and_compiled_do_the_same(
    station: tuple[list[int], list[list[int]], list[int]], most_late: int, slo_ns: int
) -> None:
    pytest.importorskip("numba")
    found = served(*station, most_late, slo_ns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "compiled", lambda: None)
        assert served(*station, most_late, slo_ns) == found


def test_it_ends_behind_the_query_that_is_one_too_many_late() -> None:
    due, durations = [0, 0, 0, 0], [[5, 5, 5, 5]]
    assert served(due, durations, [0], most_late=1, slo_ns=5)[0] == [5, 10, 15]
    assert served(due, durations, [0], most_late=3, slo_ns=5)[0] == [5, 10, 15, 20]


def test_the_first_idle_server_in_order_is_preferred() -> None:
    done, by = served([0, 0, 9, 9], [[4, 4, 4, 4], [9, 9, 9, 9]], [0, 1, 1])
    assert by == [0, 1, 0, 1]
    assert done == [4, 9, 13, 18]
