"""The steps from what is served to what should be, and the index of every model and version.

`Reconciler.steps` compares the repository's folder, the builds and the cluster, and returns what to do next:
compile, add to the cluster, switch gateways over, take away. The rules of a switch:

* a version is served once the workers have prepared it, and never before
* gateways get all versions of a model in one message, so that none sees half a switch
* what is served stays so until what comes in its place can be: a broken file changes nothing
* a version that no gateway directs requests to is removed once no request for it is in flight

A model for which nothing is to be done *rests*: it is not considered again until something about it changes,
so that one change among thousands of models costs no more than among a few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mainspring.messages.model import ModelSpec
from mainspring.messages.operating import SetGraph
from mainspring.messages.repository import IndexEntry, ModelState
from mainspring.messages.served import CANT_BE_LOADED, ServedModel, why
from mainspring.repository.builds import Build, Cluster, Patience, Record, Stage, awaits
from mainspring.repository.layout import FoundModel
from mainspring.repository.model_config import ModelConfig, as_json
from mainspring.repository.recipe import served_spec

NO_FOLDER = "the model repository has no model of this name"


class Compile(NamedTuple):
    """Have a build's artifact in the store."""

    build: Build


class Add(NamedTuple):
    """Have the workers prepare a model."""

    spec: ModelSpec


class Warm(NamedTuple):
    """Have a worker load a model when it is idle."""

    name: str


class Serve(NamedTuple):
    """Direct gateways to these versions; ``specs`` are all that a controller has to know for it."""

    model: ServedModel
    specs: tuple[ModelSpec, ...]


class Retire(NamedTuple):
    """Take a model away once no request for it is in flight."""

    name: str


class Look(NamedTuple):
    """Look at a model's folder again: a version that failed may give way to another one."""

    model: str


Step = Compile | Add | Warm | Serve | Retire | Look | SetGraph


