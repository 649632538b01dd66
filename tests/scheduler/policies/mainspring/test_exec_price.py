"""What EXEC's time costs, and what requests are worth beyond that."""

from __future__ import annotations

import pytest

from mainspring.cluster.placements import Model, Worker
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.mainspring.constants import UTILISATION_WINDOW_NS
from mainspring.scheduler.policies.mainspring.exec_price import ExecPrice
from mainspring.scheduler.policies.mainspring.utilisation import Utilisation
from mainspring.scheduler.policies.notes import model_note
from mainspring.scheduler.state import SchedulerState
from tests.scheduler.hand import MS, spec


def model(name: str, single_ms: int) -> Model:
    made = Model(spec(name, single_ms=single_ms), 1)
    estimates = SchedulerState(SchedulerConfig()).cluster.estimates
    made.infer_times["gpu"] = estimates.infer_times("gpu", made.spec)
    return made


def price(busy: float, dropped: float) -> ExecPrice:
    """After batches of a row that took 4 ms."""
    utilisation = Utilisation(SchedulerState(SchedulerConfig()))
    utilisation.gave(0, Worker("w0", 0, "gpu", 8), int(busy * UTILISATION_WINDOW_NS))
    found = ExecPrice(utilisation)
    for _ in range(10):
        found.ran(1, 4 * MS)
    found.look(0, dropped)
    return found


@pytest.mark.parametrize(("busy", "dropped"), [(0.7, 0.5), (1.0, 0.0)])
def test_nothing_is_paid_while_exec_has_time_or_nothing_is_dropped(busy: float, dropped: float) -> None:
    found = price(busy, dropped)
    assert found.per_ns == 0.0
    assert found.worth(model("long", 40), 3.0) == 3.0
    assert found.worth_each(model("long", 40)) == 1.0


def test_what_takes_longer_is_worth_less_and_in_the_end_nothing() -> None:
    found = price(1.0, 0.5)
    worths = [found.worth(model("any", single_ms), 1.0) for single_ms in (1, 4, 20)]
    assert 1.0 > worths[0] > worths[1] > 0.0
    assert worths[2] == 0.0
    assert found.worth_each(model("any", 1)) > found.worth_each(model("any", 4)) > 0.0
    assert found.worth_each(model("any", 20)) == 0.0


def test_full_batches_are_worth_more_than_as_many_single_rows() -> None:
    found, any_ = price(1.0, 0.5), model("any", 4)
    assert found.worth(any_, 4.0) > 4 * found.worth(any_, 1.0)
    assert found.worth(any_, 8.0) == pytest.approx(2 * found.worth(any_, 4.0))


def test_a_model_that_was_dropped_too_often_is_worth_its_time_again() -> None:
    found, long = price(1.0, 0.5), model("long", 20)
    assert found.worth(long, 1.0) == 0.0
    model_note(long).boost = 2.0
    assert found.worth(long, 1.0) > 0.0
