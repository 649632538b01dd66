"""Deferred entry of what a joining worker has prepared, part by part: it may be tens of thousands of models.

What is asked about earlier is entered then (`cluster.residency`). So the state is, whenever it is read,
as if all had been entered when the worker joined, and a join holds nobody up.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Joining, Worker
from mainspring.messages.model import Artifact, ModelSpec

ENTERED_AT_ONCE: Final = 128
"""Models of a worker that are entered at a time."""


class DeferredJoin(Joining):
    """A worker's prepared models that are yet to be entered."""

    __slots__ = ("_cluster", "_early", "_entered", "_left", "_names", "_prepared", "_unwelcome")

    def __init__(self, cluster: Cluster, worker: Worker, prepared: dict[str, Artifact]) -> None:
        """``prepared`` says what is prepared of each model, by name; it must not change."""
        super().__init__(worker)
        self._cluster = cluster
        self._prepared = prepared
        self._names: Iterator[str] = reversed(prepared)
        self._left = len(prepared)
        """Number of the models whose turn is still to come, which ``_names`` yields."""
        self._entered: set[str] = set()
        self._early: dict[str, Placement] = {}
        """Placements that were entered early and have to be taken off the worker, by the model's name."""
        self._unwelcome: list[Placement] = []
        """Placements that have to be taken off the worker and have had their turn."""

    def lacks(self, name: str) -> bool:
        """Return whether what the worker has of a model's name is yet to be entered."""
        return name in self._prepared and name not in self._entered

    def enter(self, name: str) -> None:
        """Enter what the worker has of a model's name, unless it was entered before.

        When it is to be taken off does not depend on that: the question need not be in any log.
        """
        if not self.lacks(name):
            return
        self._entered.add(name)
        cluster, worker = self._cluster, self.worker
        model = cluster.models.get(name)
        if model is not None and model.on(worker.kind).artifact == self._prepared[name]:
            model.prepared |= worker.bit
            model.where = None
            worker.prepared += 1
            return
        placement = orphan(cluster, worker, name) if model is None else cluster.place(model, worker)
        placement.enter(State.PREPARED)
        placement.leave()
        self._early[name] = placement

    def some(self, most: int = ENTERED_AT_ONCE) -> None:
        """Enter a part, ``most`` models; after the last one the worker is no longer joining."""
        for name in islice(self._names, most):
            self.enter(name)
            placement = self._early.pop(name, None)
            if placement is not None:
                self._unwelcome.append(placement)
        self._left -= min(most, self._left)
        if not self._left:
            self.end()

    def early(self) -> Iterator[int]:
        """Enter everything before its turn as the generator goes on, a part at a time; yield after each."""
        for number, name in enumerate(reversed(self._prepared), 1):
            self.enter(name)
            if number % ENTERED_AT_ONCE == 0:
                yield number
                if self.worker.joining is not self:
                    return

    def end(self) -> None:
        """Enter nothing more: all is entered, or the worker is gone."""
        if self.worker.joining is self:
            self.worker.joining = None
            self._cluster.joining.remove(self)

    def unwelcome(self) -> list[Placement]:
        """Return, once, what has had its turn and has yet to be taken off the worker."""
        found, self._unwelcome = self._unwelcome, []
        return [placement for placement in found if self.worker.has(placement)]


def settle(cluster: Cluster, name: str) -> None:
    """Enter what workers that join have of a model's name."""
    for joining in list(cluster.joining):
        joining.enter(name)


def orphan(cluster: Cluster, worker: Worker, name: str) -> Placement:
    """Enter a model that a worker has and the cluster does not, so that it can be taken off."""
    spec = ModelSpec(name, "", "", (1,), 0, (), (), (), {})
    placement = cluster.place(Model(spec, 0), worker)
    placement.leave()
    return placement
