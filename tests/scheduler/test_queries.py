"""Queries: admitted as a whole, ended as a whole, each piece due in its turn."""

from __future__ import annotations

import random

import msgspec
import pytest

from mainspring.cluster.apply import apply, settle
from mainspring.cluster.follow import follow
from mainspring.cluster.state import Cluster
from mainspring.cluster.validate import validate
from mainspring.messages.actions import Command, Infer, Ranked, Reject
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import (
    Event,
    GatewayLeft,
    ModelRemoved,
    QueryArrived,
    RequestArrived,
    RequestCancelled,
    WorkerLeft,
)
from mainspring.messages.ids import request_id
from mainspring.messages.queries import MOST_STEPS, Piece, QueryStep, StepsKnown, shape_fault
from tests.cluster.described import described
from tests.fuzz import seeded
from tests.scheduler.hand import MS, Hand, reasons, spec

QUERY = 77


def split(
    hand: Hand, now_ms: float, model: str, rows: int, slo_ms: float | None, query_id: int = QUERY
) -> list[Command]:
    """Have a request of so many rows come as a query; its pieces follow if it is admitted."""
    deadline_ns = None if slo_ms is None else int((now_ms + slo_ms) * MS)
    commands = hand.feed(now_ms, QueryArrived(query_id, deadline_ns, (QueryStep(model, rows),)))
    for index, first in enumerate(range(0, rows, 4)):
        if query_id in hand.scheduler.cluster.queries:
            size = min(4, rows - first)
            piece = RequestArrived(query_id * 1000 + index, model, size, deadline_ns, query=query_id)
            commands += hand.feed(now_ms, piece)
    return commands


def warm(workers: int = 1, **config: float) -> Hand:
    """Return a scheduler whose first worker holds the model ``m``: a batch of 4 rows takes 10 ms."""
    hand = Hand(spec("m"), workers=workers, **config)  # type: ignore[arg-type]
    hand.warm("m")
    return hand


def play(hand: Hand, now_ms: float, commands: list[Command]) -> tuple[list[Command], float]:
    """End each INFER well as it is predicted to; return all that came, and when the last one ended."""
    found, waiting = list(commands), [each for each in commands if isinstance(each, Infer)]
    while waiting:
        waiting.sort(key=lambda each: each.predicted_begin_ns + each.predicted_duration_ns)
        action = waiting.pop(0)
        now_ms = max(now_ms, (action.predicted_begin_ns + action.predicted_duration_ns) / MS)
        more = hand.ok(now_ms, action)
        found += more
        waiting += [each for each in more if isinstance(each, Infer)]
    return found, now_ms


def test_all_rows_of_a_query_are_run_in_largest_batches() -> None:
    hand = warm()
    commands, ended_ms = play(hand, 30, split(hand, 30, "m", 18, 200))
    infers = [each for each in commands if isinstance(each, Infer)]
    assert [each.batch_size for each in infers] == [4, 4, 4, 4, 2]
    assert sum(sum(each.rows) for each in infers) == 18
    assert reasons(commands) == []
    assert ended_ms < 230
    assert not hand.scheduler.cluster.queries
    assert not hand.scheduler.cluster.requests


def test_a_query_that_can_t_be_whole_in_time_is_refused_on_arrival_with_the_piece_that_is_late() -> None:
    hand = warm()
    (refused,) = split(hand, 30, "m", 18, 35)
    assert isinstance(refused, Reject)
    assert refused.request_id == QUERY
    assert refused.reason is Reason.DEADLINE_UNREACHABLE
    assert "piece 4 of 5 (rows 12 to 15 of 18)" in refused.detail, refused.detail
    assert refused.earliest_finish_ns is not None
    assert refused.evidence is not None
    assert not hand.scheduler.cluster.queries
    assert not hand.scheduler.cluster.requests
    needed_ms = refused.earliest_finish_ns / MS - 30
    assert split(hand, 30, "m", 18, needed_ms + 0.1, 78)
    assert 78 in hand.scheduler.cluster.queries


