"""Whole clusters by seed: nothing is wrong with those that `make test` plays, and what is wrong is found."""

import time
from collections.abc import Iterable
from random import Random

import msgspec
import pytest

from mainspring.messages.model import ModelSpec
from mainspring.simulator.town.faults import STANDBY, Fault
from mainspring.simulator.town.seeds import play, workload_of
from mainspring.simulator.town.shrink import failure, failure_of, shrunk, told
from mainspring.simulator.town.town import Plan, Town, plan_of
from mainspring.simulator.town.workload import Request, Workload

SEEDS = 300
BUDGET_S = 30.0
"""Processor time for all of them; of a slower machine fewer are played."""
LONGEST_S = 100.0
"""The same where others compute beside it."""


class Few(Workload):
    """A second of requests: enough to see that something is checked."""

    def requests(self, draws: Random, models: list[ModelSpec], end_ns: int) -> list[Request]:
        """Ask for one row of the first model, ten times a second."""
        del draws
        return [Request(at_ns, models[0].name) for at_ns in range(1_000_000_000, end_ns, 100_000_000)]


class NeverRight(Few):
    """Finds every reply wrong."""

    def replied(self, sent: object) -> Iterable[str]:
        """Say so."""
        del sent
        return ("it is never right",)


def calm(seed: int = 0, *faults: Fault, workload: Workload | None = None) -> Plan:
    """Return a seed's plan with these faults only."""
    plan = plan_of(seed, workload or Few(), most_faults=0)
    return msgspec.structs.replace(plan, faults=faults)


def test_the_seeds_of_make_test_are_sound() -> None:
    began_s, until_s, wrong = time.process_time(), time.monotonic() + LONGEST_S, []
    for seed in range(SEEDS):
        if time.process_time() - began_s > BUDGET_S or time.monotonic() > until_s:
            break
        found = failure_of(seed, Workload())
        if found is not None:
            wrong += [*told(found)]
    assert not wrong, "\n".join(wrong)


def test_a_town_is_the_same_each_time() -> None:
    ends = []
    for _ in range(2):
        found = failure(calm(workload=NeverRight()), NeverRight())
        assert found is not None
        ends.append(found.text)
    assert ends[0] == ends[1]


def test_what_fails_is_made_small_and_told() -> None:
    found = failure(plan_of(3, NeverRight()), NeverRight())
    assert found is not None
    small = shrunk(found, NeverRight())
    assert len(small.plan.requests) == 1
    assert not small.plan.faults
    text = "\n".join(told(small))
    assert "it is never right" in text
    assert "mainspring simulate --town 3" in text


def test_a_page_that_is_corrupt_shows_in_outputs() -> None:
    plan = calm(1)
    fault = Fault("corrupt", 2_000_000_000, 0, "worker0")
    pages = msgspec.structs.replace(plan, pages=plan.pages[:1], faults=(fault,))
    found = failure(pages, Few())
    assert found is not None
    assert "is answered with" in found.text


def test_another_controller_takes_over_while_the_first_is_stopped() -> None:
    pause = Fault("pause", 2_450_000_000, 700_000_000, "controller0")
    town = Town(calm(2, pause, Fault("takeover", 2_500_000_000, 0, STANDBY)), Few())
    town.run()
    assert town.leader is town.processes[STANDBY].program
    assert town.processes["controller0"].program is None
    assert {each.outcome for each in town.sent if each.request.at_ns > 4_000_000_000} == {"ok"}


@pytest.mark.parametrize("name", ["nowhere:Class", "mainspring.messages.model:ModelSpec", "colonless"])
def test_what_is_no_workload_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"names no workload|is not a subclass"):
        workload_of(name)


def test_many_seeds_are_counted_and_the_first_failures_told() -> None:
    told_lines: list[str] = []
    here = f"{__name__}:NeverRight"
    played = play(range(2), here, processes=1, tell=told_lines.append, most_told=1)
    assert played.failed == [0, 1]
    assert "2 failed" in str(played)
    assert any("seed 0 fails" in line for line in told_lines)
