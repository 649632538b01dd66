"""A picture of the scheduler, made in parts while it goes on, and what happens meanwhile tell everything."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from mainspring.cluster.picture import PLACEMENTS_AT_ONCE, Part
from mainspring.messages.actions import Infer, Load, Prepare, Result
from mainspring.messages.codes import Status
from mainspring.messages.commands import Command
from mainspring.messages.events import (
    Event,
    ModelAdded,
    ModelRemoved,
    RequestArrived,
    RequestCancelled,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.observing import Estimated, Holding
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.run import simulate
from mainspring.telemetry.log import SegmentHeader
from tests.cluster.replica import Replica, stands
from tests.scheduler.hand import MS, Hand, spec
from tests.telemetry.recordings import EVENTFUL

Stream = list[tuple[int, Event | Command]]


@pytest.fixture(scope="module")
def stream() -> Stream:
    """Cold starts, evictions, rejections, a worker that is lost and comes back with nothing."""
    entries: Stream = []
    simulate(EVENTFUL, analyse=False, record=lambda now_ns, entry: entries.append((now_ns, entry)))
    return [each for each in entries if not isinstance(each[1], SegmentHeader)]


class Replay:
    """The recorded run, decided again by a scheduler that a picture is taken of."""

    def __init__(self, stream: Stream, begin: int, seed: int) -> None:
        self.scheduler = Scheduler(EVENTFUL.scheduler)
        self.late, self.early = Replica(), Replica()
        self.begin, self.randomly = begin, random.Random(seed)
        self.told: Iterator[Part] | None = None
        self.slices = 0
        self.whole = False
        for index, (now_ns, entry) in enumerate(stream):
            self.early.take(entry)
            if self.told is not None:
                self.late.take(entry)
            if isinstance(entry, Wakeup) or not isinstance(entry, Event):
                if isinstance(entry, Wakeup):
                    self.scheduler.schedule(now_ns)
                last = index + 1 == len(stream) or isinstance(stream[index + 1][1], Event)
                if last:
                    self.between_turns(index)
            else:
                self.scheduler.handle(now_ns, entry)

    def between_turns(self, index: int) -> None:
        if index < self.begin or self.whole:
            return
        if self.told is None:
            self.told = self.scheduler.snapshot()
        self.slices += 1
        for _ in range(self.randomly.randrange(1, 4)):
            part = next(self.told, None)
            if part is None:
                self.whole = True
                return
            for _, entry in part:
                self.late.take(entry)


@pytest.mark.parametrize("seed", range(12))
def test_who_comes_late_knows_what_who_saw_it_all_knows(stream: Stream, seed: int) -> None:
    begin = random.Random(seed).randrange(len(stream) * 9 // 10)
    replay = Replay(stream, begin, seed)
    assert replay.whole
    assert replay.slices > 1, "the picture was to be made while things go on"
    assert replay.late.stands() == replay.early.stands()
    assert replay.late.stands() == stands(replay.scheduler._state.cluster)


def told(scheduler: Scheduler) -> list[object]:
    return [entry for part in scheduler.snapshot() for _, entry in part]


def test_a_model_that_a_worker_could_not_prepare_is_told_of_with_why() -> None:
    hand = Hand(spec("a"), spec("b"))
    (prepare,) = [each for each in hand.feed(1, ModelAdded(spec("c"))) if isinstance(each, Prepare)]
    hand.feed(2, Result(prepare.action_id, "w0", Status.ENGINE_ERROR, 1, 2, detail="no such file"))
    (holding,) = [entry for entry in told(hand.scheduler) if isinstance(entry, Holding)]
    assert holding == Holding("w0", ("a", "b"), {}, {"c": "no such file"})


def test_a_cancelled_request_that_runs_is_told_of_as_cancelled() -> None:
    hand = Hand(spec("a"))
    commands = hand.request(10, 1, "a", 1000)
    (load,) = [each for each in commands if isinstance(each, Load)]
    (infer,) = [each for each in hand.ok(20, load) if isinstance(each, Infer)]
    hand.feed(21, RequestCancelled(1))
    replica = Replica()
    for entry in told(hand.scheduler):
        replica.take(entry)
    assert replica.stands() == stands(hand.scheduler._state.cluster)
    assert infer.action_id in replica.actions
    assert 1 not in replica.requests


def test_requests_keep_their_arrival_deadline_and_priority() -> None:
    hand = Hand(spec("a"), workers=0)
    # It waits for the model to be prepared.
    hand.feed(6, WorkerJoined("w0", "gpu", 8))
    event = RequestArrived(8, "a", 2, None, 3)
    hand.feed(7, event)
    (first, *_) = hand.scheduler.snapshot()
    assert first == [(7 * MS, event)]


def test_estimates_are_told_once_for_all_models_that_share_them() -> None:
    hand = Hand(*(spec(name) for name in "abc"), workers=2)
    shared = msgspec.structs.replace(spec("d"), executable=spec("a").executable)
    hand.feed(1, ModelAdded(shared))
    estimated = [entry for entry in told(hand.scheduler) if isinstance(entry, Estimated)]
    assert [each.model for each in estimated] == ["a", "b", "c"]
    assert estimated[0] == Estimated("gpu", "a", (4 * MS, 6 * MS, 10 * MS), (0, 0, 0), 8 * MS)


def test_many_models_are_told_of_in_parts() -> None:
    hand = Hand(*(spec(f"m{index}") for index in range(2 * PLACEMENTS_AT_ONCE + 1)))
    holdings = [entry for entry in told(hand.scheduler) if isinstance(entry, Holding)]
    assert [len(each.prepared) for each in holdings] == [PLACEMENTS_AT_ONCE, PLACEMENTS_AT_ONCE, 1]


def test_what_comes_and_goes_while_the_picture_is_made_is_passed_over() -> None:
    hand = Hand(spec("a"), spec("b"), workers=2)
    parts = hand.scheduler.snapshot()
    replica = Replica()
    for _, entry in next(parts):
        replica.take(entry)
    for event in (WorkerLeft("w1", "killed"), ModelRemoved("b"), ModelAdded(spec("c"))):
        replica.take(event)
        for command in hand.feed(1, event):
            replica.take(command)
    for part in parts:
        for _, entry in part:
            replica.take(entry)
    assert replica.stands() == stands(hand.scheduler._state.cluster)