def test_what_waits_and_is_due_before_it_counts() -> None:
    hand = warm()
    for index in range(8):
        hand.request(30, 100 + index, "m", 100, 4)
    assert reasons(split(hand, 30, "m", 8, 99)) == [], "it is due before the others"
    (refused,) = split(hand, 30, "m", 8, 101, 78)
    assert isinstance(refused, Reject)
    assert refused.request_id == 78


def test_a_piece_that_is_given_up_ends_all_of_its_query_at_once() -> None:
    hand = warm()
    commands = split(hand, 30, "m", 20, 100)
    assert [each for each in commands if isinstance(each, Infer)]
    (lost,) = [each for each in hand.feed(61, WorkerLeft("w0", "gone")) if isinstance(each, Reject)][:1]
    assert lost.request_id == QUERY
    assert "rows have ended" in lost.detail
    assert not hand.scheduler.cluster.queries
    left = [each for each in hand.scheduler.cluster.requests.values() if each.event.query]
    assert left == []


def test_a_model_that_is_removed_ends_its_queries_once() -> None:
    hand = warm()
    split(hand, 30, "m", 20, 200)
    commands = hand.feed(31, ModelRemoved("m"))
    assert [each.request_id for each in commands if isinstance(each, Reject)] == [QUERY]
    assert not hand.scheduler.cluster.queries


@pytest.mark.parametrize("end", [RequestCancelled(QUERY), GatewayLeft(0)])
def test_a_query_is_withdrawn_as_one(end: Event) -> None:
    hand = warm()
    split(hand, 30, "m", 20, 200)
    assert reasons(hand.feed(31, end)) == []
    assert not hand.scheduler.cluster.queries
    assert not hand.scheduler.cluster.queued


def test_a_query_for_an_unknown_model_is_refused_as_one() -> None:
    hand = warm()
    (refused,) = split(hand, 30, "n", 20, 200)
    assert isinstance(refused, Reject)
    assert (refused.request_id, refused.reason) == (QUERY, Reason.UNKNOWN_MODEL)


def test_more_pieces_than_may_wait_are_refused() -> None:
    hand = warm(max_queued_requests_per_model=4)
    (refused,) = split(hand, 30, "m", 20, 2000)
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.OVERLOADED
    assert reasons(split(hand, 30, "m", 16, 2000, 78)) == []


def test_a_query_without_a_deadline_is_run() -> None:
    hand = warm()
    commands, _ = play(hand, 30, split(hand, 30, "m", 12, None))
    assert sum(sum(each.rows) for each in commands if isinstance(each, Infer)) == 12
    assert not hand.scheduler.cluster.queries


def test_a_piece_that_runs_again_after_its_query_has_ended_is_a_request_like_any_other() -> None:
    hand = warm()
    play(hand, 30, split(hand, 30, "m", 8, 200))
    commands, _ = play(hand, 60, hand.feed(60, RequestArrived(9, "m", 4, 200 * MS, query=QUERY)))
    assert [each.request_ids for each in commands if isinstance(each, Infer)] == [(9,)]


# --- steps ---

TWO = (QueryStep("m", 4), QueryStep("n", 4, after=(0,)))


def two(slack: str) -> Hand:
    hand = Hand(spec("m"), spec("n", single_ms=8), query_slack=slack)  # type: ignore[arg-type]
    hand.warm("m")
    hand.warm("n", 30)
    return hand


def test_the_longest_path_is_planned_and_the_step_that_stands_in_the_way_named() -> None:
    hand = two("latest")
    (refused,) = hand.feed(100, QueryArrived(QUERY, 125 * MS, TWO))
    assert isinstance(refused, Reject)
    assert "step 1 (model 'n')" in refused.detail, refused.detail
    assert not hand.feed(100, QueryArrived(78, 140 * MS, TWO))


@pytest.mark.parametrize(("slack", "share"), [("latest", 1.0), ("even", 0.5), ("proportional", 0.33)])
def test_the_first_step_is_due_by_its_share_of_the_slack(slack: str, share: float) -> None:
    hand = two(slack)
    hand.feed(100, QueryArrived(QUERY, 301 * MS, TWO))
    hand.scheduler.handle(100 * MS, RequestArrived(1, "m", 4, 301 * MS, query=QUERY))
    due_ms = (hand.scheduler.cluster.requests[1].due_ns or 0) / MS
    spare_ms = 200 - 10 - 20 - 0.6
    assert due_ms == pytest.approx(110 + share * spare_ms, abs=2)


