"""Each content of each version on its way from files to service, and the models of the cluster.

The repository never remembers what it has asked for: it compares what should be with what is here, as the
controller tells every gateway and its status says, and asks for the difference. A restarted controller
therefore gets everything again in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec

from mainspring.messages.graphs import GraphSpec
from mainspring.messages.model import ModelSpec
from mainspring.messages.operating import SetGraph
from mainspring.messages.peers import Graph, ModelDown, ModelUp, Served
from mainspring.messages.served import (
    BEING_COMPILED,
    CANT_BE_LOADED,
    STARTING,
    WAITS,
    ServedModel,
    for_clients,
    why,
)
from mainspring.messages.sharding import ShardMap
from mainspring.messages.status import ClusterStatus, ModelStatus
from mainspring.repository.layout import FoundModel
from mainspring.repository.model_config import ModelConfig
from mainspring.repository.reading import ConfigFault
from mainspring.repository.recipe import Recipe, artifact_name, recipe_of, served_spec


class Cluster:
    """The models of a session with each controller, of one or several."""

    def __init__(self, shards: int = 1) -> None:
        self.models: dict[str, ModelSpec] = {}
        """Models of a repository, by the scheduler's name, without those that are to go."""
        self.retiring: dict[str, ModelSpec] = {}
        """Models that go once no gateway has a request for them in flight."""
        self.served: dict[str, ServedModel] = {}
        """Models that gateways take requests for, by the name that clients call them."""
        self.graphs: dict[str, GraphSpec] = {}
        """Graphs of models that gateways take requests for, by name."""
        self._shards: dict[str, int] = {}
        """Shard of each of ``models`` and ``retiring``."""
        self._served_by: dict[str, int] = {}
        """The shard that told each of ``served``."""
        self._known = [False] * shards
        """True for each controller that has told all of it."""
        self._workers = [0] * shards
        self._pages = [0] * shards
        self._states: dict[str, ModelStatus] = {}
        self._of: dict[str, set[str]] = {}
        """The names in ``models``, by what clients call the model."""
        self._news: set[str] | None = None
        """Names of models about which something was told that `news` has not returned; None: all."""

    @property
    def known(self) -> bool:
        """Return whether all controllers have told all of it."""
        return all(self._known)

    @property
    def workers(self) -> int:
        """Return the number of workers that are connected."""
        return sum(self._workers)

    @property
    def pages(self) -> int:
        """Return the least, over shards with workers, of the pages of a shard's largest worker."""
        return min([each for each in self._pages if each], default=0)

    def knows(self, shard: int) -> bool:
        """Return whether a shard's controller has told all of it."""
        return self._known[shard]

    def shard_of(self, name: str) -> int | None:
        """Return the shard of one of ``models`` and ``retiring``."""
        return self._shards.get(name)

    def lost(self, shard: int = 0) -> None:
        """A controller is gone; what it told stands until another one does."""
        self._known[shard] = False
        self._news = None

    def welcomed(self, shard: int = 0) -> None:
        """A controller begins to tell all that it knows."""
        self._known[shard] = False
        if shard == 0:
            self.graphs.clear()  # The first controller keeps them.
        for name in [name for name, at in self._shards.items() if at == shard]:
            spec = self.models.pop(name, None)
            if spec is not None:
                self._gone(spec)
            self._forget(name)
        for name in [name for name, at in self._served_by.items() if at == shard]:
            del self.served[name], self._served_by[name]
        self._news = None

    def complete(self, shard: int = 0) -> None:
        """A controller has told all."""
        self._known[shard] = True
        self._news = None

    def news(self) -> set[str] | None:
        """Return of which models something was told since the last call, by what clients call them; None
        for all."""
        news, self._news = self._news, set()
        return news

    def models_of(self, name: str) -> list[str]:
        """Return the names in ``models`` of the versions of a model, sorted."""
        return sorted(self._of.get(name, ()))

    def public_names(self) -> Iterable[str]:
        """Return what clients call the models in ``models``."""
        return self._of.keys()

    def heard(self, message: ModelUp | ModelDown | Served | Graph | ShardMap, shard: int = 0) -> None:
        """Take note of what a controller tells gateways."""
        match message:
            case ModelUp(model=spec):
                if spec.served_as:
                    self.models[spec.name] = spec
                    self._shards[spec.name] = shard
                    self._of.setdefault(spec.served_as, set()).add(spec.name)
                    self.retiring.pop(spec.name, None)
                    self._tell(spec.served_as)
            case ModelDown(name=name, drain=drain) if self._shards.get(name, shard) == shard:
                gone = self.models.pop(name, None)
                if gone is not None:
                    self._gone(gone)
                if drain and gone is not None:
                    self.retiring[name] = gone
                elif not drain:
                    self._forget(name)
            case Graph(name=name, graph=graph):
                self._tell(name)
                self.graphs.pop(name, None)
                if graph is not None:
                    self.graphs[name] = graph
            case Served(model=model):
                self._tell(model.name)
                if model.versions:
                    self.served[model.name] = model
                    self._served_by[model.name] = shard
                elif self._served_by.get(model.name, shard) == shard:
                    self.served.pop(model.name, None)
                    self._served_by.pop(model.name, None)

    def _forget(self, name: str) -> None:
        for each in (self.retiring, self._states, self._shards):
            each.pop(name, None)

    def _gone(self, spec: ModelSpec) -> None:
        names = self._of[spec.served_as]
        names.discard(spec.name)
        if not names:
            del self._of[spec.served_as]
        self._tell(spec.served_as)

    def _tell(self, name: str) -> None:
        if self._news is not None:
            self._news.add(name)

    def status(self, status: ClusterStatus, shard: int = 0) -> None:
        """Take note of where a shard's models are prepared."""
        self._workers[shard] = len(status.workers)
        self._pages[shard] = max((worker.pages for worker in status.workers), default=0)
        for name in [name for name in self._states if self._shards.get(name) == shard]:
            del self._states[name]
        for state in status.models:
            if state.name in self.models and self._shards[state.name] == shard:
                self._states[state.name] = state

    def preparation(self, name: str) -> Preparation:
        """Return how far the workers of its shard are with a model."""
        state, workers = self._states.get(name), self._workers[self._shards.get(name, 0)]
        if state is None:
            return Preparation(0, 0, workers, "")
        return Preparation(
            len(state.prepared_on), len(state.failed_on), workers, next(iter(state.failed_on), "")
        )

    def is_resident(self, name: str) -> bool:
        """Return whether the model is in some worker's pages."""
        state = self._states.get(name)
        return state is not None and bool(state.resident_on)

    def in_use(self, model: str, version: int) -> bool:
        """Return whether the version that a new version, or content, replaces is in some worker's pages."""
        served = self.versions_of(model)
        replaced = served.get(version) or (served[max(served)] if served and version > max(served) else "")
        return self.is_resident(replaced)

    def versions_of(self, name: str) -> dict[int, str]:
        """Return the versions that gateways take requests for."""
        served = self.served.get(name)
        return dict(served.versions) if served is not None else {}

    def specs(self, names: Iterable[str]) -> list[ModelSpec]:
        """Return the specifications of these models, of those that are there."""
        return [self.models[name] for name in names if name in self.models]


