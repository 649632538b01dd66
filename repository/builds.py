"""Each content of each version on its way from files to service. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mainspring.messages.model import ModelSpec
from mainspring.messages.readiness import BEING_COMPILED, CANT_BE_LOADED, STARTING, why
from mainspring.repository.cluster import Cluster
from mainspring.repository.layout import FoundModel
from mainspring.repository.model_config import ModelConfig
from mainspring.repository.reading import ConfigFault
from mainspring.repository.recipe import Recipe, artifact_name, recipe_of, served_spec


class Stage(Enum):
    """The progress of a build, in words for the index."""

    WAITING = "it waits to be compiled"
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

    def fail(self, reason: str, *, passing: bool = False) -> None:
        """Give it up; if ``passing``, until its files are looked at again."""
        self.stage, self.reason, self.passing = Stage.FAILED, reason, passing

    def compiled(self, spec: ModelSpec) -> None:
        """Its artifact is in the store."""
        self.stage, self.spec = Stage.COMPILED, spec

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
    faults = []
    # A version that has failed is no longer wanted once its folder has been looked at again.
    builds = record.wanted or {number: record.build(number) for number in record.found.digests}
    for number, build in sorted(builds.items(), reverse=True):
        if fault := record.fault(build):
            faults.append(f"version {number}: {fault}")
        elif build.stage in (Stage.WAITING, Stage.COMPILING):
            return why(BEING_COMPILED, f"version {number}: {build.stage.value}")
        else:
            return why(STARTING, f"version {number}: {build.stage.value or 'gateways are about to serve it'}")
    return why(CANT_BE_LOADED, faults[0]) if faults else why(STARTING, "its files are looked at")
