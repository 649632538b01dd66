"""The timers: in order whatever is swept, and bounded."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.cluster.models import Model
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Infer
from mainspring.messages.model import ModelSpec
from mainspring.scheduler.alarms import SWEPT_FROM, Alarm, Alarms, WorkerTimers
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.state import SchedulerState
from tests.cluster import made
from tests.scheduler.hand import Hand, spec

MODEL = Model(ModelSpec("m", "m", "g", (1,), 0, (1,), (), (), {}), 1)


def request(id_: int) -> Request:
    queued = made.request(id_, MODEL, 1, 0, 100)
    queued.place = Place.QUEUED
    return queued


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 6),
)
def test_sweeping_changes_nothing_that_is_rung(steps: list[tuple[int, int, bool]], times: int) -> None:
    """Against a list that is sorted in the end. A step: when, about a request or not, whether one leaves."""
    alarms = Alarms()
    expected: list[tuple[int, int, Alarm, Request | None]] = []
    queued: list[Request] = []
    for count, (when_ns, kind, leaves) in enumerate(steps * times):
        if kind:
            queued.append(request(count))
            alarms.set_expiry(when_ns, queued[-1], len(queued))
            expected.append((when_ns, count, Alarm.EXPIRE, queued[-1]))
        else:
            alarms.set(when_ns, Alarm.RETRY)
            expected.append((when_ns, count, Alarm.RETRY, None))
        if leaves and queued:
            queued.pop().place = Place.GONE
    alive = [e for e in sorted(expected, key=lambda e: e[:2]) if e[3] is None or e[3].place is Place.QUEUED]
    for when_ns, _, alarm, subject in alive:
        alarms.drop_pointless()
        assert alarms.next_ns() == when_ns
        assert alarms.take(when_ns - 1) is None
        assert alarms.take(when_ns) == (alarm, subject)
    alarms.drop_pointless()
    assert alarms.next_ns() is None


def test_alarms_of_finished_requests_do_not_pile_up() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    for id_ in range(1, 1_001):
        now_ms = 100 + 10 * id_
        (infer,) = hand.request(now_ms, id_, "m", 3_600_000)
        assert isinstance(infer, Infer)
        hand.ok(now_ms + 4, infer)
        assert len(hand.scheduler._state.alarms) <= 2 * SWEPT_FROM


def test_requests_with_several_alarms_each_do_not_make_every_alarm_a_sweep() -> None:
    """A request that is tried again has one more: no sweep can drop it, so the next one waits for growth."""
    alarms = Alarms()
    again = [request(id_) for id_ in range(100)]
    sweeps = 0
    for number in range(50):
        for each in again:
            limit = alarms._sweep_from
            alarms.set_expiry(number, each, len(again))
            sweeps += alarms._sweep_from != limit
    assert len(alarms) == 5_000
    assert sweeps < 20


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.booleans()), max_size=40))
def test_a_worker_that_is_kept_free_is_looked_at_once_by_what_was_said_last(
    steps: list[tuple[int, int, bool]],
) -> None:
    """A step: which worker, for how long from now on, and whether it is sent something instead."""
    state = SchedulerState(SchedulerConfig())
    workers = [Worker(f"w{number}", number, "gpu", 8) for number in range(3)]
    last: dict[str, int] = {}
    for now_ns, (number, length_ns, sent) in enumerate(steps):
        while (alarm := state.alarms.take(now_ns)) is not None:
            _ring(alarm, now_ns, last)
        worker = workers[number]
        if sent:
            state.timers(worker).hold_ns = None
            last.pop(worker.name, None)
        else:
            state.hold(now_ns + length_ns, worker)
            last[worker.name] = now_ns + length_ns
        state.alarms.drop_pointless()
        assert state.alarms.next_ns() == min(last.values(), default=None)
    while (next_ns := state.alarms.next_ns()) is not None:
        alarm = state.alarms.take(next_ns)
        assert alarm is not None
        _ring(alarm, next_ns, last)
        state.alarms.drop_pointless()
    assert not last, "these would be kept free for ever"
    assert len(state.alarms) == 0


def _ring(alarm: tuple[Alarm, Request | WorkerTimers | None], now_ns: int, last: dict[str, int]) -> None:
    kind, subject = alarm
    assert kind is Alarm.HOLD
    assert isinstance(subject, WorkerTimers)
    assert last.pop(subject.worker.name) == now_ns
    subject.hold_ns = None