class Preparation(msgspec.Struct, frozen=True):
    """The progress of the workers' preparation of one model."""

    prepared: int
    """Workers that have prepared it."""
    failed: int
    """Workers that could not."""
    workers: int
    """Workers of the model's shard that are connected."""
    why: str
    """Text of one of the failures; empty without one."""

    @property
    def everywhere(self) -> bool:
        """Return whether every worker has prepared it or can't, and one has."""
        return self.prepared > 0 and self.prepared + self.failed >= self.workers

    @property
    def nowhere(self) -> bool:
        """Return whether no worker can prepare it."""
        return self.failed > 0 and self.failed >= self.workers


class Stage(Enum):
    """The progress of a build, in words for the index."""

    WAITING = "it waits to be compiled"
    QUEUED = "it waits to be compiled behind others"
    COMPILING = "it is being compiled"
    COMPILED = "the workers prepare it"
    WARMING = "a worker loads it before it takes the place of what is in use"
    READY = ""
    FAILED = "it can't be served"


class Patience(NamedTuple):
    """The time for which a build waits for what would be better, in nanoseconds."""

    prepare_ns: int
    """Time for which it waits for the other workers, once one has prepared it."""
    warm_ns: int
    """Time for which it waits for a worker to load it."""


@dataclass(slots=True)
class Build:
    """One content of a version, by the name of its artifact."""

    name: str
    model: str
    version: int
    digest: str
    """Digest of its files."""
    recipe: Recipe
    file_name: str
    stage: Stage = Stage.WAITING
    reason: str = ""
    """Reason why it failed; empty if it did not."""
    passing: bool = False
    """True if the reason is not in its content, which is tried again at the next look."""
    spec: ModelSpec | None = None
    """Specification that the compiler made of it, once it is compiled."""
    prepared_ns: int | None = None
    """Instant at which a first worker had prepared it."""
    warming_ns: int = 0
    """Instant at which it was first to be loaded."""
    ahead: int = 0
    """Builds that are compiled before it, if it is queued."""

    def fail(self, reason: str, *, passing: bool = False) -> None:
        """Give it up; if ``passing``, until its files are looked at again."""
        self.stage, self.passing = Stage.FAILED, passing
        self.reason = for_clients(reason, self.name, self.model)

    def compiled(self, spec: ModelSpec) -> None:
        """Its artifact is in the store."""
        self.stage, self.spec = Stage.COMPILED, spec

    @property
    def progress(self) -> str:
        """Return how far it is, in words; empty if it is ready."""
        if self.stage is not Stage.QUEUED:
            return str(self.stage.value)
        # In round numbers where many wait: each change is told to every gateway.
        step = int("1" + "0" * (len(str(self.ahead)) - 2))
        least = "at least " if self.ahead % step else ""
        others = "1 other" if self.ahead == 1 else f"{self.ahead // step * step:,} others"
        return f"{Stage.WAITING.value}, behind {least}{others}"

    @property
    def pending(self) -> bool:
        """Return whether it may still become ready."""
        return self.stage not in (Stage.READY, Stage.FAILED)

    def settle(self, now_ns: int, cluster: Cluster, patience: Patience) -> None:
        """See whether the workers have prepared it: all of them, or one for long enough.

        What takes the place of a version that is in use is loaded first, so that no request has to wait for
        it, if that does not take too long.
        """
        if self.spec is None or self.stage is Stage.FAILED or not cluster.known:
            return
        if self.name not in cluster.models:
            self.stage, self.prepared_ns = Stage.COMPILED, None
            return
        if self.stage is Stage.READY:
            return
        if self.stage is Stage.WARMING:
            if cluster.is_resident(self.name) or now_ns - self.warming_ns >= patience.warm_ns:
                self.stage = Stage.READY
            return
        if cluster.workers and self.spec.pages > cluster.pages:
            self.fail(
                f"it needs {self.spec.pages} pages of 16 MiB and the largest worker has {cluster.pages}; "
                "give workers more with --pages"
            )
            return
        there = cluster.preparation(self.name)
        if there.prepared and self.prepared_ns is None:
            self.prepared_ns = now_ns
        patient = self.prepared_ns is None or now_ns - self.prepared_ns < patience.prepare_ns
        if there.everywhere or not patient:
            warms = cluster.in_use(self.model, self.version) and not cluster.is_resident(self.name)
            self.stage = Stage.WARMING if warms else Stage.READY
            self.warming_ns = now_ns
        elif there.nowhere:
            self.fail(f"no worker can prepare it: {there.why}")


