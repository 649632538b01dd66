"""Families: the scheduler chooses the member that answers a step, and the log says which."""

from __future__ import annotations

from mainspring.messages.actions import Command, Infer, Reject
from mainspring.messages.codes import Reason
from mainspring.messages.events import QueryArrived, RequestArrived
from mainspring.messages.queries import Chosen, QueryStep, StepsKnown, shape_fault
from mainspring.scheduler.query_plans import Planned
from tests.scheduler.hand import MS, Hand, reasons, spec


def family(rows: int = 1, at_least: float = 0.0, after: tuple[int, ...] = ()) -> QueryStep:
    """A step of a family: ``m`` takes 8 ms for a row and 20 for four, ``n`` 2 and 5."""
    return QueryStep("m", rows, members=("m", "n"), scores=(0.9, 0.5), at_least=at_least, after=after)


def warm() -> Hand:
    hand = Hand(spec("m", single_ms=8), spec("n", single_ms=2))
    hand.warm("m")
    hand.warm("n", 40)
    return hand


def ask(hand: Hand, now_ms: float, query_id: int, slo_ms: float | None, step: QueryStep) -> list[Command]:
    """Have a query of one step come and, if it is admitted, its piece, which names the best member."""
    deadline_ns = None if slo_ms is None else int((now_ms + slo_ms) * MS)
    commands = hand.feed(now_ms, QueryArrived(query_id, deadline_ns, (step,), graph="family"))
    if query_id in hand.scheduler.cluster.queries:
        piece = RequestArrived(query_id * 1000, "m", step.rows, deadline_ns, query=query_id)
        commands += hand.feed(now_ms, piece)
    return commands


def models(commands: list[Command]) -> list[str]:
    return [each.model for each in commands if isinstance(each, Chosen)]


def test_the_best_member_that_will_be_in_time_runs() -> None:
    for slo_ms, expected in ((100, "m"), (6, "n"), (None, "m")):
        commands = ask(warm(), 100, 7, slo_ms, family())
        assert models(commands) == [expected]
        assert [each.model for each in commands if isinstance(each, Infer)] == [expected]
        assert reasons(commands) == []


def test_smaller_answers_take_the_place_of_none() -> None:
    hand = warm()
    commands = [each for index in range(40) for each in ask(hand, 100, 10 + index, 120, family())]
    assert reasons(commands) == []
    chosen = models(commands)
    assert len(chosen) == 40
    assert set(chosen) == {"m", "n"}
    assert chosen.count("n") > 10


def test_a_request_that_takes_no_less_is_refused_with_what_is_possible() -> None:
    (refused,) = ask(warm(), 100, 7, 6, family(at_least=0.7))
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.DEADLINE_UNREACHABLE
    assert "at least 0.7; 'n' of 0.5 could" in refused.detail, refused.detail
    assert models(ask(warm(), 100, 7, 100, family(at_least=0.7))) == ["m"]
    (refused,) = ask(warm(), 100, 7, 2, family())
    assert isinstance(refused, Reject)
    assert "model 'n'" in refused.detail, refused.detail


def test_a_later_step_gets_its_member_once_it_may_begin() -> None:
    hand = warm()
    steps = (QueryStep("n", 1), family(after=(0,)))
    assert models(hand.feed(100, QueryArrived(7, 120 * MS, steps))) == []
    (infer,) = hand.feed(100, RequestArrived(1, "n", 1, 120 * MS, query=7))
    commands = hand.ok(103, infer)
    assert models(commands) == ["m"]
    assert models(hand.feed(104, StepsKnown(7, (QueryStep("n", 0), family(after=(0,)))))) == []
    (infer,) = hand.feed(104, RequestArrived(2, "m", 1, 120 * MS, query=7, step=1))
    assert isinstance(infer, Infer)
    assert infer.model == "m"


def test_all_pieces_of_a_step_are_of_one_member() -> None:
    hand = warm()
    commands = hand.feed(100, QueryArrived(7, 117 * MS, (family(rows=8),)))
    assert models(commands) == ["n"]
    for index in range(2):
        hand.feed(100, RequestArrived(1 + index, "m", 4, 117 * MS, query=7))
    assert {each.model.name for each in hand.scheduler.cluster.requests.values()} == {"n"}


def test_members_are_planned_for_only_where_time_has_a_price() -> None:
    hand = warm()
    due_ns = 200 * MS
    (offer,) = Planned(hand.scheduler.cluster, 100 * MS, due_ns, ties=True).offers(family())
    assert offer.model == "m"
    for index in range(12):
        ask(hand, 100, 10 + index, 100, family())
    planned = Planned(hand.scheduler.cluster, 100 * MS, due_ns, ties=True)
    assert [each.model for each in planned.offers(family())] == ["m", "n"]


def test_a_family_whose_scores_are_not_those_of_its_members_is_refused() -> None:
    assert shape_fault((family(),), ()) is None
    assert shape_fault((QueryStep("m", 1, members=("m", "n"), scores=(0.9,)),), ()) is not None
    assert shape_fault((QueryStep("n", 1, members=("m", "n"), scores=(0.9, 0.5)),), ()) is not None
