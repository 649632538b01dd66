"""The models of the cluster, as the controller tells them to every gateway, and as its status has them. Pure.

The repository never remembers what it has asked for: it compares what should be with what is here, and asks
for the difference. A restarted controller therefore gets everything again in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import ModelDown, ModelUp, Served
from mainspring.messages.served import ServedModel
from mainspring.messages.sharding import ShardMap
from mainspring.messages.status import ClusterStatus, ModelStatus


class Cluster:
    """The models of a session with each controller, of one or several."""

    def __init__(self, shards: int = 1) -> None:
        self.models: dict[str, ModelSpec] = {}
        """Models of a repository, by the scheduler's name, without those that are to go."""
        self.retiring: dict[str, ModelSpec] = {}
        """Models that go once no gateway has a request for them in flight."""
        self.served: dict[str, ServedModel] = {}
        """Models that gateways take requests for, by the name that clients call them."""
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

    def heard(self, message: ModelUp | ModelDown | Served | ShardMap, shard: int = 0) -> None:
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