@dataclass(slots=True)
class Record:
    """The state of one model of the repository."""

    name: str
    found: FoundModel
    """Content of its folder when it was last whole."""
    loaded: bool
    """True if it is to be served at all."""
    settling: bool = False
    """True if its files were being changed when they were last looked at."""
    gone: bool = False
    """True if its folder was deleted."""
    builds: dict[str, Build] = field(default_factory=dict)
    """Builds that are wanted, and those that failed, by the artifact's name."""
    refused: tuple[GraphSpec, str] | None = None
    """The graph that the controller refused last, and why."""
    _seen: FoundModel | None = None
    """Content that the last look found, whole or not."""
    _names: dict[int, str] = field(default_factory=dict)
    _faults: dict[str, str] = field(default_factory=dict)

    def has_seen(self, found: FoundModel) -> bool:
        """Return whether the folder holds what it held before, and nothing in it is to be tried again."""
        return (
            found is self._seen and not self.gone and not any(build.passing for build in self.builds.values())
        )

    def see(self, found: FoundModel) -> None:
        """Take in what the folder holds; while that changes, what it was before stands."""
        self._seen = found
        self.gone, self.settling = False, bool(found.settling)
        if found.settling and not self.found.settling:
            return
        self.found = found
        self._names, self._faults = {}, {}
        self.tidy()

    @property
    def wanted(self) -> dict[int, Build]:
        """The builds of the versions that are to be served; those that are missing are created."""
        if self.gone or not self.loaded or self.found.fault:
            return {}
        return {number: self.build(number) for number in self.found.chosen}

    def graph_step(self, cluster: Cluster) -> SetGraph | None:
        """Return what makes the controller serve the graph that it is, or no more; None if all is done."""
        graph, told = self.found.config.graph, cluster.graphs.get(self.name)
        if graph is None or not cluster.known or self.found.fault or self.found.settling:
            return None
        wanted = graph if self.loaded and not self.gone else None
        if wanted == told or (wanted is not None and self.refused is not None and self.refused[0] == wanted):
            return None
        return SetGraph(self.name, wanted)

    def build(self, number: int) -> Build:
        """Return the build of a version's present content."""
        found = self.found
        if number not in self._names:
            self._names[number] = artifact_name(
                self.name, number, found.digests[number], recipe_of(found.config)
            )
        name = self._names[number]
        if name not in self.builds:
            digest, file_name = found.digests[number], found.config.file_name
            self.builds[name] = Build(name, self.name, number, digest, recipe_of(found.config), file_name)
        return self.builds[name]

    def fault(self, build: Build) -> str:
        """Return why a build can't be served with the present configuration, empty if it can."""
        if build.stage is Stage.FAILED or build.spec is None:
            return build.reason
        if build.name not in self._faults:
            self._faults[build.name] = ""
            try:
                served_spec(build.spec, self.name, build.version, self.found.config)
            except ConfigFault as error:
                self._faults[build.name] = f"config.pbtxt: {error}"
        return self._faults[build.name]

    def has_failed(self, config: ModelConfig, number: int, digest: str) -> bool:
        """Say whether this content of a version is known not to be servable."""
        build = self.builds.get(artifact_name(self.name, number, digest, recipe_of(config)))
        return build is not None and build.stage is Stage.FAILED and not build.passing

    def tidy(self) -> None:
        """Forget the builds of contents that the folder does not hold any more."""
        if self.found.fault or self.settling:
            return
        self.builds = {name: build for name, build in self.builds.items() if not build.passing}
        keep = {self.build(number).name for number in self.found.digests}
        self.builds = {name: build for name, build in self.builds.items() if name in keep}

    def retry(self) -> None:
        """Forget what failed, so that it is tried again."""
        self.builds = {name: build for name, build in self.builds.items() if build.stage is not Stage.FAILED}


def awaits(record: Record, cluster: Cluster) -> str:
    """Return why a model that is to be served is not; empty if it is, or is not to be."""
    if record.gone or not record.loaded or cluster.versions_of(record.name):
        return ""
    if record.found.fault:
        return why(CANT_BE_LOADED, record.found.fault)
    if (graph := record.found.config.graph) is not None:
        if cluster.graphs.get(record.name) == graph:
            return ""
        if record.refused is not None and record.refused[0] == graph:
            return why(CANT_BE_LOADED, record.refused[1])
        return why(STARTING, "gateways are about to serve it")
    faults = []
    # A version that has failed is no longer wanted once its folder has been looked at again.
    builds = record.wanted or {number: record.build(number) for number in record.found.digests}
    for number, build in sorted(builds.items(), reverse=True):
        if fault := record.fault(build):
            faults.append(f"version {number}: {fault}")
        else:
            words = {Stage.WAITING: WAITS, Stage.QUEUED: WAITS, Stage.COMPILING: BEING_COMPILED}
            progress = build.progress or "gateways are about to serve it"
            return why(words.get(build.stage, STARTING), f"version {number}: {progress}")
    return why(CANT_BE_LOADED, faults[0]) if faults else why(STARTING, "its files are looked at")