def test_a_steps_share_begins_when_it_could() -> None:
    hand = two("proportional")
    hand.feed(100, QueryArrived(QUERY, 301 * MS, TWO))
    (busy,) = hand.feed(100, RequestArrived(1, "n", 4, 900 * MS))
    hand.feed(100, RequestArrived(9, "m", 4, 301 * MS, query=QUERY))
    due_ms = (hand.scheduler.cluster.requests[9].due_ns or 0) / MS
    spare_ms = 200 - 20 - 10 - 20 - 0.6
    assert isinstance(busy, Infer)
    assert due_ms == pytest.approx(100 + 20 + 10 + 0.33 * spare_ms, abs=2)


def test_a_step_that_could_not_begin_in_its_share_is_tried_again_in_what_is_left() -> None:
    hand = two("proportional")
    hand.feed(100, QueryArrived(QUERY, 301 * MS, TWO))
    (infer,) = hand.feed(100, RequestArrived(9, "m", 4, 301 * MS, query=QUERY))
    share_ms = (hand.scheduler.cluster.requests[9].due_ns or 0) / MS
    again = hand.end(share_ms + 1, infer, Status.TOO_LATE)
    assert not reasons(again)
    assert [each.request_ids for each in again if isinstance(each, Infer)] == [(9,)]


def test_a_later_step_has_all_that_the_earlier_left() -> None:
    hand = two("even")
    hand.feed(100, QueryArrived(QUERY, 301 * MS, TWO))
    (infer,) = hand.feed(100, RequestArrived(1, "m", 4, 301 * MS, query=QUERY))
    hand.ok(112, infer)
    assert QUERY in hand.scheduler.cluster.queries
    hand.feed(113, RequestArrived(2, "n", 4, 301 * MS, query=QUERY, step=1))
    assert hand.scheduler.cluster.requests[2].due_ns == 300 * MS


def test_a_step_that_has_ended_before_a_new_controller_came_takes_no_time() -> None:
    left = (QueryStep("m", 0), QueryStep("n", 4, after=(0,)))
    assert shape_fault(left, (Piece(2, 4, 1),)) is None
    hand = two("even")
    assert not hand.feed(100, QueryArrived(QUERY, 125 * MS, left))
    (infer,) = hand.feed(100, RequestArrived(2, "n", 4, 125 * MS, query=QUERY, step=1))
    assert hand.scheduler.cluster.requests[2].due_ns == 124 * MS
    hand.ok(121, infer)
    assert QUERY not in hand.scheduler.cluster.queries


def test_slack_is_shared_out_anew_when_a_step_ends() -> None:
    steps = (QueryStep("m", 4), QueryStep("n", 4), QueryStep("n", 4, after=(0, 1)))
    hand = two("even")
    hand.feed(100, QueryArrived(QUERY, 901 * MS, steps))
    hand.scheduler.handle(100 * MS, RequestArrived(1, "m", 4, 901 * MS, query=QUERY))
    for index in range(3):
        hand.scheduler.handle(
            100 * MS, RequestArrived(2 + index, "n", 4, 901 * MS, query=0 if index else QUERY, step=1)
        )
    before_ns = hand.scheduler.cluster.requests[2].due_ns
    hand.scheduler.taken()
    hand.scheduler.handle(101 * MS, RequestCancelled(1))
    ranked = [each for each in hand.scheduler.taken() if isinstance(each, Ranked)]
    hand.scheduler.validate()
    assert [each.request_id for each in ranked] == [2]
    assert hand.scheduler.cluster.requests[2].due_ns != before_ns


