"""The verb ``mainspring tune``: a plan's tuner on a running cluster.

It hears arrivals in the controller's stream, as consoles do, and asks for workers as operators do. It keeps
nothing: what it asked for stays when it ends.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.console.live import Batch, LiveStream
from mainspring.messages.events import QueryArrived, RequestArrived
from mainspring.messages.observing import Stage
from mainspring.messages.tables import ConfigError
from mainspring.planner.tuner import Sample, Tuner

POLL_NS = 100_000_000
DECIDE_NS = 500_000_000
"""Time between decisions."""


class PlannedStation(msgspec.Struct, frozen=True):
    """A step as ``plan.json`` has it."""

    step: str
    kind: str
    batch: int
    replicas: int


class PlannedBest(msgspec.Struct, frozen=True):
    """The plan's configuration."""

    stations: tuple[PlannedStation, ...]


class PlanFile(msgspec.Struct, frozen=True):
    """The part of ``plan.json`` that a tuner reads."""

    graph: str
    models: tuple[str, ...]
    best: PlannedBest
    sample: Sample


class Share(msgspec.Struct, frozen=True):
    """Workers of a model's own."""

    model: str
    kind: str
    batch: int
    workers: int


def read_plan(path: Path) -> PlanFile:
    """Return a plan of a graph from its folder, or either of its files; raise `ConfigError`."""
    file = path / "plan.json" if path.is_dir() else path.with_suffix(".json")
    try:
        return msgspec.json.decode(file.read_bytes(), type=PlanFile)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; mainspring plan SPEC writes it") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{file} is no plan that can be tuned ({error}): plan a spec with [[graphs]], or with --search "
            "inferline"
        ) from None


def shared_out(plan: PlanFile, replicas: Sequence[int]) -> tuple[Share, ...]:
    """Return the workers of each model: steps of one model share theirs."""
    found: dict[str, Share] = {}
    for model, station, count in zip(plan.models, plan.best.stations, replicas, strict=True):
        before = found.get(model, Share(model, station.kind, 0, 0))
        batch = max(before.batch, station.batch)
        found[model] = Share(model, station.kind, batch, before.workers + count)
    return tuple(found.values())


def fitted(plan: PlanFile, replicas: Sequence[int], most: dict[str, int]) -> tuple[int, ...]:
    """Return the replicas that the most of each kind allow: in proportion, but one for each step."""
    found = list(replicas)
    for kind, limit in most.items():
        mine = [place for place, each in enumerate(plan.best.stations) if each.kind == kind]
        wanted = sum(found[place] for place in mine)
        if wanted <= limit:
            continue
        for place in mine:
            found[place] = max(1, math.floor(replicas[place] * limit / wanted))
        # What rounding left goes to those that have least of what they want.
        while sum(found[place] for place in mine) < limit:
            found[min(mine, key=lambda place: found[place] / replicas[place])] += 1
    return tuple(found)


class Tuning:
    """A plan's tuner, driven by what a controller tells."""

    def __init__(self, plan: PlanFile, client: Client, tell: Callable[[str], object]) -> None:
        """``tell`` is told what it does, and why."""
        self._plan = plan
        self._client = client
        self._tell = tell
        self._tuner: Tuner | None = None
        self._decided_ns = 0
        self._spare = self._beside()
        self._said = ""
        self._wanted: tuple[int, ...] = ()
        self._assigned: tuple[Share, ...] = ()

    def take(self, batch: Batch) -> None:
        """Take in what came from the controller; decide now and then."""
        try:
            self._take(batch)
        except MainspringError as error:
            self._say(f"the cluster refuses: {error}", ())

    def _take(self, batch: Batch) -> None:
        if batch.stage is Stage.BEGIN and self._tuner is not None:
            self._tuner.interrupted(batch.now_ns)
        if batch.stage is not Stage.LIVE:
            return
        if self._tuner is None:
            self._tuner = Tuner(self._plan.sample, batch.now_ns)
            self._ask(self._tuner.replicas, "as planned")
        for now_ns in self._arrivals(batch):
            self._tuner.arrived(now_ns)
        if batch.now_ns - self._decided_ns >= DECIDE_NS:
            self._decided_ns = batch.now_ns
            before = self._tuner.replicas
            wanted = self._tuner.decide(batch.now_ns)
            if wanted != before:
                more = sum(wanted) > sum(before)
                self._ask(wanted, "more arrives than planned for" if more else "less arrives")
            elif self._assigned != shared_out(self._plan, self._wanted):
                self._assign()

    def _arrivals(self, batch: Batch) -> Iterable[int]:
        name = self._plan.graph
        for now_ns, entry in batch.records:
            of_graph = isinstance(entry, QueryArrived) and entry.graph == name
            if of_graph or (isinstance(entry, RequestArrived) and not entry.query and entry.model == name):
                yield now_ns

    def _beside(self) -> dict[str, int]:
        """Return the workers of each kind that were wanted before, beyond the plan's."""
        planned: dict[str, int] = {}
        for station in self._plan.best.stations:
            planned[station.kind] = planned.get(station.kind, 0) + station.replicas
        wanted = {each.kind: each.wanted for each in self._client.status().kinds}
        return {kind: max(0, wanted.get(kind, 0) - count) for kind, count in planned.items()}

    def _ask(self, wanted: tuple[int, ...], why: str) -> None:
        """Ask for workers of the kinds and for the models that own them; say what was done."""
        assert self._tuner is not None
        most = {
            each.kind: max(0, each.most - self._spare[each.kind])
            for each in self._client.status().kinds
            if each.kind in self._spare
        }
        got = fitted(self._plan, wanted, most)
        if got != wanted:
            self._tuner.have(got)
            self._say(f"{why}: {self._named(wanted)} are needed, and the cluster has no more than ", got)
        else:
            self._say(f"{why}: ", got)
        self._wanted = got
        self._assign()
        for kind, spare in self._spare.items():
            mine = shared_out(self._plan, got)
            self._client.scale_workers(kind, spare + sum(each.workers for each in mine if each.kind == kind))

    def _assign(self) -> None:
        """Give models what there is of the workers that they are to have: those beside the plan stay."""
        there = {
            each.kind: max(0, each.running - self._spare[each.kind])
            for each in self._client.status().kinds
            if each.kind in self._spare
        }
        shares = shared_out(self._plan, fitted(self._plan, self._wanted, there))
        for each in shares:
            if each not in self._assigned:
                self._client.assign_model(each.model, each.workers, each.batch, each.kind)
        self._assigned = shares

    def _named(self, replicas: Sequence[int]) -> str:
        pairs = zip(self._plan.best.stations, replicas, strict=False)
        return ", ".join(f"{each.step} {count}" for each, count in pairs)

    def _say(self, text: str, replicas: tuple[int, ...]) -> None:
        said = text + self._named(replicas)
        if said != self._said:
            self._said = said
            self._tell(said)


def follow(stream: LiveStream, tuning: Tuning, stop: threading.Event, tell: Callable[[str], object]) -> None:
    """Tune until it is stopped; without news from the controller nothing changes."""
    lost = False
    while not stop.is_set():
        batch = stream.poll(POLL_NS)
        if batch is not None:
            tuning.take(batch)
        if (stream.state == "connecting") != lost:
            lost = not lost
            tell(f"no news, so nothing changes: {stream.detail}" if lost else "the controller tells again")
