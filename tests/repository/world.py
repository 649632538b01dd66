"""A cluster and a folder made of nothing, for the reconciler to keep in step."""

from __future__ import annotations

import dataclasses

import msgspec

from mainspring.messages.model import ModelSpec, Profile, TensorSpec
from mainspring.messages.peers import ModelDown, ModelUp, Served
from mainspring.messages.repository import ModelState
from mainspring.messages.served import ServedModel
from mainspring.messages.status import ClusterStatus, ModelStatus, WorkerStatus
from mainspring.repository.builds import Patience
from mainspring.repository.layout import FoundModel
from mainspring.repository.model_config import ModelConfig
from mainspring.repository.reconciler import Add, Compile, Reconciler, Retire, Serve, Warm, index_of

PATIENCE_NS = 1_000
PATIENCE = Patience(PATIENCE_NS, PATIENCE_NS)
BROKEN = "broken"
"""Digests that begin so don't compile."""
UNVERIFIED = "unverified"
"""Digests that begin so run on no sample."""
UNFIT = "unfit"
"""Digests that begin so can't be prepared by any worker."""


def spec(name: str, pages: int = 1) -> ModelSpec:
    return ModelSpec(
        name=name,
        weights_hash=name,
        executable="x",
        batch_sizes=(1, 2),
        weights_bytes=1,
        extents=(1,) * pages,
        inputs=(TensorSpec("x", "float32", (4,)),),
        outputs=(TensorSpec("y", "float32", (4,)),),
        profiles={"cpu": Profile({1: 1, 2: 1}, 1)},
    )


@dataclasses.dataclass
class World:
    """A folder, a controller and two workers that do what the reconciler asks, and check what it asks."""

    reconciler: Reconciler = dataclasses.field(
        default_factory=lambda: Reconciler(explicit=False, patience=PATIENCE)
    )
    folder: dict[str, FoundModel] = dataclasses.field(default_factory=dict)
    prepared: dict[str, int] = dataclasses.field(default_factory=dict)
    """Workers that have prepared a model."""
    resident: set[str] = dataclasses.field(default_factory=set)
    """Models in some worker's pages."""
    loads: bool = True
    """Whether workers have idle time to load a model in."""
    told: list[ServedModel] = dataclasses.field(default_factory=list)
    compiled: list[str] = dataclasses.field(default_factory=list)
    now_ns: int = 0

    def __post_init__(self) -> None:
        self.start_controller()

    def start_controller(
        self, specs: tuple[ModelSpec, ...] = (), served: tuple[ServedModel, ...] = ()
    ) -> None:
        cluster = self.reconciler.cluster
        cluster.welcomed()
        for each in specs:
            cluster.heard(ModelUp(each))
        for model in served:
            cluster.heard(Served(model))
        cluster.complete()

    def put(self, name: str, versions: dict[int, str], config: ModelConfig | None = None) -> None:
        """Have the folder hold these versions, by their digests."""
        self.folder[name] = FoundModel(
            name=name, config=config or DEFAULTS, given=True, digests=versions, numbers=tuple(versions)
        )

    def look(self) -> None:
        """Look at the folder as `Layout` does."""
        for name, model in self.folder.items():
            if model.settling:
                self.reconciler.found(name, model)
                continue
            broken: set[int] = set()
            while True:
                chosen = model.config.version_policy.choose([n for n in model.numbers if n not in broken])
                worse = {
                    n for n in chosen if self.reconciler.has_failed(name, model.config, n, model.digests[n])
                }
                if not worse:
                    break
                broken |= worse
            digests = {n: d for n, d in model.digests.items() if n in chosen or n in broken}
            fault = model.fault or ("" if model.numbers else "it holds no version")
            looked = msgspec.structs.replace(model, chosen=tuple(chosen), digests=digests, fault=fault)
            self.reconciler.found(name, looked)
        self.reconciler.missing(self.folder)

    def step(self) -> int:
        """Do what is to be done; return how much that was."""
        self.now_ns += 1
        steps = self.reconciler.steps(self.now_ns)
        for each in steps:
            match each:
                case Compile(build=build):
                    self.compiled.append(build.name)
                    made = msgspec.structs.replace(
                        spec(build.name), verified=not build.digest.startswith(UNVERIFIED)
                    )
                    build.fail(BROKEN) if build.digest.startswith(BROKEN) else build.compiled(made)
                case Add(spec=added):
                    self.prepared.setdefault(added.name, 0)
                    self.reconciler.cluster.heard(ModelUp(added))
                case Warm(name=name):
                    if self.loads:
                        self.resident.add(name)
                case Serve(model=model, specs=specs):
                    assert all(self.prepared.get(name) for name in model.versions.values()), model
                    assert set(model.versions.values()) <= {every.name for every in specs}
                    self.told.append(model)
                    self.reconciler.cluster.heard(Served(model))
                case Retire(name=name):
                    assert not any(
                        name in m.versions.values() for m in self.reconciler.cluster.served.values()
                    )
                    self.reconciler.cluster.heard(ModelDown(name, drain=True))
        return len(steps)

    def status(self, prepared_on: int = 2) -> None:
        """Have so many of the two workers prepare every model, and say so."""
        failing = {
            build.name
            for record in self.reconciler.records.values()
            for build in record.builds.values()
            if build.digest.startswith(UNFIT)
        }
        workers = ("w0", "w1")
        states = []
        for name in self.reconciler.cluster.models:
            able = () if name in failing else workers[:prepared_on]
            self.prepared[name] = len(able)
            resident = able[:1] if name in self.resident else ()
            states.append(
                ModelStatus(name, 1, able, resident, 0, ("w0: no", "w1: no") if name in failing else ())
            )
        of_workers = tuple(WorkerStatus(worker, "cpu", 4, 4, 0, 0, 0, 0, ()) for worker in workers)
        self.reconciler.cluster.status(ClusterStatus("p", of_workers, tuple(states), 0, {}))

    def drained(self) -> None:
        """Have every gateway let go of what is to go."""
        for name in list(self.reconciler.cluster.retiring):
            self.reconciler.cluster.heard(ModelDown(name))

    def settle(self) -> None:
        """Go on until there is nothing to do."""
        for _ in range(50):
            self.look()
            done = self.step()
            self.status()
            self.drained()
            if not done and not self.step():
                # What rests has nothing to be done either if it is asked, as after a controller's return.
                self.reconciler.cluster.complete()
                assert not self.step()
                return
        raise AssertionError(f"it does not come to rest: {self.reconciler.steps(self.now_ns)}")

    def served(self, name: str) -> dict[int, str]:
        """Return the digests of the versions that are served."""
        builds = {
            b.name: b.digest for record in self.reconciler.records.values() for b in record.builds.values()
        }
        return {n: builds.get(each, each) for n, each in self.reconciler.cluster.versions_of(name).items()}

    def index(self, name: str) -> dict[str, tuple[ModelState, str]]:
        return {e.version: (e.state, e.reason) for e in index_of(self.reconciler) if e.name == name}


DEFAULTS = ModelConfig()
