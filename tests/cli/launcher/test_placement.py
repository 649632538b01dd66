from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cli.launcher.placement import lent_to_gateway, place
from mainspring.cli.launcher.process import Backoff


@pytest.mark.parametrize(
    ("cores", "workers", "shared", "exec_cores"),
    [
        ([0], 1, (0,), (0,)),
        ([0, 1], 1, (0,), (1,)),
        ([3, 1], 1, (1,), (3,)),
        ([0, 1], 3, (0,), (1, 1, 0)),
        ([0, 1, 2, 3], 2, (0, 1), (2, 3)),
        ([0, 1, 2, 3], 4, (0,), (1, 2, 3, 3)),
    ],
)
def test_exec_threads_get_cores_of_their_own(
    cores: list[int], workers: int, shared: tuple[int, ...], exec_cores: tuple[int, ...]
) -> None:
    placement = place(cores, workers)
    assert placement.shared == shared
    assert placement.exec_cores == exec_cores


@pytest.mark.parametrize(
    ("cores", "workers", "lent"),
    [([0], 1, (0,)), ([0, 1], 1, (0, 1)), ([0, 1, 2], 2, (0, 1, 2)), ([0, 1, 2, 3], 2, ()), ([0, 1], 0, ())],
)
def test_a_gateway_with_one_core_may_use_those_of_exec(
    cores: list[int], workers: int, lent: tuple[int, ...]
) -> None:
    placement = place(cores, workers)
    assert lent_to_gateway(placement.shared, placement.exec_cores) == lent


@given(st.sets(st.integers(0, 63), min_size=1), st.integers(1, 80))
def test_no_core_is_given_twice_and_one_is_kept(cores: set[int], workers: int) -> None:
    placement = place(sorted(cores), workers)
    own = [core for core in placement.exec_cores if core not in placement.shared][: len(cores) - 1]
    assert placement.shared
    assert len(placement.exec_cores) == workers
    assert sorted({*placement.shared, *own}) == sorted(cores)
    assert len(set(own[: min(workers, len(cores) - 1)])) == min(workers, len(cores) - 1)


def test_backoff_doubles_up_to_its_bound_and_forgets_after_a_long_life() -> None:
    backoff = Backoff(first_ns=100, longest_ns=1000)
    assert [backoff.died(5) for _ in range(6)] == [100, 200, 400, 800, 1000, 1000]
    assert backoff.died(5000) == 100
    assert backoff.died(5) == 200


def test_backoff_stays_bounded_however_often_a_process_dies() -> None:
    backoff = Backoff(first_ns=100, longest_ns=1000, deaths=10_000)
    assert backoff.died(5) == 1000