class Reconciler:
    """All models of one repository."""

    def __init__(
        self, *, explicit: bool, load_models: Iterable[str] = (), patience: Patience, shards: int = 1
    ) -> None:
        """``shards``: how many controllers there are."""
        self.records: dict[str, Record] = {}
        self.cluster = Cluster(shards)
        self.looked = False
        """True if the folder was looked at; until then nothing is known to be missing."""
        self._explicit = explicit
        self._loaded = dict.fromkeys(load_models)
        self.awaited: dict[str, str] = {}
        """Models that are to be served and are not, by `steps`, each with why (`messages.readiness`)."""
        self._resting: dict[str, bool] = {}
        """Models that rest, and whether that is because they wait for their compilation."""
        self._patience = patience

    # --- what is in the folder ---

    def found(self, name: str, found: FoundModel | None) -> bool:
        """Take note of what a model's folder holds; None if it is gone. Return whether that is any news."""
        record = self.records.get(name)
        if found is None:
            if record is None or record.gone:
                return False
            record.gone = True
            self.heard_of(name)
            return True
        if record is None:
            record = self.records[name] = Record(name, found, self._is_loaded(name))
        elif record.has_seen(found):
            return False
        record.see(found)
        self.heard_of(name)
        return True

    def missing(self, names: Iterable[str]) -> bool:
        """Take note of which folders there are; the models of all others are gone. Return whether any is."""
        there = set(names)
        self.looked = True
        gone = [record for name, record in self.records.items() if not record.gone and name not in there]
        for record in gone:
            record.gone = True
            self.heard_of(record.name)
        return bool(gone)

    def load(self, name: str) -> None:
        """Serve a model from now on, in mode explicit."""
        self._loaded[name] = None
        self.heard_of(name)
        if name in self.records:
            self.records[name].loaded = True
            self.records[name].retry()

    def unload(self, name: str) -> None:
        """Stop serving a model, in mode explicit."""
        self._loaded.pop(name, None)
        self.heard_of(name)
        if name in self.records:
            self.records[name].loaded = False

    def has_failed(self, name: str, config: ModelConfig, number: int, digest: str) -> bool:
        """Say whether a version should give way to another; one that is served in an older form need not."""
        record = self.records.get(name)
        served = number in self.cluster.versions_of(name)
        return record is not None and not served and record.has_failed(config, number, digest)

    def heard_of(self, name: str) -> None:
        """Look at a model again: something came of it, such as its compilation."""
        self._resting.pop(name, None)

    def _is_loaded(self, name: str) -> bool:
        return not self._explicit or name in self._loaded or "*" in self._loaded

    # --- what to do ---

    def adopt(self) -> None:
        """Take what a controller serves for loaded: this process was restarted, and the cluster was not."""
        self._resting.clear()
        for name in self.cluster.served:
            self._loaded[name] = None
            if name in self.records:
                self.records[name].loaded = True

    def steps(self, now_ns: int) -> list[Step]:
        """Return what is to be done; what was not done yet is returned again."""
        if not self.looked:
            return []
        steps: list[Step] = []
        for record in self._moving():
            own = [*self._steps_of(now_ns, record), *self._unneeded(record)]
            self._note_awaited(record.name, awaits(record, self.cluster))
            moves = self._moves(record)
            if not own and (not moves or self._only_compiles(record)):
                self._resting[record.name] = moves
            steps += own
        if self.cluster.known:
            steps += self._strangers()
        for name in [name for name, record in self.records.items() if record.gone]:
            if not self._is_needed(self.records[name]):
                del self.records[name]
                self.heard_of(name)
        for name in [name for name in (*self.awaited, *self._loaded) if name not in self.records]:
            asked = self._explicit and name in self._loaded and name != "*"
            self._note_awaited(name, why(CANT_BE_LOADED, NO_FOLDER) if asked else "")
        return steps

    def _note_awaited(self, name: str, reason: str) -> None:
        if reason:
            self.awaited[name] = reason
        else:
            self.awaited.pop(name, None)

    def preparing(self) -> bool:
        """Return whether the workers' progress is of interest."""
        return self.cluster.known and any(
            build.stage in (Stage.COMPILED, Stage.WARMING) and build.name in self.cluster.models
            for record in self._moving()
            for build in record.builds.values()
        )

    def _moving(self) -> list[Record]:
        """Return the records that do not rest."""
        news = self.cluster.news()
        if news is None:
            self._resting.clear()
        else:
            for name in news:
                self.heard_of(name)
        return [record for name, record in self.records.items() if name not in self._resting]

    def settled(self) -> bool:
        """Return whether all that should be served is, or can't be."""
        return (
            self.looked
            and self.cluster.known
            and not any(self._resting.values())
            and not any(map(self._moves, self._moving()))
        )

    def moves(self, name: str) -> bool:
        """Return whether a model is on its way to what it should be."""
        record = self.records.get(name)
        return record is not None and self._moves(record)

    def is_kept(self, model: str, version: int, name: str) -> bool:
        """Say whether an artifact may be needed: its files are as they were, or it is served."""
        if name in self.cluster.models or name in self.cluster.retiring:
            return True
        record = self.records.get(model)
        if record is None or record.gone:
            return not self.looked
        found = record.found
        if found.fault or found.settling or not found.numbers:
            return True
        if version in found.digests:
            return record.build(version).name == name
        return version in found.numbers

    def _moves(self, record: Record) -> bool:
        if record.settling or (record.gone and record.name in self.cluster.served):
            return True
        if (record.loaded and record.found.only_listed) or record.graph_step(self.cluster) is not None:
            return True
        wanted = record.wanted
        if any(build.pending and not record.fault(build) for build in wanted.values()):
            return True
        if self._gives_way(record, wanted):
            return True
        table = self._table(record, wanted)
        return table is not None and table != self.cluster.served.get(
            record.name, ServedModel(record.name, {})
        )

    def _gives_way(self, record: Record, wanted: Iterable[int]) -> bool:
        """Say whether a version is to give way to another one, which happens when its folder is looked at."""
        config, digests = record.found.config, record.found.digests
        return any(self.has_failed(record.name, config, number, digests[number]) for number in wanted)

    def _only_compiles(self, record: Record) -> bool:
        """Return whether a model waits for nothing but its compilation."""
        pending = [build.stage for build in record.wanted.values() if build.pending]
        return not record.settling and bool(pending) and {*pending} <= {Stage.QUEUED, Stage.COMPILING}

    def _steps_of(self, now_ns: int, record: Record) -> Iterator[Step]:
        wanted = record.wanted
        for build in sorted(wanted.values(), key=lambda each: -each.version):
            build.settle(now_ns, self.cluster, self._patience)
            if build.stage is Stage.WAITING:
                yield Compile(build)
            elif build.stage is Stage.WARMING and self.cluster.known:
                yield Warm(build.name)
            elif self.cluster.known and build.pending and build.name not in self.cluster.models:
                spec = self._spec(record, build)
                if spec is not None:
                    yield Add(spec)
        if self._gives_way(record, wanted):
            yield Look(record.name)
        if not self.cluster.known:
            return
        graph = record.graph_step(self.cluster)
        if graph is not None:
            yield graph
        table = self._table(record, wanted)
        told = self.cluster.served.get(record.name)
        if table is not None and table != (told or ServedModel(record.name, {})):
            names = {*table.versions.values(), *(told.versions.values() if told is not None else ())}
            yield Serve(table, tuple(self.cluster.specs(sorted(names))))

    def _spec(self, record: Record, build: Build) -> ModelSpec | None:
        if build.spec is None or record.fault(build):
            return None
        return served_spec(build.spec, record.name, build.version, record.found.config)

    def _table(self, record: Record, wanted: dict[int, Build]) -> ServedModel | None:
        """Return what gateways should know of a model; None to leave all as it is."""
        if record.gone or not record.loaded:
            return ServedModel(record.name, {})
        if record.found.fault or record.found.settling or record.found.only_listed:
            return None
        can = {
            number: build.name
            for number, build in wanted.items()
            if build.stage is Stage.READY and not record.fault(build)
        }
        waits = len(can) < len(wanted)
        for number, name in self.cluster.versions_of(record.name).items():
            if number not in can and waits and name in self.cluster.models:
                can[number] = name
        config = record.found.config
        return ServedModel(
            name=record.name,
            versions=dict(sorted(can.items())),
            slo_ns=config.slo_ns if can else None,
            cache=config.cache and bool(can),
            max_queue_size=config.max_queue_size if can else 0,
            priority_levels=config.priority_levels if can else 0,
            default_priority=config.default_priority if can else 0,
            priority_slos_ns=config.priority_slos_ns if can else {},
            labels=record.found.labels if can else {},
            config=as_json(config, given=record.found.given) if can else "",
        )

    def _strangers(self) -> list[Step]:
        """Return the end of models that the cluster has and the repository does not know."""
        served, records = self.cluster.served, self.records
        steps: list[Step] = [Serve(ServedModel(name, {}), ()) for name in served if name not in records]
        for model in self.cluster.public_names():
            if model not in records:
                directed = set(self.cluster.versions_of(model).values())
                steps += [Retire(name) for name in self.cluster.models_of(model) if name not in directed]
        return steps

    def _unneeded(self, record: Record) -> list[Step]:
        """Return the end of what no gateway is directed to, and that is not about to be served."""
        if not self.cluster.known:
            return []
        needed = set(self.cluster.versions_of(record.name).values())
        needed.update(build.name for build in record.wanted.values() if build.stage is not Stage.FAILED)
        return [Retire(name) for name in self.cluster.models_of(record.name) if name not in needed]

    def _is_needed(self, record: Record) -> bool:
        """Return whether a model is still there, or still has to go."""
        leaves = record.name in self.cluster.served or record.graph_step(self.cluster) is not None
        return not record.gone or leaves or not self.cluster.known


