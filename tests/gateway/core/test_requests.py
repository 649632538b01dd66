"""Where a request's time went: parts that add up to its total, whatever a worker tells."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.gateway.core.effects import Dispatched
from mainspring.gateway.core.requests import computed, kept
from mainspring.messages.clients import Timing
from mainspring.messages.peers import Output, OutputTimes

MS = 1_000_000


def parts(timing: Timing) -> list[int]:
    """Return receive, queue, input, load, wait, EXEC and output, in nanoseconds."""
    before = [timing.receive_ns, timing.queue_ns, timing.input_ns]
    return [*before, timing.load_ns, timing.wait_ns, timing.execute_ns, timing.output_ns]


def timing(
    times: OutputTimes | None, *, now: int = 100, came: int = 0, arrived: int = 3, at: int = 10, execute: int
) -> Timing:
    """Return the timing of a request; instants and EXEC in milliseconds."""
    dispatch = Dispatched(7, "w", 4, bool(times and times.load_ns), at * MS)
    output = Output(7, 1, execute * MS, times)
    return computed(now * MS, came * MS, arrived * MS, 120 * MS, dispatch, output)


def test_a_warm_request() -> None:
    found = timing(OutputTimes(4 * MS, 46 * MS, 6 * MS), execute=20)
    # 90 ms from the dispatch, of which the worker tells 76: 7 ms for each way.
    assert parts(found) == [3 * MS, 7 * MS, 11 * MS, 0, 46 * MS, 20 * MS, 13 * MS]
    assert (found.total_ns, found.left_ns, found.batch_size, found.worker) == (100 * MS, 20 * MS, 4, "w")


def test_a_load_within_the_wait_is_no_wait() -> None:
    found = timing(OutputTimes(4 * MS, 46 * MS, 6 * MS, 30 * MS, 5 * MS), execute=20)
    assert parts(found) == [3 * MS, 7 * MS, 11 * MS, 30 * MS, 16 * MS, 20 * MS, 13 * MS]


def test_a_load_that_began_before_the_dispatch_is_no_queueing() -> None:
    # EXEC begins at 67, and the load took place from 5 to 65.
    found = timing(OutputTimes(4 * MS, 46 * MS, 6 * MS, 60 * MS, 2 * MS), execute=20)
    assert parts(found) == [3 * MS, 2 * MS, 0, 60 * MS, 2 * MS, 20 * MS, 13 * MS]


def test_a_request_that_came_while_another_one_of_equal_inputs_was_computed_has_what_was_left_of_it() -> None:
    found = timing(OutputTimes(0, 0, 0), arrived=95, came=95, at=10, execute=80)
    assert parts(found) == [0, 0, 0, 0, 0, 5 * MS, 0]


def test_outputs_that_were_there_take_what_finding_them_took() -> None:
    found = kept(10, 4, 7, None)
    assert parts(found) == [3, 0, 0, 0, 0, 0, 3]
    assert (found.total_ns, found.cached, found.worker) == (6, True, "")


@given(
    now=st.integers(0, 200),
    came=st.integers(0, 100),
    arrived=st.integers(0, 100),
    at=st.integers(-50, 250),
    execute=st.integers(0, 300),
    durations=st.none() | st.lists(st.integers(0, 200), min_size=5, max_size=5),
)
@example(now=100, came=0, arrived=0, at=50, execute=10, durations=[0, 0, 0, 200, 200])
def test_the_parts_add_up_and_none_is_negative(
    now: int, came: int, arrived: int, at: int, execute: int, durations: list[int] | None
) -> None:
    came, arrived, now = sorted((came, arrived, now))
    times = None if durations is None else OutputTimes(*(each * MS for each in durations))
    found = timing(times, now=now, came=came, arrived=arrived, at=min(at, now), execute=execute)
    assert sum(parts(found)) == found.total_ns
    assert min(parts(found)) >= 0
