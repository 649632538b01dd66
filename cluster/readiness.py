"""The readiness of a model: whether its requests could be answered now, and why not.

A model is ready if a request with a generous deadline that came now would run: some worker that takes work
has it resident, on its way there, or prepared with room for it.
"""

from __future__ import annotations

from collections.abc import Container

from mainspring.cluster.deferred_join import settle
from mainspring.cluster.models import Model
from mainspring.cluster.residency import hosts, is_barred, is_loadable
from mainspring.cluster.state import Cluster
from mainspring.cluster.status import impossible
from mainspring.messages.served import CANT_BE_LOADED, NO_WORKER, STARTING, why

NOBODY: frozenset[str] = frozenset()


class Takers:
    """The workers that take work, for many questions of one moment; sets of `Worker.bit`."""

    __slots__ = ("load", "pages", "run", "silent")

    def __init__(self, run: int, load: int, pages: int, silent: Container[str]) -> None:
        self.run = run
        """Workers that run what they hold."""
        self.load = load
        """Workers that load, too."""
        self.pages = pages
        """Least number of pages of a worker that loads."""
        self.silent = silent
        """Names of workers that give no sign of life, and may be lost."""


def takers(cluster: Cluster, silent: Container[str] = NOBODY) -> Takers:
    """Return the workers that take work now."""
    open_to_work = [
        worker
        for worker in cluster.workers.values()
        if not (worker.draining or worker.stopping or worker.name in silent)
    ]
    loading = [worker for worker in open_to_work if not worker.retiring]
    return Takers(
        run=sum([worker.bit for worker in open_to_work]),
        load=sum([worker.bit for worker in loading]),
        pages=min([worker.pages.size for worker in loading], default=0),
        silent=silent,
    )


def why_not(cluster: Cluster, model: Model, among: Takers) -> str:
    """Return why a model's requests could not be answered, in the words of `messages.readiness`.

    Empty if they could. ``among`` is of the same moment.
    """
    if cluster.joining:
        settle(cluster, model.name)
    ready = model.prepared & among.load
    if cluster.owners:
        ready &= sum([worker.bit for worker in cluster.workers.values() if model.may_run_on(worker)])
    if (ready and model.pages <= among.pages) or _held(model) & among.run:
        return ""
    for worker in hosts(cluster, model):
        if worker.bit & among.load and is_loadable(model, worker) and not is_barred(model, worker):
            return ""
    return _explained(cluster, model, among)


def _held(model: Model) -> int:
    """Return the workers that hold a model, or one of its buckets."""
    held = model.held
    for bucket in model.buckets.values():
        held |= bucket.held
    return held


def _explained(cluster: Cluster, model: Model, among: Takers) -> str:
    if not cluster.workers:
        return why(NO_WORKER, "none is connected")
    # What no worker could ever run is not to be blamed on one that gives no sign of life.
    if not any(model.pages_on(worker) <= worker.pages.size for worker in cluster.workers.values()):
        return why(CANT_BE_LOADED, impossible(cluster, model)[1])
    able = [worker for worker in hosts(cluster, model) if not is_barred(model, worker)]
    if not able and hosts(cluster, model):
        # Workers that are others' own say nothing of whether the model could be loaded.
        others = not any(model.may_run_on(worker) for worker in hosts(cluster, model))
        return why(NO_WORKER if others else CANT_BE_LOADED, impossible(cluster, model)[1])
    silent = [name for name in cluster.workers if name in among.silent]
    if silent and len(silent) == len(cluster.workers):
        verb = "gives" if len(silent) == 1 else "give"
        return why(NO_WORKER, f"{', '.join(silent[:5])} {verb} no sign of life")
    if able and not any(worker.bit & among.load for worker in able):
        states = [_idle(worker.name, silent, draining=worker.draining) for worker in able[:5]]
        return why(NO_WORKER, "; ".join(states))
    return why(STARTING, "the workers prepare it")


def _idle(worker: str, silent: list[str], *, draining: bool) -> str:
    if worker in silent:
        return f"{worker} gives no sign of life"
    return f"{worker} was drained by an operator" if draining else f"{worker} is about to leave"
