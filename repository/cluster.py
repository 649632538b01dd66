"""What the cluster has, as the controller tells it to every gateway, and as its status says. Pure.

The repository never remembers what it has asked for: it compares what should be with what is here, and asks
for the difference. A restarted controller therefore gets everything again in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import ClusterStatus, ModelDown, ModelStatus, ModelUp, Served
from mainspring.messages.served import ServedModel
from mainspring.messages.sharding import ShardMap


class Cluster:
    """The models of one controller's session."""

    def __init__(self) -> None:
        self.models: dict[str, ModelSpec] = {}
        """Of a repository, by the scheduler's name, without those that are to go."""
        self.retiring: dict[str, ModelSpec] = {}
        """Those that go once no gateway has a request for them in flight."""
        self.served: dict[str, ServedModel] = {}
        """What gateways take requests for, by what clients call it."""
        self.known = False
        """Whether a controller has told all of it."""
        self.workers = 0
        self.pages = 0
        """Of the worker that has most."""
        self._states: dict[str, ModelStatus] = {}
        self._of: dict[str, set[str]] = {}
        """The names in ``models``, by what clients call the model."""
        self._news: set[str] | None = None
        """Of which models something was told that `news` has not returned; None: of all."""

    def lost(self) -> None:
        """The controller is gone; what it told stands until another one does."""
        self.known = False
        self._news = None

    def welcomed(self) -> None:
        """A controller begins to tell all that it knows."""
        self.known = False
        self.models, self.retiring, self.served, self._states, self._of = {}, {}, {}, {}, {}
        self._news = None

    def complete(self) -> None:
        """The controller has told all."""
        self.known = True
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

    def heard(self, message: ModelUp | ModelDown | Served | ShardMap) -> None:
        """Take note of what the controller tells gateways."""
        match message:
            case ModelUp(model=spec):
                if spec.served_as:
                    self.models[spec.name] = spec
                    self._of.setdefault(spec.served_as, set()).add(spec.name)
                    self.retiring.pop(spec.name, None)
                    self._tell(spec.served_as)
            case ModelDown(name=name, drain=drain):
                gone = self.models.pop(name, None)
                if gone is not None:
                    self._gone(gone)
                if drain and gone is not None:
                    self.retiring[name] = gone
                elif not drain:
                    self.retiring.pop(name, None)
                    self._states.pop(name, None)
            case Served(model=model):
                self._tell(model.name)
                if model.versions:
                    self.served[model.name] = model
                else:
                    self.served.pop(model.name, None)

    def _gone(self, spec: ModelSpec) -> None:
        names = self._of[spec.served_as]
        names.discard(spec.name)
        if not names:
            del self._of[spec.served_as]
        self._tell(spec.served_as)

    def _tell(self, name: str) -> None:
        if self._news is not None:
            self._news.add(name)

    def status(self, status: ClusterStatus) -> None:
        """Take note of where models are prepared."""
        self.workers = len(status.workers)
        self.pages = max((worker.pages for worker in status.workers), default=0)
        self._states = {state.name: state for state in status.models if state.name in self.models}

    def preparation(self, name: str) -> Preparation:
        """Return how far the workers are with a model."""
        state = self._states.get(name)
        if state is None:
            return Preparation(0, 0, self.workers, "")
        return Preparation(
            len(state.prepared_on), len(state.failed_on), self.workers, next(iter(state.failed_on), "")
        )

    def is_resident(self, name: str) -> bool:
        """Whether the model is in some worker's pages."""
        state = self._states.get(name)
        return state is not None and bool(state.resident_on)

    def in_use(self, model: str, version: int) -> bool:
        """Whether what a new version, or content, takes the requests of is in some worker's pages."""
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
    """Of one model."""

    prepared: int
    """Workers that have prepared it."""
    failed: int
    """Workers that could not."""
    workers: int
    """All that are connected."""
    why: str
    """One of the failures."""

    @property
    def everywhere(self) -> bool:
        """Whether every worker has prepared it or can't, and one has."""
        return self.prepared > 0 and self.prepared + self.failed >= self.workers

    @property
    def nowhere(self) -> bool:
        """Whether no worker can."""
        return self.failed > 0 and self.failed >= self.workers
