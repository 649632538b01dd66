"""What can be planned, and what errors say of what can't."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pytest

from mainspring.planner.problem import PlanError, read_problem
from mainspring.simulator.objective import Objective
from mainspring.simulator.spec import DeviceGroup, FaultsSpec, Spread
from tests.planner.specs import MODEL, spec, workload


def devices(**changes: Any) -> tuple[DeviceGroup, ...]:
    first, second = spec().devices
    return (msgspec.structs.replace(first, **changes), second)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"devices": devices(price=0.0)}, "'fast', needs a price above 0"),
        ({"devices": devices(price=1e-300)}, "of one an hour, and of 0.000001 at least"),
        ({"devices": devices(most=0)}, "most = 0: take it out"),
        ({"devices": (spec().devices[0],) * 2}, "two groups of devices are of one kind"),
        ({"workload": workload(kind="closed", rate=None)}, "closed-loop clients"),
        ({"workload": workload(rate=None, load=0.5)}, "load is a multiple of what the devices can do"),
        ({"workload": workload(best_effort=True)}, "requests with a deadline"),
        ({"workload": workload(rows=600)}, "up to 600 rows and the profile of ranker ends at 500"),
        ({"workload": workload(rate=1e7)}, "and at most 5,000,000 can be planned with: shorten duration_s"),
        ({"duration_s": 2}, "it takes 1,000: at this rate, duration_s = "),
        (
            {"objective": Objective(attainment=1 - 1e-14)},
            "too few to tell 0.99999999999999 in time from less",
        ),
        ({"objective": Objective(attainment=1 - 1e-14)}, "193,444: raise rate or duration_s"),
    ],
)
def test_what_can_not_be_planned_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=re.escape(says)):
        read_problem(spec(**changes))


def test_queries_take_the_smallest_batch_that_holds_them() -> None:
    problem = read_problem(spec(faults=FaultsSpec(duration_jitter=0)))
    rows, sizes = problem.queries.rows, np.array([10, 50, 100, 200, 500])
    expected = np.array([MODEL.infer_ms[str(size)] for size in sizes])[np.searchsorted(sizes, rows)] * 1e6
    np.testing.assert_array_equal(problem.durations_ns[1], expected)
    np.testing.assert_array_equal(problem.durations_ns[0], expected / 4)


def test_spreads_are_drawn_once_for_all_kinds() -> None:
    faults = msgspec.structs.replace(spec().faults, spreads=(Spread(kind="lognormal", sigma=0.3),))
    plain, spread = read_problem(spec()), read_problem(spec(faults=faults))
    multiples = spread.durations_ns / plain.durations_ns
    np.testing.assert_allclose(multiples[0], multiples[1], rtol=1e-6)
    assert np.log(multiples[0]).std() == pytest.approx(0.3, abs=0.02)


def test_two_readings_are_the_same_and_another_seed_is_not() -> None:
    one, again, other = read_problem(spec()), read_problem(spec()), read_problem(spec(seed=1))
    np.testing.assert_array_equal(one.queries.due_ns, again.queries.due_ns)
    assert len(one.queries) != len(other.queries) or (one.queries.rows != other.queries.rows).any()
