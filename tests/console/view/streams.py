"""Event streams of simulated clusters, and what a view of one must have in common with its scheduler."""

from __future__ import annotations

import msgspec

from mainspring.cluster.placements import Worker
from mainspring.console.view.limits import Limits
from mainspring.console.view.models import BROKEN as GIVEN_UP
from mainspring.console.view.models import FAILED, RESIDENT
from mainspring.console.view.view import View
from mainspring.console.view.workers import WorkerState
from mainspring.controller.logged_scheduler import about
from mainspring.messages.commands import Command
from mainspring.messages.events import Event, Wakeup
from mainspring.scheduler.state import SchedulerState
from mainspring.simulator.scenario import LONGEST_WAIT_NS, random_scenario
from mainspring.telemetry.log import FORMAT, Entry, SegmentHeader

SECOND = 1_000_000_000
EVERYTHING = Limits(keep_ns=1000 * SECOND)


class Watched:
    """A random cluster in virtual time, with its stream as the controller would write it."""

    def __init__(self, seed: int, policy: str = "mainspring", length_ns: int = SECOND) -> None:
        self.records: list[tuple[int, Entry]] = []
        self.length_ns = length_ns
        self.simulation = random_scenario(
            seed, policy, length_ns, validate_every=1_000_000, record=self._record
        )
        self.scheduler = self.simulation.scheduler
        header = SegmentHeader(FORMAT, 7, True, 1_700_000_000 * SECOND, about(self.scheduler.config))
        self.records.insert(0, (0, header))

    def _record(self, now_ns: int, entry: Event | Command) -> None:
        if not isinstance(entry, Wakeup):
            self.records.append((now_ns, entry))

    def drain(self) -> list[tuple[int, Entry]]:
        """Return the records since the last call."""
        records, self.records = self.records, []
        return records

    def run_ms(self, until_ms: float) -> list[tuple[int, Entry]]:
        """Let virtual time pass up to an instant, and return what was recorded."""
        self.simulation.run(round(until_ms * 1e6))
        return self.drain()

    def everything(self) -> list[tuple[int, Entry]]:
        """Run to the end and return all records from the header on."""
        self.simulation.run(self.length_ns + LONGEST_WAIT_NS)
        return self.drain()


def feed(view: View, records: list[tuple[int, Entry]], times: int = 1) -> None:
    """Let a view take records, each so many times in a row."""
    for now_ns, entry in records:
        for _ in range(times):
            view.take(now_ns, entry)


def check(view: View, state: SchedulerState, *, but_leaving: bool = False) -> None:
    """Compare a view with the scheduler's own state; raise AssertionError at the first difference.

    ``but_leaving``: but for copies of models that were removed and added anew, of which a picture does not
    say that they are old.
    """
    models = state.cluster.models
    assert list(view.fleet.models) == list(models)
    assert set(view.fleet.workers) == set(state.cluster.workers)
    for name, worker in state.cluster.workers.items():
        _check_worker(view.fleet.workers[name], worker)
    for name, model in models.items():
        seen = view.fleet.models[name]
        assert seen.queued == model.waiting, f"{name}: {seen.queued} wait, not {model.waiting}"
        assert seen.spec == model.spec
        where = {each.worker.name: each.state.value for each in model.placements.values()}
        known = {worker: placement.state for worker, placement in seen.placements.items()}
        for worker in state.cluster.workers.values():
            old = worker.placements.get(name)
            if but_leaving and old is not None and old.leaving:
                known.pop(worker.name, None)
                where.pop(worker.name, None)
        told = {worker: state for worker, state in where.items() if state != "known"}
        assert {worker: "failed" if s == GIVEN_UP else s for worker, s in known.items()} == {
            worker: "failed" if s == GIVEN_UP else s for worker, s in told.items()
        }, f"{name}: {known}, not {told}"
    assert set(view.traffic.book.open) == set(state.cluster.requests)
    for request_id, request in state.cluster.requests.items():
        mine = view.traffic.book.open[request_id]
        place = {"queued": "waiting", "dispatched": "running"}[request.place.value]
        assert mine.outcome == place, f"{mine} is {request}"
        assert mine.arrived_ns == request.arrived_ns


def _check_worker(seen: WorkerState, worker: Worker) -> None:
    name, lanes = worker.name, seen.history
    assert seen.device_kind == worker.device_kind
    owners = [worker.pages.owner(page) for page in range(worker.pages.size)]
    mine = [seen.owner(page) for page in range(worker.pages.size)]
    assert [None if each is None else each.model.name for each in mine] == owners, f"pages of {name}"
    assert seen.used == worker.pages.size - worker.pages.free
    assert [*lanes.exec.outstanding] == [each.action_id for each in worker.exec.actions()], f"EXEC of {name}"
    assert [*lanes.load.outstanding] == [each.action_id for each in worker.load.actions()], f"LOAD of {name}"
    assert set(lanes.other.outstanding) == set(worker.others), f"others of {name}"
    resident = {model for model, each in seen.placements.items() if each.state == RESIDENT}
    assert resident == set(worker.lru), f"residents of {name}"
    assert bool(seen.stopping_seq) == worker.stopping
    for model, placement in worker.placements.items():
        if model in seen.placements:
            assert seen.placements[model].infers == placement.infers, f"{placement}"
        else:
            assert placement.state.value in ("known", FAILED), f"{placement}"


def counted(view: View, name: str) -> tuple[int, int, int, int]:
    """Return a model's requests that arrived, ended in time, ended late and were rejected."""
    arrived, in_time, late, rejected, *_ = view.fleet.models[name].counts
    return arrived, in_time, late, rejected


def never_removed(state: SchedulerState) -> list[str]:
    """Return the models that are served since the beginning: requests of one that was removed count apart."""
    return [name for name, model in state.cluster.models.items() if name == f"m{model.number - 1}"]


def tallied(state: SchedulerState, name: str) -> tuple[int, int, int, int]:
    """Return the same as the scheduler's state has it."""
    counts = state.cluster.models[name].counts
    return counts.arrived, counts.finished, counts.late, counts.rejected


def same(view: View, other: View) -> None:
    """Check that two views show the same; raise AssertionError if not."""
    mine, others = fingerprint(view), fingerprint(other)
    for key, value in mine.items():
        assert value == others[key], f"{key}: {value} and {others[key]}"


def fingerprint(view: View) -> dict[str, object]:
    """Return what a view holds, without what hangs on how many records there were."""
    traffic, fleet = view.traffic, view.fleet
    return {
        "now": view.now_ns,
        "open": {each.id: (each.model, each.outcome) for each in traffic.book.open.values()},
        "ended": [
            (each.id, each.outcome, each.ended_ns)
            for each in traffic.book.newest(("rejected", "late", "lost", "in_time", "cancelled"))
        ],
        "models": {model.name: (model.counts, model.queued) for model in fleet.models.values()},
        "workers": {
            name: [
                None if (own := each.owner(page)) is None else own.model.name for page in range(each.pages)
            ]
            for name, each in fleet.workers.items()
        },
        "actions": {
            (name, lane.executor): [
                msgspec.structs.replace(action, sent_seq=0, done_seq=0) for action in lane.newest()
            ]
            for name, history in fleet.histories.items()
            for lane in history.lanes()
        },
    }
