"""What a worker that joins has prepared, entered bit by bit: it may be tens of thousands of models.

What is asked about earlier is entered then (`cluster.pairs`). So the state is, at each look at it, as if all
had been entered when the worker joined, and a join holds nobody up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.messages.model import Artifact, ModelSpec

if TYPE_CHECKING:
    from mainspring.cluster.state import Cluster
    from mainspring.cluster.workers import Worker

ENTERED_AT_ONCE: Final = 128
"""Models of a worker that are entered at a time."""


class Joining:
    """A worker's prepared models that are yet to be entered."""

    __slots__ = ("_cluster", "_unwelcome", "left", "worker")

    def __init__(self, cluster: Cluster, worker: Worker, prepared: Mapping[str, Artifact]) -> None:
        self.worker = worker
        self.left = dict(prepared)
        """What is prepared of each model, by name."""
        self._cluster = cluster
        self._unwelcome: list[Placement] = []

    def enter(self, name: str) -> None:
        """Enter what the worker has of a model's name, unless it was entered before."""
        artifact = self.left.pop(name, None)
        if artifact is None:
            return
        cluster, worker = self._cluster, self.worker
        model = cluster.models.get(name)
        if model is not None and model.on(worker.kind).artifact == artifact:
            model.prepared |= worker.bit
            model.where = None
            worker.prepared += 1
            return
        placement = orphan(cluster, worker, name) if model is None else cluster.place(model, worker)
        placement.enter(State.PREPARED)
        placement.leave()
        self._unwelcome.append(placement)

    def some(self, most: int = ENTERED_AT_ONCE) -> None:
        """Enter a part; after the last one the worker is no longer joining."""
        left = self.left
        for _ in range(min(most, len(left))):
            self.enter(next(reversed(left)))
        if not left:
            self.end()

    def end(self) -> None:
        """Enter nothing more: all is entered, or the worker is gone."""
        if self.worker.joining is self:
            self.worker.joining = None
            self._cluster.joining.remove(self)

    def unwelcome(self) -> list[Placement]:
        """Return, once, what was entered and has to be taken off the worker."""
        found, self._unwelcome = self._unwelcome, []
        return found


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
