"""Bounds of what operators may ask for: how many pages are pinned, how few workers are left."""

from __future__ import annotations

from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.provision import Kind
from mainspring.cluster.residency import is_barred, is_hopeless
from mainspring.cluster.state import Cluster
from mainspring.cluster.status import impossible
from mainspring.cluster.workers import Worker
from mainspring.messages.operating import AssignModel, ScaleWorkers

PINNED_SHARE: Final = 0.5
"""Largest share of all workers' pages that pinned models may occupy together."""
MOST_OWN: Final = 4_096
"""Most workers that a model may have of its own."""
NAMED: Final = 8
"""Most kinds that a refusal names."""
NO_PROVIDER: Final = (
    "nothing is connected that starts and stops workers: `mainspring up` does, on its machine; a worker that "
    "was started by hand is stopped by hand"
)


def unpinnable(cluster: Cluster, model: Model) -> str | None:
    """Return why a model may not be pinned: no worker could load it, or no room would be left for others."""
    if not cluster.workers:
        return "no worker is connected"
    if is_hopeless(cluster, model):
        return impossible(cluster, model)[1]
    pinned = [cluster.models[name] for name in cluster.pinned if name in cluster.models]
    need = sum(
        [kept_pages(cluster, each) for each in {each.name: each for each in (*pinned, model)}.values()]
    )
    room = int(PINNED_SHARE * sum([worker.pages.size for worker in cluster.workers.values()]))
    if need <= room:
        return None
    return (
        f"pinned models would take {need} pages, and {room} is the most "
        f"({PINNED_SHARE:.0%} of all workers' pages); unpin another one first"
    )


def unassignable(cluster: Cluster, command: AssignModel) -> str | None:
    """Return why a model can't have workers of its own, and what could be."""
    name, model = command.model, cluster.models.get(command.model)
    if not command.workers:
        return None if name in cluster.assigned else f"{name!r} has no workers of its own"
    if model is None:
        return f"there is no model {name!r}"
    if not 0 <= command.workers <= MOST_OWN:
        return f"there can't be {command.workers} workers; give 0 to {MOST_OWN:,}"
    if not 0 <= command.max_batch <= model.max_rows:
        return f"a batch of {command.max_batch} can't be: the largest of {name!r} has {model.max_rows} rows"
    return None


def unknown_kind(cluster: Cluster, kind: str) -> str | None:
    """Return why there can't be workers of a kind; None if there are, or if it is empty."""
    kinds = {*cluster.kinds, *[worker.device_kind for worker in cluster.workers.values()]}
    if kind and kind not in kinds:
        known = ", ".join(sorted(kinds)[:NAMED]) or "none"
        return f"there is no worker of kind {kind!r}; kinds are {known}"
    return None


def kept_pages(cluster: Cluster, model: Model) -> int:
    """Return how many pages a model takes that is kept: those of the largest artifact that a worker runs."""
    if not model.spec.others:
        return model.pages
    return max([model.on(kind).pages for kind in cluster.of_kind], default=model.pages)


def unscalable(cluster: Cluster, command: ScaleWorkers) -> str | None:
    """Return why there can't be so many workers of a kind, and how many there can be."""
    kind, count = cluster.kinds.get(command.kind), command.count
    there = [name for name, each in cluster.kinds.items() if each.provider]
    if not there:
        return NO_PROVIDER
    if kind is None or not kind.provider:
        kinds = ", ".join(sorted(there)[:NAMED])
        return f"nothing that is connected starts workers of kind {command.kind!r}; kinds are {kinds}"
    if count < 0:
        return f"there can't be {count} workers; give 0 or more"
    if count > kind.offer.most:
        most = kind.offer.most
        return f"{kind.provider} runs at most {most:,} workers of kind {kind.name}, not {count:,}"
    staying = [name for name in kind.workers if name not in cluster.retiring]
    if count >= len(staying):
        return None
    least, why = _least(cluster, kind)
    if count >= min(least, len(staying)):
        return None
    return f"{count} of kind {kind.name} are too few: {why}; give at least {min(least, len(staying))}"


def _least(cluster: Cluster, kind: Kind) -> tuple[int, str]:
    """Return how many workers of a kind models need beside the workers of other kinds, and why."""
    own = [cluster.workers[name] for name in kind.workers if name in cluster.workers]
    others = [
        each for name, each in cluster.workers.items() if name not in kind.workers and not each.retiring
    ]
    need = sum([kept_pages(cluster, cluster.models[n]) for n in cluster.pinned if n in cluster.models])
    room = sum([worker.pages.size for worker in others])
    each_pages = min([worker.pages.size for worker in own], default=0)
    least = 0
    if each_pages:
        while int(PINNED_SHARE * (room + least * each_pages)) < need and least < len(kind.workers):
            least += 1
    if least:
        return least, f"pinned models take {need} pages, {PINNED_SHARE:.0%} of all workers' pages is the most"
    for model in cluster.models.values():
        if not _runs_on(model, others) and _runs_on(model, own):
            return 1, f"{model.name!r} is served, and no other worker can run it"
    return 0, ""


def _runs_on(model: Model, workers: list[Worker]) -> bool:
    """Return whether any of these workers can run a model."""
    for worker in workers:
        if not worker.draining and not model.absent & worker.bit and not is_barred(model, worker):
            return True
    return False
