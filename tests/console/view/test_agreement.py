"""The view of a stream and the scheduler that it came out of say the same, at any moment."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mainspring.console.view.view import View
from mainspring.messages.actions import Infer, Load, Prepare, Result
from mainspring.messages.codes import Status
from mainspring.messages.commands import Command, DropWorker
from mainspring.messages.events import Event, ModelAdded, RequestArrived, Wakeup, WorkerJoined
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.telemetry.log import FORMAT, SegmentHeader
from tests.console.view.streams import EVERYTHING, Watched, check, counted, feed, never_removed, same, tallied
from tests.scheduler.hand import MS, spec


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(["mainspring", "clockwork", "fifo", "edf"]),
    step_ms=st.floats(0.3, 60),
)
def test_the_view_holds_what_the_scheduler_holds(seed: int, policy: str, step_ms: float) -> None:
    watched, view = Watched(seed, policy), View(EVERYTHING)
    state = watched.scheduler._state
    now_ms = 0.0
    while now_ms < 1_300:
        now_ms += step_ms
        feed(view, watched.run_ms(now_ms))
        check(view, state)
    feed(view, watched.everything())
    check(view, state)
    for name in never_removed(state):
        assert counted(view, name) == tallied(state, name), name


@pytest.mark.parametrize("seed", range(6))
def test_a_record_that_comes_twice_in_a_row_changes_nothing(seed: int) -> None:
    records = Watched(seed).everything()
    once, twice = View(EVERYTHING), View(EVERYTHING)
    feed(once, records)
    feed(twice, records, times=2)
    same(once, twice)


def test_an_infer_that_is_never_answered_teaches_the_view_what_it_teaches_the_scheduler() -> None:
    scheduler, view = Scheduler(SchedulerConfig(policy="clockwork")), View(EVERYTHING)
    model = spec("m", single_ms=50)
    view.take(0, SegmentHeader(FORMAT, 1, True, 1_700_000_000_000_000_000, {}))

    def told(now_ns: int, event: Event) -> list[Command]:
        scheduler.handle(now_ns, event)
        commands = scheduler.schedule(now_ns)
        for entry in (event, *commands):
            view.take(now_ns, entry)
        return commands

    commands = [*told(1, ModelAdded(model)), *told(2, WorkerJoined("w0", "gpu", 8))]
    commands += told(3 * MS, RequestArrived(1, "m", 1, None))
    executing = dropped = False
    now_ns = 3 * MS
    while not dropped:
        answered = [c for c in commands if isinstance(c, Prepare | Load)]
        executing = executing or any(isinstance(c, Infer) for c in commands)
        if answered:
            now_ns += MS
            result = Result(answered[0].action_id, "w0", Status.OK, now_ns - MS, now_ns)
            commands = [*commands[commands.index(answered[0]) + 1 :], *told(now_ns, result)]
        else:
            wakeup_ns = scheduler.next_wakeup_ns()
            assert wakeup_ns is not None
            now_ns = wakeup_ns
            commands = told(now_ns, Wakeup())
        dropped = any(isinstance(c, DropWorker) for c in commands)
    assert executing
    expected = scheduler._state.cluster.estimates.infer_times("gpu", model).ns
    assert expected[0] > 1_000 * MS
    before, after = view.fleet.durations.infer_at("gpu", model, 1, 0)[0], view.seq + 1
    assert before < 100 * MS
    assert [view.fleet.durations.infer_at("gpu", model, after, size)[0] for size in range(3)] == expected
