"""Kinds of devices that come and go are worked off in parts, and it comes to the same as all at once.

Two schedulers play the same history, one of which has all models catch up at each change. Models share
executables and sizes of weights with unlike profiles, so that it matters which of them an estimate begins
with; some have buckets, or artifacts for unlike hosts. The first scheduler is asked questions that are in no
log.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.cluster.apply import settle
from mainspring.cluster.follow import follow
from mainspring.cluster.models import Model
from mainspring.cluster.snapshot import Part, snapshot
from mainspring.cluster.state import Cluster
from mainspring.cluster.validate import validate
from mainspring.messages.actions import Command, Infer, Load, Open, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.events import (
    Event,
    ModelAdded,
    ModelRemoved,
    RequestArrived,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from tests.cluster.described import described
from tests.cluster.test_apply import reader
from tests.cluster.test_device_kinds import ordered
from tests.scheduler.versions import DEVICES, MODELS, MS, version

WORKERS, PAGES = 4, 6
Action = Infer | Load | Open | Prepare | Release | Unload
Step = tuple[str, int, int]


class Played:
    """A scheduler, and those who follow it."""

    def __init__(self, at_once: int) -> None:
        self.scheduler = Scheduler(SchedulerConfig(policy="mainspring", response_margin_ms=1.0))
        self.scheduler.cluster.device_kinds.at_once = at_once
        self.told: list[Command] = []
        self.readers = [Reader(self.scheduler, iter(()))]

    def handle(self, now_ns: int, event: Event) -> None:
        self.scheduler.handle(now_ns, event)
        self._tell(now_ns, event, *self.scheduler.taken())

    def schedule(self, now_ns: int) -> None:
        self._tell(now_ns, *self.scheduler.schedule(now_ns))

    def _tell(self, now_ns: int, *entries: Event | Command) -> None:
        self.told += [each for each in entries if not isinstance(each, Event)]
        for late in self.readers:
            for each in entries:
                follow(late.cluster, now_ns, each)


class Reader:
    """One who gets a snapshot part by part, and everything that happens."""

    def __init__(self, scheduler: Scheduler, parts: Iterator[Part]) -> None:
        self.cluster = reader(scheduler.config)
        self._parts = parts
        self.whole = False

    def go_on(self, now_ns: int, parts: int) -> None:
        for _ in range(parts):
            part = next(self._parts, None)
            if part is None:
                self.whole = True
                return
            for entry in part:
                follow(self.cluster, now_ns, entry)


class Compared:
    """The two schedulers, one a part at a time and one all at once."""

    def __init__(self, at_once: int) -> None:
        self.now_ns = 0
        self.parted, self.whole = Played(at_once), Played(0)
        self._outstanding: dict[int, Action] = {}
        self._requests = 0

    def step(self, what: str, one: int, other: int) -> None:
        self.now_ns += 1
        match what:
            case "join":
                self._join(one % WORKERS, DEVICES[other % len(DEVICES)], one % 2 == 1)
            case "leave":
                self._feed(WorkerLeft(f"w{one % WORKERS}", "gone"))
            case "add":
                self._feed(ModelAdded(version(one % MODELS, other)))
            case "remove":
                self._feed(ModelRemoved(f"m{one % MODELS}"))
            case "request":
                self._request(one % MODELS, other)
            case "end":
                self._end(one, other)
            case "wait":
                self.now_ns += (1 + one) * 10 * MS
                self._feed(Wakeup())
            case "schedule":
                self._schedule()
            case "ask":
                self._ask(one, other)
            case "read":
                self._read(one, other)
        validate_undisturbed(self.parted.scheduler)

    def _feed(self, event: Event) -> None:
        for each in (self.parted, self.whole):
            each.handle(self.now_ns, event)
        self._compare_commands()

    def _schedule(self) -> None:
        for each in (self.parted, self.whole):
            each.schedule(self.now_ns)
        self._compare_commands()

    def _compare_commands(self) -> None:
        assert self.parted.told == self.whole.told
        assert self.parted.scheduler.next_wakeup_ns() == self.whole.scheduler.next_wakeup_ns()
        for command in self.whole.told:
            if isinstance(command, Action):
                self._outstanding[command.action_id] = command
        self.parted.told.clear()
        self.whole.told.clear()

    def _join(self, number: int, device: tuple[str, tuple[str, ...]], prepared: bool) -> None:
        served = self.whole.scheduler.cluster.models.values()
        has = {each.name: each.spec.artifact for each in served} if prepared else {}
        self._feed(WorkerJoined(f"w{number}", device[0], PAGES, has, targets=device[1]))
        workers = self.whole.scheduler.cluster.workers
        self._outstanding = {
            number: each for number, each in self._outstanding.items() if each.worker in workers
        }

    def _request(self, number: int, other: int) -> None:
        known = self.whole.scheduler.cluster.models.get(f"m{number}")
        sizes = () if known is None or not known.buckets else (1 + other % 4,)
        self._requests += 1
        deadline_ns = None if other == 5 else self.now_ns + (15 + 20 * other) * MS
        self._feed(RequestArrived(self._requests, f"m{number}", 1 + other % 2, deadline_ns, sizes=sizes))

    def _end(self, one: int, other: int) -> None:
        if not self._outstanding:
            return
        number = sorted(self._outstanding)[one % len(self._outstanding)]
        action = self._outstanding.pop(number)
        took_ns = getattr(action, "predicted_duration_ns", MS) * (1 + other) // 2
        begin_ns = max(self.now_ns, getattr(action, "predicted_begin_ns", 0))
        self.now_ns = begin_ns + took_ns
        status = Status.OK if other < 5 else Status.ENGINE_ERROR
        self._feed(Result(number, action.worker, status, begin_ns, self.now_ns, took_ns, ""))

    def _ask(self, one: int, other: int) -> None:
        """Look at what no log tells that anyone has looked at."""
        scheduler = self.parted.scheduler
        known = scheduler.cluster.models.get(f"m{one % MODELS}")
        if other == 0:
            scheduler.status()
        elif known is not None:
            assert_knows(scheduler.cluster, known)

    def _read(self, one: int, other: int) -> None:
        if other < 2 and len(self.parted.readers) < 3:
            for each in (self.parted, self.whole):
                each.readers.append(Reader(each.scheduler, snapshot(each.scheduler.cluster)))
        for each in (self.parted, self.whole):
            for late in each.readers:
                late.go_on(self.now_ns, 1 + 4 * one)

    def end(self) -> None:
        for each in (self.parted, self.whole):
            each.readers.append(Reader(each.scheduler, snapshot(each.scheduler.cluster)))
            for late in each.readers:
                late.go_on(self.now_ns, 100_000)
                settle(late.cluster)
                validate(late.cluster)
        expected = described(self.whole.scheduler.cluster)
        for late in (*self.parted.readers, *self.whole.readers):
            assert described(late.cluster) == expected
        assert ordered(self.parted.readers[0].cluster) == ordered(self.whole.scheduler.cluster)
        assert described(self.parted.scheduler.cluster) == expected
        assert ordered(self.parted.scheduler.cluster) == ordered(self.whole.scheduler.cluster)


def assert_knows(cluster: Cluster, known: Model) -> None:
    """A model has estimates on every kind of device that is there."""
    for each in known.by_bucket:
        assert each.infer_times.keys() == each.load_times.keys() == cluster.of_kind.keys()


def validate_undisturbed(scheduler: Scheduler) -> None:
    """Validate a scheduler, by which no model may catch up."""
    seen = [each.seen for each in scheduler.cluster.models.values()]
    scheduler.validate()
    assert [each.seen for each in scheduler.cluster.models.values()] == seen


def play(steps: list[Step], at_once: int) -> None:
    compared = Compared(at_once)
    for number in range(MODELS):
        compared.step("add", number, (number * 2 + 1) % 6)
    for step in steps:
        compared.step(*step)
    compared.end()


WHAT = ["join"] * 4 + ["leave"] * 3 + ["add"] * 3 + ["remove", "wait", "ask", "read"]
WHAT += ["request"] * 5 + ["end"] * 6 + ["schedule"] * 4
STEPS = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 7), st.integers(0, 5)), max_size=80)


@given(STEPS, st.sampled_from([1, 3]))
@settings(max_examples=60, deadline=None)
def test_it_comes_to_the_same_as_all_at_once(steps: list[Step], at_once: int) -> None:
    play(steps, at_once)