SETTLING = "its files are being changed"
UNVERIFIED = "served unverified, on the operator's word: it was compared with nothing"


def index_of(reconciler: Reconciler) -> tuple[IndexEntry, ...]:
    """Return the entries by name and version."""
    entries: list[IndexEntry] = []
    for name in sorted(reconciler.records):
        entries += _entries(reconciler, reconciler.records[name])
    known = {(entry.name, entry.version) for entry in entries}
    leaving = {(spec.served_as, str(spec.version)) for spec in reconciler.cluster.retiring.values()}
    entries += [
        IndexEntry(name, version, ModelState.UNLOADING, "requests for it are in flight")
        for name, version in sorted(leaving - known)
    ]
    return tuple(sorted(entries, key=lambda entry: (entry.name, int(entry.version or 0))))


def _entries(reconciler: Reconciler, record: Record) -> Iterator[IndexEntry]:
    served = reconciler.cluster.versions_of(record.name)
    if record.gone and not served:
        return
    if record.found.config.graph is not None and not record.found.fault:
        yield IndexEntry(record.name, "1", *_of_graph(reconciler, record))
        return
    versions = {*served, *(record.found.digests if record.loaded and not record.found.fault else ())}
    for number in sorted(versions):
        yield _entry(record, number, served, reconciler.cluster)
    settling = [each for each in record.found.settling if record.loaded and each not in versions]
    for number in filter(None, settling):
        yield IndexEntry(record.name, str(number), ModelState.LOADING, SETTLING)
    if not versions and not any(settling):
        yield IndexEntry(record.name, "", *_without_versions(record))


def _of_graph(reconciler: Reconciler, record: Record) -> tuple[ModelState, str]:
    graph = record.found.config.graph
    if not record.loaded:
        return ModelState.UNAVAILABLE, "unloaded"
    if reconciler.cluster.graphs.get(record.name) == graph:
        return ModelState.READY, ""
    if record.refused is not None and record.refused[0] == graph:
        return ModelState.UNAVAILABLE, record.refused[1]
    return ModelState.LOADING, "gateways are about to serve it"


def _without_versions(record: Record) -> tuple[ModelState, str]:
    if record.found.fault:
        return ModelState.UNAVAILABLE, record.found.fault
    if not record.loaded:
        return ModelState.UNAVAILABLE, "unloaded"
    return ModelState.LOADING, SETTLING if record.settling else "it is looked at"


def _entry(record: Record, number: int, served: dict[int, str], cluster: Cluster) -> IndexEntry:
    state, reason = ModelState.LOADING, ""
    build = None
    if number in record.found.digests and not record.found.fault:
        build = record.build(number)
        reason = record.fault(build) or build.progress
        if build.stage is Stage.FAILED or record.fault(build):
            state = ModelState.UNAVAILABLE
    if number in served:
        state = ModelState.READY
        if build is None:
            reason = record.found.fault
        elif build.name == served[number]:
            spec = cluster.models.get(build.name)
            reason = UNVERIFIED if spec is not None and not spec.verified else ""
            reason = f"it is served as it was; {SETTLING}" if record.settling else reason
        else:
            reason = f"it is served as it was before its files changed, of which now: {reason}"
    elif build is not None and build.stage is Stage.READY:
        reason = "gateways are about to serve it"
    return IndexEntry(record.name, str(number), state, reason)