def test_slack_is_shared_out_anew_when_a_step_falls_away() -> None:
    steps = (QueryStep("m", 4), QueryStep("n", 4), QueryStep("n", 4, after=(1,)))
    hand = two("latest")
    hand.feed(100, QueryArrived(QUERY, 901 * MS, steps))
    hand.scheduler.handle(100 * MS, RequestArrived(1, "m", 4, 901 * MS, query=QUERY))
    for index in range(3):
        query = 0 if index else QUERY
        hand.scheduler.handle(100 * MS, RequestArrived(2 + index, "n", 4, 901 * MS, query=query, step=1))
    assert (hand.scheduler.cluster.requests[2].due_ns or 0) < 890 * MS
    hand.scheduler.taken()
    fallen = (QueryStep("m", 0), QueryStep("n", 0), QueryStep("n", 0, after=(1,)))
    hand.scheduler.handle(101 * MS, StepsKnown(QUERY, fallen))
    ranked = [each for each in hand.scheduler.taken() if isinstance(each, Ranked)]
    hand.scheduler.validate()
    assert [(each.request_id, each.due_ns) for each in ranked] == [(2, 900 * MS)]
    assert [step.rows for step in hand.scheduler.cluster.queries[QUERY].event.steps] == [4, 4, 0]


def test_a_query_whose_last_step_falls_away_is_over() -> None:
    steps = (QueryStep("m", 4), QueryStep("n", 4, after=(0,), certain=False))
    hand = two("latest")
    hand.feed(100, QueryArrived(QUERY, 901 * MS, steps))
    (infer,) = hand.feed(100, RequestArrived(1, "m", 4, 901 * MS, query=QUERY))
    hand.ok(112, infer)
    assert QUERY in hand.scheduler.cluster.queries
    hand.feed(113, StepsKnown(QUERY, (QueryStep("m", 0), QueryStep("n", 0, after=(0,)))))
    assert QUERY not in hand.scheduler.cluster.queries


def test_a_step_known_to_come_is_waited_for() -> None:
    steps = (QueryStep("m", 4), QueryStep("n", 4, after=(0,), certain=False))
    hand = two("latest")
    hand.feed(100, QueryArrived(QUERY, 901 * MS, steps))
    hand.scheduler.handle(100 * MS, RequestArrived(1, "m", 4, 901 * MS, query=QUERY))
    assert hand.scheduler.cluster.requests[1].due_ns == 900 * MS
    hand.scheduler.handle(101 * MS, StepsKnown(78, steps))
    others = QueryStep("o", 4), QueryStep("n", 9, after=(0,))
    hand.scheduler.handle(101 * MS, StepsKnown(QUERY, others))
    assert hand.scheduler.cluster.queries[QUERY].event.steps == steps, "those were of another query"
    surely = QueryStep("m", 4), QueryStep("n", 4, after=(0,))
    hand.scheduler.handle(101 * MS, StepsKnown(QUERY, surely))
    assert (hand.scheduler.cluster.requests[1].due_ns or 0) < 880 * MS


def test_a_later_steps_model_is_loaded_ahead() -> None:
    hand = Hand(spec("m"), spec("n"))
    hand.warm("m")
    commands = hand.feed(100, QueryArrived(QUERY, 300 * MS, TWO))
    assert [type(each).__name__ for each in commands] == ["Load"]


def test_a_model_under_a_condition_is_loaded_ahead_once_a_row_is_to_be_expected() -> None:
    hand = Hand(spec("m"), spec("n"))
    hand.warm("m")
    steps = QueryStep("m", 1), QueryStep("n", 1, after=(0,), certain=False, share=0.4)
    came = [hand.feed(100 + index, QueryArrived(QUERY + index, None, steps)) for index in range(3)]
    assert [[type(each).__name__ for each in commands] for commands in came] == [[], [], ["Load"]]


def test_a_soft_step_falls_away_alone() -> None:
    steps = (QueryStep("m", 4), QueryStep("n", 4, required=False))
    hand = two("latest")
    hand.feed(100, QueryArrived(QUERY, 300 * MS, steps))
    hand.feed(100, RequestArrived(1, "m", 4, 300 * MS, query=QUERY))
    hand.feed(100, RequestArrived(2, "n", 4, 300 * MS, query=QUERY, step=1))
    commands = hand.feed(101, ModelRemoved("n"))
    rejected = [each.request_id for each in commands if isinstance(each, Reject)]
    assert rejected in ([2], [])
    assert QUERY in hand.scheduler.cluster.queries


# --- whatever comes, in whatever order ---


