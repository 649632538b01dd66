"""What gateways tell of their applications, as the console shows it."""

from __future__ import annotations

import pytest

from mainspring.console.queries.applications import applications
from mainspring.console.view.learning import MOST_SECONDS
from mainspring.console.view.view import View
from mainspring.messages.applications import ApplicationReport, ApplicationSpec, MemberReport
from mainspring.messages.learning import GatewayLearning, LearningOfGateways

SECOND = 1_000_000_000
SPEC = ApplicationSpec(name="digits", members=("a", "b:2"), output="scores")


def report(weight: float, of_a: float, judged: int, asked: int, **counts: float) -> ApplicationReport:
    members = (
        MemberReport("a", weight, of_a, judged, asked),
        MemberReport("b:2", 1 - weight, 0.5, judged, asked, missing=1, fault="model 'b' is not served"),
    )
    return ApplicationReport(SPEC, members, requests=asked, judged=judged, **counts)  # type: ignore[arg-type]


def told(**gateways: ApplicationReport) -> LearningOfGateways:
    return LearningOfGateways({name: GatewayLearning((each,)) for name, each in gateways.items()})


def test_gateways_are_shown_together() -> None:
    view = View()
    view.now_ns = 1_000 * SECOND
    view.told(
        told(
            g0=report(0.8, 0.1, 30, 30, rows=60, confidence=0.9, loss=0.2, joined=30, late=1),
            g1=report(0.4, 0.4, 10, 10, rows=20, confidence=0.5, loss=0.6, joined=10, duplicate=2),
        )
    )
    (found,) = applications(view).applications
    assert (found.name, found.policy, found.gateways) == ("digits", "exp4", ["g0", "g1"])
    assert (found.requests, found.rows, found.joined, found.late, found.duplicate) == (40, 80, 40, 1, 2)
    assert found.confidence == pytest.approx(0.8)
    assert found.loss == pytest.approx(0.3)
    first, second = found.members
    assert first.weight == pytest.approx(0.7)
    assert first.loss == pytest.approx(0.175)
    assert (second.missing, second.fault) == (2, "model 'b' is not served")
    # Its answers lost 12, the best member would have lost 40 times 0.175.
    assert found.regret == pytest.approx(5.0)
    assert found.defaults is None


def test_weights_are_remembered_by_the_second() -> None:
    view = View()
    for second, weight in ((1_000, 0.5), (1_002, 0.7), (1_003, 0.9)):
        view.now_ns = second * SECOND + 5
        view.told(told(g0=report(weight, 0.1, 1, 1)))
    view.now_ns = 1_004 * SECOND
    (found,) = applications(view).applications
    assert found.first_ns == (1_004 - MOST_SECONDS + 1) * SECOND
    assert found.members[0].weights[-6:] == [None, 0.5, 0.5, 0.7, 0.9, 0.9]
    assert len(found.members[0].weights) == MOST_SECONDS
    view.now_ns = 9_000 * SECOND
    (found,) = applications(view).applications
    assert found.members[0].weights == [0.9] * MOST_SECONDS


def test_an_application_that_is_gone_is_shown_no_more() -> None:
    view = View()
    view.now_ns = SECOND
    view.told(told(g0=report(0.5, 0.1, 1, 1)))
    view.told(LearningOfGateways({"g0": GatewayLearning((), more=3)}))
    assert applications(view).applications == []
    assert applications(view).more == 3
    view.told(told(g0=report(0.2, 0.1, 1, 1)))
    weights = applications(view).applications[0].members[0].weights
    assert [each for each in weights if each is not None] == [0.2]
