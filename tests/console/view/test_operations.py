"""What operators set, as a view has it: as the scheduler holds it, and in the order in which it was asked."""

from __future__ import annotations

from mainspring.console.queries.cluster import cluster
from mainspring.console.queries.models import models
from mainspring.console.view.series import Limits
from mainspring.console.view.view import View
from mainspring.messages.events import Event, ModelAdded, ModelRemoved, OperatorAsked, WorkerJoined
from mainspring.messages.operating import DrainWorker, LoadOn, OperatorCommand, PinModel
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from tests.scheduler.hand import spec


def test_a_model_is_shown_as_pinned_as_long_as_the_scheduler_has_it_pinned() -> None:
    scheduler, view = Scheduler(SchedulerConfig()), View()
    events: list[Event] = [
        WorkerJoined("w0", "gpu", 8),
        ModelAdded(spec("m")),
        OperatorAsked("ann", PinModel("m")),
        ModelAdded(spec("m", version="2")),
        ModelRemoved("m"),
        ModelAdded(spec("m")),
    ]
    seen = []
    for now_ns, event in enumerate(events, 1):
        scheduler.handle(now_ns, event)
        for entry in (event, *scheduler.schedule(now_ns)):
            view.take(now_ns, entry)
        held = scheduler._state.cluster.pinned
        assert {line.name for line in models(view).rows if line.pinned} == set(held), event
        seen.append("m" in held)
    assert seen == [False, False, True, True, False, False]


def test_commands_that_a_snapshot_repeats_stand_where_they_did() -> None:
    view = View(Limits(operations=3))
    commands: list[OperatorCommand] = [DrainWorker("w0"), *[LoadOn(f"m{number}") for number in range(4)]]
    view.take(0, WorkerJoined("w0", "gpu", 8))
    for at_ns, command in enumerate(commands, 1):
        view.take(at_ns, OperatorAsked("ann", command))
    newest = [line.at_ns for line in cluster(view).operations]
    assert newest == [5, 4, 3]
    assert list(view.cluster.drained) == ["w0"]
    view.reset(keep_history=True)
    view.take(1, OperatorAsked("ann", commands[0]))
    assert [line.at_ns for line in cluster(view).operations] == newest
    larger = View(Limits(operations=10))
    for at_ns in (2, 5, 1):
        larger.take(at_ns, OperatorAsked("ann", commands[at_ns - 1]))
    assert [line.at_ns for line in cluster(larger).operations] == [5, 2, 1]
