"""A reader of the event stream that keeps what stands, as `messages.observing` says that it is to be read."""

from __future__ import annotations

from typing import Any

from mainspring.cluster.placements import State
from mainspring.cluster.requests import Place
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Action, Infer, Load, Prepare, Release, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.commands import DropWorker, Reject
from mainspring.messages.events import (
    GatewayLeft,
    ModelAdded,
    ModelRemoved,
    RequestArrived,
    RequestCancelled,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.observing import Holding

SERVED = (Status.OK, Status.OUTPUT_LOST)


class Replica:
    """What stands, by the stream alone."""

    def __init__(self) -> None:
        self.models: dict[str, Any] = {}
        self.pages: dict[str, int] = {}
        self.at: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {}
        """For each worker and model: ``prepared``, ``loading``, ``resident`` or ``failed``, and its pages."""
        self.actions: dict[int, Action] = {}
        self.requests: dict[int, RequestArrived] = {}

    def take(self, entry: object) -> None:
        match entry:
            case RequestArrived(request_id=id_):
                self.requests[id_] = entry
            case RequestCancelled(request_id=id_) | Reject(request_id=id_):
                self.requests.pop(id_, None)
            case GatewayLeft(number=number):
                for id_ in [id_ for id_ in self.requests if id_ >> 40 == number]:
                    del self.requests[id_]
            case ModelAdded(model=spec):
                self.models[spec.name] = spec
            case ModelRemoved(name=name):
                self.models.pop(name, None)
            case WorkerJoined():
                self._gone(entry.worker)
                self.pages[entry.worker] = entry.pages
                for name in entry.prepared:
                    self.at[entry.worker, name] = "prepared", ()
                for resident in entry.resident:
                    self.at[entry.worker, resident.model] = "resident", resident.pages
            case WorkerLeft(worker=worker) | DropWorker(worker=worker):
                self._gone(worker)
            case Holding():
                self._holding(entry)
            case Result():
                self._ended(entry)
            case Prepare() | Release() | Load() | Unload() | Infer():
                self._sent(entry)

    def _gone(self, worker: str) -> None:
        self.pages.pop(worker, None)
        self.at = {key: value for key, value in self.at.items() if key[0] != worker}
        self.actions = {id_: action for id_, action in self.actions.items() if action.worker != worker}

    def _holding(self, holding: Holding) -> None:
        for name in holding.prepared:
            self.at[holding.worker, name] = "prepared", ()
        for name, pages in holding.resident.items():
            self.at[holding.worker, name] = "resident", pages
        for name in holding.failed:
            self.at[holding.worker, name] = "failed", ()

    def _sent(self, action: Action) -> None:
        self.actions[action.action_id] = action
        match action:
            case Load(worker=worker, model=name, pages=pages):
                self.at[worker, name] = "loading", pages
            case Unload(worker=worker, model=name):
                self.at[worker, name] = "prepared", ()
            case Release(worker=worker, model=name):
                self.at.pop((worker, name), None)

    def _ended(self, result: Result) -> None:
        action = self.actions.pop(result.action_id, None)
        ok = result.status is Status.OK
        match action:
            case Infer(request_ids=ids) if result.status in SERVED:
                for id_ in ids:
                    self.requests.pop(id_, None)
            case Load(worker=worker, model=name, pages=pages):
                self.at[worker, name] = ("resident", pages) if ok else ("prepared", ())
            case Prepare(worker=worker, model=spec):
                self.at[worker, spec.name] = ("prepared" if ok else "failed"), ()

    def stands(self) -> dict[str, object]:
        """What is to be equal: page owners, residency, what is outstanding, what waits."""
        running = {
            id_ for action in self.actions.values() if isinstance(action, Infer) for id_ in action.request_ids
        }
        return {
            "models": sorted(self.models),
            "workers": self.pages,
            "at": self.at,
            "actions": sorted(self.actions),
            "waiting": {id_: event for id_, event in self.requests.items() if id_ not in running},
            "running": sorted(id_ for id_ in self.requests if id_ in running),
        }


def stands(cluster: Cluster) -> dict[str, object]:
    """The same of the scheduler's own state."""
    names = {
        State.PREPARED: "prepared",
        State.LOADING: "loading",
        State.RESIDENT: "resident",
        State.FAILED: "failed",
        State.BROKEN: "failed",
    }
    workers = cluster.workers.values()
    actions = [
        *(infer.action_id for worker in workers for infer in worker.exec.actions()),
        *(load.action_id for worker in workers for load in worker.load.actions()),
        *(action_id for worker in workers for action_id in worker.others),
    ]
    queued = [each for each in cluster.requests.values() if each.place is Place.QUEUED]
    return {
        "models": sorted(cluster.models),
        "workers": {worker.name: worker.pages.size for worker in workers},
        "at": {
            (worker.name, name): (names[placement.state], placement.pages)
            for worker in workers
            for name, placement in worker.placements.items()
            if placement.state in names
        },
        "actions": sorted(actions),
        "waiting": {each.id: each.event for each in queued},
        "running": sorted(each.id for each in cluster.requests.values() if each.place is Place.DISPATCHED),
    }
