from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cli.launcher.placement import Placement, lent_to_gateway, place
from mainspring.cli.launcher.supervisor import Backoff

ALL = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("cores", "workers", "shared", "exec_cores"),
    [
        ([0], 1, (0,), ((0,),)),
        ([0, 1], 1, (0,), ((1,),)),
        ([3, 1], 1, (1,), ((3,),)),
        ([0, 1], 3, (0,), ((1,), (0, 1), (0, 1))),
        ([0, 1, 2, 3], 2, (0, 1), ((3,), (2,))),
        ([0, 1, 2, 3], 5, (0,), ((3,), (2,), (1,), ALL, ALL)),
    ],
)
def test_exec_threads_get_cores_of_their_own(
    cores: list[int], workers: int, shared: tuple[int, ...], exec_cores: tuple[tuple[int, ...], ...]
) -> None:
    assert place(cores, workers) == Placement(shared, exec_cores)


class Machine:
    """Cores, and threads of real-time priority that compute on them, by the rules of Linux' SCHED_FIFO.

    Of the threads that may use a core, those of the highest priority run. A thread that waits moves to a core
    that is idle or runs one of a lower priority, and whoever is preempted looks for another core likewise.
    """

    def __init__(self, cores: Sequence[int], exec_cores: Sequence[tuple[int, ...]]) -> None:
        self.running: dict[int, int | None] = dict.fromkeys(cores)
        self.exec_cores = exec_cores
        self.waiting: list[int] = []

    def begins(self, worker: int) -> None:
        """Have the EXEC thread of a worker compute."""
        self.waiting.append(worker)
        self._settle()

    def ends(self, worker: int) -> None:
        """Have it end what it computes, wherever it is."""
        self.waiting = [each for each in self.waiting if each != worker]
        self.running = {core: None if each == worker else each for core, each in self.running.items()}
        self._settle()

    def _settle(self) -> None:
        for _ in range(2 * len(self.exec_cores)):
            for worker in self.waiting:
                if (core := self._core_for(worker)) is not None:
                    self.waiting.remove(worker)
                    before, self.running[core] = self.running[core], worker
                    self.waiting += [] if before is None else [before]
                    break
            else:
                return
        raise AssertionError("threads chase each other for ever")

    def _core_for(self, worker: int) -> int | None:
        allowed = self.exec_cores[worker]
        idle = next((core for core in allowed if self.running[core] is None), None)
        lower = (core for core in allowed if self._priority(self.running[core]) < self._priority(worker))
        return next(lower, None) if idle is None else idle

    def _priority(self, worker: int | None) -> int:
        """One that has a core goes before those that share."""
        return 0 if worker is None else 2 if len(self.exec_cores[worker]) == 1 else 1


def test_no_execution_waits_beside_a_free_core_whatever_the_numbers() -> None:
    rng = random.Random(0)
    for count in range(1, 65):
        for workers in range(1, 65):
            # A cpuset with holes.
            cores = sorted(rng.sample(range(2 * count), count))
            placement = place(cores, workers)
            machine, computing = Machine(cores, placement.exec_cores), set[int]()
            for worker in rng.choices(range(workers), k=12):
                change = machine.ends if worker in computing else machine.begins
                change(worker)
                computing ^= {worker}
                busy = sum(each is not None for each in machine.running.values())
                assert busy == min(count, len(computing)), f"{cores} with {workers} workers: {computing}"


@pytest.mark.parametrize(
    ("cores", "workers", "said"),
    [
        ([0, 1, 2], 2, ""),
        ([5], 1, "EXEC of worker 0 shares core 5 with everything else"),
        ([0, 1], 2, "EXEC of worker 1 has no core of its own, and shares cores 0-1 with all other processes"),
        (
            [0, 1, 2, 7],
            9,
            "EXEC of 6 workers has no core of its own, and shares cores 0-2, 7 with all other processes",
        ),
    ],
)
def test_what_shares_with_what_is_said(cores: list[int], workers: int, said: str) -> None:
    assert place(cores, workers).sharing() == said


@pytest.mark.parametrize(
    ("cores", "workers", "lent"),
    [([0], 1, (0,)), ([0, 1], 1, (0, 1)), ([0, 1, 2], 2, (0, 1, 2)), ([0, 1, 2, 3], 2, ()), ([0, 1], 0, ())],
)
def test_a_gateway_with_one_core_may_use_those_of_exec(
    cores: list[int], workers: int, lent: tuple[int, ...]
) -> None:
    placement = place(cores, workers)
    assert lent_to_gateway(placement.shared, [core for own in placement.exec_cores for core in own]) == lent


@given(st.sets(st.integers(0, 63), min_size=1), st.integers(1, 80))
def test_no_core_is_given_twice_and_one_is_kept(cores: set[int], workers: int) -> None:
    placement = place(sorted(cores), workers)
    own = [given[0] for given in placement.exec_cores if given[0] not in placement.shared and len(given) == 1]
    assert placement.shared
    assert len(placement.exec_cores) == workers
    assert sorted({*placement.shared, *own}) == sorted(cores)
    assert len(own) == len({*own}) == min(workers, len(cores) - 1)


def test_backoff_doubles_up_to_its_bound_and_forgets_after_a_long_life() -> None:
    backoff = Backoff(first_ns=100, longest_ns=1000)
    assert [backoff.died(5) for _ in range(6)] == [100, 200, 400, 800, 1000, 1000]
    assert backoff.died(5000) == 100
    assert backoff.died(5) == 200


def test_backoff_stays_bounded_however_often_a_process_dies() -> None:
    backoff = Backoff(first_ns=100, longest_ns=1000, deaths=10_000)
    assert backoff.died(5) == 1000
