"""Requests of each model, counted from what goes into the scheduler and what comes out of it.

A reader of its event stream, so that the scheduler itself keeps no statistics. What is still open is
remembered by request, which is bounded by what the scheduler itself holds.
"""

from __future__ import annotations

import msgspec

from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.commands import Command, DropWorker, Reject
from mainspring.messages.events import (
    Event,
    GatewayLeft,
    ModelAdded,
    ModelRemoved,
    RequestArrived,
    RequestCancelled,
    Wakeup,
    WorkerLeft,
)
from mainspring.messages.ids import gateway_of
from mainspring.messages.peers import ModelStatus

_ARRIVED, _FINISHED, _LATE, _REJECTED = range(4)


class ModelCounters:
    """Counts of each served model since it was added, or since the controller started."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._open: dict[int, tuple[str, int | None]] = {}
        self._out: dict[int, Infer] = {}
        self.departures = 0
        """Workers that left or were dropped, and models that were removed."""
        self.requests = 0
        """Requests that came."""

    def take(self, entry: Event | Command) -> None:
        """Take note of what goes in or comes out."""
        if isinstance(entry, Infer | Reject | DropWorker):
            self.command(entry)
        elif not isinstance(entry, Wakeup):
            self.event(entry)  # type: ignore[arg-type]

    def event(self, event: Event) -> None:
        """Take note of what goes in."""
        match event:
            case RequestArrived(request_id=request_id, model=model):
                self.requests += 1
                if model in self._counts:
                    self._counts[model][_ARRIVED] += 1
                    self._open[request_id] = model, event.deadline_ns
            case Result():
                self._result(event)
            case RequestCancelled(request_id=request_id):
                self._open.pop(request_id, None)
            case ModelAdded(model=spec):
                self._counts.setdefault(spec.name, [0, 0, 0, 0])
            case ModelRemoved(name=name):
                self._counts.pop(name, None)
                self.departures += 1
            case WorkerLeft(worker=worker):
                self._worker_gone(worker)
            case GatewayLeft(number=number):
                gone = [id_ for id_ in self._open if gateway_of(id_) == number]
                for request_id in gone:
                    del self._open[request_id]

    def command(self, command: Command) -> None:
        """Take note of what comes out."""
        if isinstance(command, Infer):
            self._out[command.action_id] = command
        elif isinstance(command, Reject):
            self._end(command.request_id, _REJECTED)
        elif isinstance(command, DropWorker):
            self._worker_gone(command.worker)

    def counted(self, model: ModelStatus) -> ModelStatus:
        """Return a model's status with its counts."""
        counts = self._counts.get(model.name, (0, 0, 0, 0))
        return msgspec.structs.replace(
            model,
            arrived=counts[_ARRIVED],
            finished=counts[_FINISHED],
            late=counts[_LATE],
            rejected=counts[_REJECTED],
        )

    def _worker_gone(self, worker: str) -> None:
        self._out = {id_: infer for id_, infer in self._out.items() if infer.worker != worker}
        self.departures += 1

    def _result(self, result: Result) -> None:
        infer = self._out.pop(result.action_id, None)
        if infer is None or result.status is not Status.OK:
            return
        for request_id in infer.request_ids:
            _, deadline_ns = self._open.get(request_id, ("", None))
            late = deadline_ns is not None and result.end_ns > deadline_ns
            self._end(request_id, _LATE if late else _FINISHED)

    def _end(self, request_id: int, how: int) -> None:
        model, _ = self._open.pop(request_id, ("", None))
        if model in self._counts:
            self._counts[model][how] += 1
