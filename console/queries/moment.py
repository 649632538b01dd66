"""The cluster as it was just before a record of the stream, rebuilt from what is remembered of it.

The scheduler looks at three things when it asks by when a request could be done: when executors will be free,
where the weights are, and how long actions take. The first comes from its own timelines, which are filled
here with the actions that were outstanding; the second from the present, less what happened since; the third
from the estimates' changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.cluster.timeline import ExecTimeline, Timeline
from mainspring.console.view.actions import Action, Lane
from mainspring.console.view.models import LOADING, PREPARED, PREPARING, RELEASING, RESIDENT
from mainspring.console.view.view import View
from mainspring.console.view.workers import WorkerState
from mainspring.messages.actions import Infer, Load

BEFORE = 64
"""Ended actions from which a timeline is filled: it forgets what was before the last time it was idle."""
KNOWN = "known"
"""Where a model is on a worker that has nothing of it."""
_BEFORE = {
    ("LOAD", "sent"): PREPARED,
    ("LOAD", "done"): LOADING,
    ("UNLOAD", "sent"): RESIDENT,
    ("PREPARE", "sent"): KNOWN,
    ("PREPARE", "done"): PREPARING,
    ("RELEASE", "sent"): PREPARED,
    ("RELEASE", "done"): RELEASING,
}
"""Where a model must have been before something happened to it."""


class Moment:
    """Just before a record of the stream."""

    def __init__(self, view: View, seq: int, now_ns: int) -> None:
        """``now_ns`` is the instant of the record number ``seq``."""
        self.view = view
        self.seq = seq
        self.now_ns = now_ns
        self.soonest_ns = now_ns + view.settings.dispatch_delay_ns

    def workers(self) -> list[WorkerState]:
        """Return the workers that were there."""
        fleet, seq = self.view.fleet, self.seq
        there = [worker for worker in fleet.workers.values() if worker.joined_seq < seq]
        there += [session for session in fleet.sessions if session.joined_seq < seq <= session.left_seq]
        return there

    def exec(self, worker: WorkerState) -> ExecTimeline:
        """Return a worker's EXEC as it was."""
        delay_ns = self.view.settings.dispatch_delay_ns
        timeline = ExecTimeline(delay_ns)
        for seq, action in self._events(worker, worker.history.exec):
            if seq == action.sent_seq:
                timeline.send(_infer(worker, action), action.sent_ns + delay_ns, action.transfer_ns)
            else:
                timeline.finish(action.id, action.end_ns, action.inputs_ns)
        return timeline

    def load(self, worker: WorkerState) -> Timeline[Load]:
        """Return a worker's LOAD as it was."""
        timeline: Timeline[Load] = Timeline(self.view.settings.dispatch_delay_ns)
        for seq, action in self._events(worker, worker.history.load):
            if seq == action.sent_seq:
                timeline.add(_load(worker, action))
            else:
                timeline.finish(action.id, action.end_ns)
        return timeline

    def outstanding(self, lane: Lane) -> list[Action]:
        """Return what an executor had been told to do and had not ended, in order."""
        seq = self.seq
        found = [action for action in lane.outstanding.values() if action.sent_seq < seq]
        return sorted([*found, *self._ended_since(lane)], key=lambda action: action.sent_seq)

    def where(self, worker: WorkerState, model: str) -> str:
        """Return where a model was on a worker: a placement's state, or `KNOWN`."""
        first: tuple[int, str, str] | None = None
        for lane in (worker.history.load, worker.history.other):
            for action in (*lane.outstanding.values(), *lane.since(self.seq)):
                if action.model != model or not worker.had(action.sent_seq):
                    continue
                for seq, what in ((action.sent_seq, "sent"), (action.done_seq, "done")):
                    told = seq >= self.seq and (action.kind, what) in _BEFORE
                    if told and (first is None or seq < first[0]):
                        first = seq, action.kind, what
        if first is not None:
            return _BEFORE[first[1:]]
        placement = worker.placements.get(model)
        return KNOWN if placement is None else placement.state

    def _events(self, worker: WorkerState, lane: Lane) -> Iterator[tuple[int, Action]]:
        """Yield what happened to an executor's timeline up to the moment, with the records that say so."""
        ended: list[Action] = []
        for action in lane.before(self.seq):
            if len(ended) == BEFORE or action.sent_seq < worker.joined_seq:
                break
            ended.append(action)
        events = [(action.sent_seq, action) for action in (*ended, *self.outstanding(lane))]
        events += [(action.done_seq, action) for action in ended]
        yield from sorted(events, key=lambda event: event[0])

    def _ended_since(self, lane: Lane) -> Iterator[Action]:
        """Yield the actions that were outstanding then and are no more."""
        for action in lane.since(self.seq):
            if action.sent_seq < self.seq:
                yield action
            elif action.sent_ns > self.now_ns + lane.longest_ns:
                return


def _infer(worker: WorkerState, action: Action) -> Infer:
    return Infer(
        action_id=action.id,
        worker=worker.name,
        model=action.model,
        batch_size=action.batch_size,
        request_ids=action.requests,
        rows=(),
        cold=(),
        earliest_ns=action.earliest_ns,
        latest_ns=action.latest_ns,
        predicted_begin_ns=action.predicted_begin_ns,
        predicted_duration_ns=action.predicted_duration_ns,
    )


def _load(worker: WorkerState, action: Action) -> Load:
    return Load(
        action_id=action.id,
        worker=worker.name,
        model=action.model,
        pages=(),
        earliest_ns=action.earliest_ns,
        latest_ns=action.latest_ns,
        predicted_begin_ns=action.predicted_begin_ns,
        predicted_duration_ns=action.predicted_duration_ns,
    )
