"""Models with symbols: a queue and estimates for each bucket of shapes, and one residency for all."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.cluster.execution import learn_from_unanswered
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Command, Infer, Load, Prepare, Release, Result, Unanswered, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import (
    ModelAdded,
    ModelRemoved,
    RequestArrived,
    Resident,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.model import Artifact, ModelSpec, Symbol
from mainspring.scheduler.policies.registry import policy_names
from tests.scheduler.hand import MS, Hand, reasons, spec

POLICIES = policy_names()


def shaped(name: str = "m", version: str = "1") -> ModelSpec:
    """Return a model whose INFERs take 1 ms a row up to 16 and 8 ms up to 128."""
    model = spec(name, version=version)
    load_ns = model.profiles["gpu"].load_ns
    durations = {"16": {1: MS, 2: 2 * MS, 4: 3 * MS}, "128": {1: 8 * MS, 2: 12 * MS, 4: 20 * MS}}
    profile = msgspec.structs.replace(model.profiles["gpu"], infer_ns=durations["128"], shaped=durations)
    symbols = (Symbol("seq", (16, 128)),)
    assert profile.load_ns == load_ns
    return msgspec.structs.replace(model, symbols=symbols, profiles={"gpu": profile})


def ask(
    hand: Hand, now_ms: float, id_: int, length: int, slo_ms: float | None = 100, rows: int = 1
) -> list[Command]:
    deadline_ns = None if slo_ms is None else int((now_ms + slo_ms) * MS)
    return hand.feed(now_ms, RequestArrived(id_, "m", rows, deadline_ns, sizes=(length,)))


def sent(commands: list[Command], kind: type) -> list[Command]:
    return [command for command in commands if isinstance(command, kind)]


def infers(commands: list[Command]) -> list[Infer]:
    return [command for command in commands if isinstance(command, Infer)]


def loaded(model: ModelSpec | None = None) -> Hand:
    """Return a cluster that has the model, by default `shaped`, resident and idle, from 20 ms on."""
    hand = Hand(model or shaped())
    (load,) = sent(ask(hand, 0, 1_000, 10, 200), Load)
    (infer,) = infers(hand.ok(9, load))
    hand.ok(11, infer)
    return hand


@pytest.mark.parametrize("policy", POLICIES)
def test_one_load_serves_all_buckets(policy: str) -> None:
    hand = Hand(shaped(), policy=policy)  # type: ignore[arg-type]
    first = ask(hand, 0, 1, 10, 200) + ask(hand, 0, 2, 100, 200)
    (load,) = sent(first, Load)
    assert isinstance(load, Load)
    assert load.model == "m"
    pending = infers(hand.ok(9, load))
    found: list[Infer] = []
    for now_ms in range(10, 260):
        found += pending
        for infer in [*pending]:
            if infer.predicted_begin_ns + infer.predicted_duration_ns <= now_ms * MS:
                pending.remove(infer)
                pending += infers(hand.ok(now_ms, infer))
        pending += infers(hand.feed(now_ms, Wakeup()))
    assert {each.sizes for each in found} == {(10,), (100,)}
    assert {each.model for each in found} == {"m"}


def test_each_bucket_has_its_own_estimates() -> None:
    hand = loaded()
    (short,) = infers(ask(hand, 20, 1, 16))
    (long,) = infers(ask(hand, 20.1, 2, 128)) or infers(hand.ok(21.5, short))
    assert (short.predicted_duration_ns, long.predicted_duration_ns) == (MS, 8 * MS)
    assert (short.sizes, long.sizes) == ((16,), (128,))


def cluster_of(hand: Hand) -> Cluster:
    return hand.scheduler._state.cluster


def finished(hand: Hand, now_ms: float, id_: int, length: int, took_ms: float) -> Infer:
    """Let a request be answered after its INFER has run for a time; return that INFER."""
    (infer,) = infers(ask(hand, now_ms, id_, length))
    end_ns = int(now_ms * MS) + int(took_ms * MS)
    result = Result(infer.action_id, infer.worker, Status.OK, int(now_ms * MS), end_ns)
    hand.feed(end_ns / MS, result)
    return infer


@pytest.mark.parametrize(("length", "predicted_ms"), [(17, 1.0625), (72, 4.5), (100, 6.25), (128, 8)])
def test_an_infer_is_predicted_by_its_size_within_the_bucket(length: int, predicted_ms: float) -> None:
    hand = loaded()
    (infer,) = infers(ask(hand, 20, 1, length))
    assert infer.predicted_duration_ns == predicted_ms * MS
    assert cluster_of(hand).workers["w0"].exec.free_ns == infer.predicted_begin_ns + predicted_ms * MS
    assert infer.latest_ns <= 119 * MS - infer.predicted_duration_ns


@pytest.mark.parametrize("lengths", [[100], [20, 128, 64, 33]], ids=["of one size", "mixed"])
def test_what_is_learnt_holds_for_every_size_of_the_bucket(lengths: list[int]) -> None:
    """A device that takes 1.5 times as long as its profile says."""
    hand = loaded()
    for index in range(10):
        length = lengths[index % len(lengths)]
        finished(hand, 20 + 20 * index, index + 1, length, 1.5 * length / 16)
    for index, length in enumerate((17, 33, 50, 100, 128)):
        took_ms = 1.5 * length / 16
        predicted_ns = finished(hand, 300 + 20 * index, 50 + index, length, took_ms).predicted_duration_ns
        assert abs(predicted_ns - took_ms * MS) <= 2


def test_a_size_that_takes_longer_than_its_part_leaves_no_other_underestimated() -> None:
    """A device to which the size makes no difference, whatever the profile says."""
    hand = loaded()
    for index in range(12):
        finished(hand, 20 + 20 * index, index + 1, (64, 128)[index % 2], 8)
    for index, length in enumerate((64, 128)):
        infer = finished(hand, 300 + 20 * index, 50 + index, length, 8)
        assert 8 * MS <= infer.predicted_duration_ns <= 16 * MS


def test_a_wait_in_vain_counts_for_the_bucket_by_the_size_that_was_waited_for() -> None:
    hand = loaded()
    cluster = cluster_of(hand)
    (infer,) = infers(ask(hand, 20, 1, 64))
    for now_ms in (60, 120):
        unanswered = Unanswered("m", 1, 30 * MS, infer.sizes)
        learn_from_unanswered(cluster, now_ms * MS, cluster.workers["w0"], unanswered)
    assert cluster.models["m"].buckets[128,].infer_times["gpu"].ns[0] == 60 * MS


def test_an_execution_has_one_shape() -> None:
    hand = loaded()
    (running,) = infers(ask(hand, 20, 1, 100))
    waiting = [ask(hand, 20.1, 2 + index, length) for index, length in enumerate((5, 6, 5, 6))]
    assert not any(infers(commands) for commands in waiting)
    batches = infers(hand.ok(28, running))
    while len(batches) < 2:
        batches += infers(hand.ok(30, batches[-1]))
    assert [(each.sizes, each.request_ids) for each in batches[:2]] == [((5,), (2, 4)), ((6,), (3, 5))]
    assert batches[0].batch_size == 2


def test_requests_of_a_bucket_share_an_execution_where_they_may_be_padded() -> None:
    hand = loaded(msgspec.structs.replace(shaped(), pad={"x": 0.0}))
    (running,) = infers(ask(hand, 20, 1, 100))
    for index, length in enumerate((5, 16, 20)):
        assert not infers(ask(hand, 20.1, 2 + index, length))
    found = infers(hand.ok(28, running))
    while len(found) < 2:
        found += infers(hand.ok(40, found[-1]))
    (padded,) = [each for each in found if len(each.request_ids) > 1]
    (alone,) = [each for each in found if each is not padded]
    assert (padded.request_ids, padded.batch_size) == ((2, 3), 2)
    assert (padded.sizes, padded.request_sizes) == ((16,), ((5,), (16,)))
    assert padded.predicted_duration_ns == 2 * MS
    assert (alone.sizes, alone.request_sizes) == ((20,), ()), "another bucket's"


def test_what_runs_at_its_ceilings_alone_takes_as_long_whatever_the_sizes() -> None:
    hand = loaded(msgspec.structs.replace(shaped(), pad={"x": 0.0}, at_ceilings=True))
    found = infers(ask(hand, 20, 1, 17))
    for index, length in enumerate((40, 128, 2, 16)):
        assert not infers(ask(hand, 20.1, 2 + index, length))
    found += infers(hand.ok(28, found[0]))
    while len(found) < 3:
        found += infers(hand.ok(60, found[-1]))
    own = {each.request_ids: (each.sizes, each.request_sizes) for each in found}
    assert own == {
        (1,): ((128,), ((17,),)),
        (2, 3): ((128,), ((40,), (128,))),
        (4, 5): ((16,), ((2,), (16,))),
    }
    durations = {each.request_ids: each.predicted_duration_ns for each in found}
    assert durations == {(1,): 8 * MS, (2, 3): 12 * MS, (4, 5): 2 * MS}


def test_a_request_of_its_buckets_ceilings_is_not_padded() -> None:
    hand = loaded(msgspec.structs.replace(shaped(), pad={"x": 0.0}, at_ceilings=True))
    (full,) = infers(ask(hand, 20, 1, 128))
    assert (full.sizes, full.request_sizes) == ((128,), ())


def test_what_runs_at_its_ceilings_learns_what_was_measured() -> None:
    hand = loaded(msgspec.structs.replace(shaped(), pad={"x": 0.0}, at_ceilings=True))
    (short,) = infers(ask(hand, 20, 1, 20))
    hand.end(33, msgspec.structs.replace(short, predicted_duration_ns=13 * MS), Status.OK)
    (after,) = infers(ask(hand, 40, 2, 128))
    assert after.predicted_duration_ns == 13 * MS, "of a short request as of one at the ceilings"


def test_a_deadline_is_judged_by_the_bucket() -> None:
    hand = loaded()
    assert reasons(ask(hand, 20, 1, 100, slo_ms=8)) == [Reason.DEADLINE_UNREACHABLE]
    assert infers(ask(hand, 20, 2, 10, slo_ms=8))


@pytest.mark.parametrize("sizes", [(0,), (129,), (), (4, 4)])
def test_sizes_that_the_model_does_not_take_are_refused(sizes: tuple[int, ...]) -> None:
    hand = loaded()
    commands = hand.feed(20, RequestArrived(1, "m", 1, 200 * MS, sizes=sizes))
    assert reasons(commands) == [Reason.BAD_INPUT]


def test_sizes_for_a_model_without_symbols_are_refused() -> None:
    hand = Hand(spec("m"))
    assert reasons(hand.feed(1, RequestArrived(1, "m", 1, 200 * MS, sizes=(4,)))) == [Reason.BAD_INPUT]


def test_a_model_in_use_in_any_bucket_is_not_evicted() -> None:
    hand = Hand(shaped(), spec("other"), pages=1)
    (load,) = sent(ask(hand, 0, 1, 100, 200), Load)
    (infer,) = infers(hand.ok(9, load))
    assert not sent(hand.request(10, 2, "other", 190), Unload)
    assert sent(hand.ok(17.5, infer), Unload)


def test_removing_a_model_rejects_what_waits_in_every_bucket() -> None:
    hand = Hand(shaped())
    ask(hand, 0, 1, 10, 200)
    ask(hand, 0, 2, 100, 200)
    ask(hand, 0, 3, 100, None)
    commands = hand.feed(1, ModelRemoved("m"))
    assert reasons(commands) == [Reason.MODEL_REMOVED] * 3


def test_a_replacement_counts_on_and_prepares_again() -> None:
    hand = loaded()
    counts = hand.scheduler.cluster.models["m"].counts
    assert counts.finished == 1
    commands = hand.feed(30, ModelAdded(shaped(version="2")))
    model = hand.scheduler.cluster.models["m"]
    assert [bucket.counts is counts for bucket in (model, *model.buckets.values())] == [True] * 3
    assert [bucket.name for bucket in model.buckets.values()] == ["m@16", "m@128"]
    for now_ms in (31, 32, 33):
        for each in sent(commands, Unload) + sent(commands, Release) + sent(commands, Prepare):
            commands = hand.ok(now_ms, each)
    (load,) = sent(ask(hand, 40, 9, 100, 200), Load)
    assert infers(hand.ok(49, load))


def test_best_effort_requests_wait_by_bucket() -> None:
    hand = loaded()
    (first,) = infers(ask(hand, 20, 1, 100, None))
    ask(hand, 20.1, 2, 100, None)
    ask(hand, 20.2, 3, 10, None)
    (second,) = infers(hand.ok(29, first))
    assert second.request_ids == (2,)
    (third,) = infers(hand.ok(38, second))
    assert (third.request_ids, third.sizes) == ((3,), (10,))


def test_what_waits_without_a_deadline_runs_on_a_worker_that_comes_back_with_the_weights() -> None:
    model = shaped()
    hand = Hand(model, workers=2)
    (load,) = sent(ask(hand, 0, 1, 10, None), Load)
    assert isinstance(load, Load)
    (infer,) = infers(hand.ok(9, load))
    hand.feed(10, WorkerLeft(load.worker, "its session was lost"))
    has = Artifact(model.weights_hash, model.executable, model.batch_sizes)
    back = WorkerJoined(load.worker, "gpu", 8, {"m": has}, (Resident("m", has, load.pages),))
    (again,) = infers(hand.feed(11, back))
    assert again.request_ids == infer.request_ids