def _some_event(rng: random.Random, now_ns: int, count: int) -> Event:
    gateway = rng.randrange(2)
    query_id = request_id(gateway, rng.randrange(1, 12))
    model = rng.choice(["m", "m", "n", "o"])
    deadline_ns = rng.choice([None, now_ns + rng.randrange(5, 300) * MS])
    drawn = rng.random()
    if drawn < 0.3:
        steps: tuple[QueryStep, ...] = (QueryStep(model, rng.randrange(1, 40)),)
        if rng.random() < 0.4:
            steps += (QueryStep("n", rng.randrange(1, 20), after=(0,), required=rng.random() < 0.7),)
        elif rng.random() < 0.4:
            least = rng.choice([0.0, 0.7])
            steps = (
                msgspec.structs.replace(steps[0], members=(model, "n"), scores=(0.9, 0.5), at_least=least),
            )
        return QueryArrived(query_id, deadline_ns, steps, priority=rng.randrange(3))
    if drawn < 0.4:
        known = QueryStep(model, rng.randrange(5)), QueryStep("n", rng.randrange(5), after=(0,))
        return StepsKnown(query_id, known[: rng.randrange(1, 3)])
    if drawn < 0.85:
        rows, step, piece_id = rng.randrange(0, 6), rng.randrange(3), request_id(gateway, 100 + count)
        return RequestArrived(piece_id, model, rows, deadline_ns, rng.randrange(2), query=query_id, step=step)
    if drawn < 0.95:
        return RequestCancelled(rng.choice([query_id, request_id(gateway, 100 + rng.randrange(count + 1))]))
    ends: list[Event] = [GatewayLeft(rng.randrange(2)), ModelRemoved("o"), WorkerLeft("w1", "gone")]
    return rng.choice(ends)


@seeded(40)
def test_any_sequence_of_events_keeps_the_state_valid_and_is_folded_alike(seed: int) -> None:
    rng = random.Random(seed)
    policy = ("mainspring", "clockwork", "edf")[seed % 3]
    hand = Hand(spec("m"), spec("n"), spec("o"), workers=2, policy=policy)  # type: ignore[arg-type]
    config = hand.scheduler.config
    entries: list[tuple[int, Event | Command]] = []
    replicas = [Cluster(config.estimate_rank, hand.scheduler.cluster.dispatch_delay_ns, MS) for _ in range(2)]
    history = hand.scheduler.cluster.history
    assert history is not None
    entries += history
    outstanding: list[Infer] = []
    now_ms = 0.0
    for count in range(120):
        now_ms += rng.random() * 8
        seen = len(history)
        if outstanding and rng.random() < 0.4:
            action = outstanding.pop(rng.randrange(len(outstanding)))
            if hand.scheduler.cluster.workers.get(action.worker) is None:
                continue
            status = rng.choice([Status.OK, Status.OK, Status.OK, Status.TOO_LATE, Status.ENGINE_ERROR])
            commands = hand.end(now_ms, action, status)
        else:
            commands = hand.feed(now_ms, _some_event(rng, int(now_ms * MS), count))
        outstanding += [each for each in commands if isinstance(each, Infer)]
        for each in commands:
            if not isinstance(each, Infer | Reject) and each.__class__.__name__ in ("Load", "Unload"):
                outstanding += [more for more in hand.ok(now_ms, each) if isinstance(more, Infer)]
        entries += list(history)[seen:]
    for at_ns, entry in entries:
        apply(replicas[0], at_ns, entry)
        follow(replicas[1], at_ns, entry)
    for replica in replicas:
        settle(replica)
        validate(replica)
        assert described(replica)["queries"] == described(hand.scheduler.cluster)["queries"]
        assert described(replica)["requests"] == described(hand.scheduler.cluster)["requests"]


def test_a_shape_that_can_t_be_is_named() -> None:
    assert shape_fault(TWO, (Piece(1, 4), Piece(2, 4, 1))) is None
    assert "1 to 64 steps" in (shape_fault((), ()) or "")
    assert "1 to 64 steps" in (shape_fault((QueryStep("m", 1),) * (MOST_STEPS + 1), ()) or "")
    assert "waits for" in (shape_fault((QueryStep("m", 1, after=(0,)),), ()) or "")
    assert "a piece is of none" in (shape_fault(TWO, (Piece(1, 4, 2),)) or "")
