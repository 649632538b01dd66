"""What the cluster has, as the controller tells it to every gateway, and as its status says. Pure.

The repository never remembers what it has asked for: it compares what should be with what is here, and asks
for the difference. A controller that was restarted is therefore told of everything again by the same path.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mainspring.messages.model import ModelSpec, ServedModel
from mainspring.messages.peers import ClusterStatus, ModelDown, ModelStatus, ModelUp, Served


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

    def lost(self) -> None:
        """The controller is gone; what it told stands until another one does."""
        self.known = False

    def welcomed(self) -> None:
        """A controller begins to tell all that it knows."""
        self.known = False
        self.models, self.retiring, self.served, self._states = {}, {}, {}, {}

    def complete(self) -> None:
        """The controller has told all."""
        self.known = True

    def heard(self, message: ModelUp | ModelDown | Served) -> None:
        """Take note of what the controller tells gateways."""
        match message:
            case ModelUp(model=spec):
                if spec.served_as:
                    self.models[spec.name] = spec
                    self.retiring.pop(spec.name, None)
            case ModelDown(name=name, drain=drain):
                gone = self.models.pop(name, None)
                if drain and gone is not None:
                    self.retiring[name] = gone
                elif not drain:
                    self.retiring.pop(name, None)
                    self._states.pop(name, None)
            case Served(model=model):
                if model.versions:
                    self.served[model.name] = model
                else:
                    self.served.pop(model.name, None)

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
