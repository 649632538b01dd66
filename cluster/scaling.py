"""Growing and shrinking a cluster: providers' offers, the answers to them, and which workers are to leave."""

from __future__ import annotations

from mainspring.cluster.assigning import regroup
from mainspring.cluster.membership import set_draining
from mainspring.cluster.provision import Kind
from mainspring.cluster.state import Cluster
from mainspring.messages.events import OperatorAsked
from mainspring.messages.operating import ScaleWorkers
from mainspring.messages.scaling import (
    KindState,
    Offer,
    Provide,
    ProviderLeft,
    ProviderSaid,
    Retire,
    ScaleState,
)


def wanted(cluster: Cluster, kind: str) -> int | None:
    """Return how many workers of a kind an operator wants; None if nobody has said so."""
    asked = cluster.operations.get(("kind", kind))
    if asked is None:
        return None
    command = asked[1].command
    return command.count if isinstance(command, ScaleWorkers) else None


def provider_said(cluster: Cluster, event: ProviderSaid) -> None:
    """Enter what a provider runs. One that has only just connected is to run that until the next command."""
    name = event.provider
    for offer in event.offers:
        kind = cluster.kinds.get(offer.kind)
        if kind is None:
            kind = cluster.kinds[offer.kind] = Kind(offer)
        came = tuple([each for each in offer.moved if each not in kind.workers])
        kind.workers = offer.workers if event.greets else (*kind.workers, *came)
        _want_more(cluster, kind, len(came))
        _tidy(cluster, kind)
        kind.provider, kind.offer = name, offer
    offered = [offer.kind for offer in event.offers]
    for kind in cluster.kinds.values():
        if kind.provider == name and kind.name not in offered:
            kind.provider = ""


def provider_left(cluster: Cluster, event: ProviderLeft) -> None:
    """Note that nobody starts or stops these workers for now."""
    for kind in cluster.kinds.values():
        if kind.provider == event.provider:
            kind.provider = ""


def provide(cluster: Cluster, command: Provide) -> None:
    """Note what a provider is to run from now on."""
    kind = cluster.kinds.get(command.kind)
    if kind is None:
        # To a reader that came late.
        kind = cluster.kinds[command.kind] = Kind(Offer(command.kind, "", 0))
        kind.provider = command.provider
    gone = [name for name in command.moved if name in kind.workers]
    kind.workers = command.workers
    _want_more(cluster, kind, -len(gone))
    _tidy(cluster, kind)


def _want_more(cluster: Cluster, kind: Kind, more: int) -> None:
    """Have what operators want of a kind follow the workers that come from, or go to, other controllers."""
    asked = cluster.operations.get(("kind", kind.name))
    if asked is None or not more:
        return
    at_ns, event = asked
    command = event.command
    if isinstance(command, ScaleWorkers):
        counted = ScaleWorkers(command.kind, max(0, command.count + more))
        cluster.operations["kind", kind.name] = at_ns, OperatorAsked(event.who, counted)


def _tidy(cluster: Cluster, kind: Kind) -> None:
    """Forget that workers of a kind were to leave which are gone and do not come back."""
    for name, (of_kind, _) in list(cluster.retiring.items()):
        if of_kind == kind.name and name not in kind.workers and name not in cluster.workers:
            del cluster.retiring[name]
            cluster.moving.pop(name, None)


def retire(cluster: Cluster, note: Retire) -> None:
    """Note that a worker is to leave, or that it is drained."""
    cluster.retiring[note.worker] = note.kind, note.drained
    if note.to:
        cluster.moving[note.worker] = note.to
    set_draining(cluster, note.worker)
    regroup(cluster)


def retain(cluster: Cluster, name: str) -> None:
    """Note that a worker stays that was to leave."""
    cluster.retiring.pop(name, None)
    cluster.moving.pop(name, None)
    set_draining(cluster, name)
    regroup(cluster)


def scale_state(cluster: Cluster) -> ScaleState:
    """Return all of it as an entry of a snapshot."""
    kinds = [
        KindState(each.name, each.provider, each.offer, each.workers, each.in_time, each.late)
        for each in cluster.kinds.values()
    ]
    return ScaleState(tuple(kinds), dict(cluster.retiring), dict(cluster.moving))


def restore_scale(cluster: Cluster, state: ScaleState) -> None:
    """Enter such an entry."""
    cluster.kinds = {}
    for each in state.kinds:
        kind = cluster.kinds[each.kind] = Kind(each.offer)
        kind.provider, kind.workers = each.provider, each.workers
        kind.in_time, kind.late = each.in_time, each.late
    former, cluster.retiring = cluster.retiring, dict(state.retiring)
    cluster.moving = dict(state.moving)
    for name in list({**former, **cluster.retiring}):
        set_draining(cluster, name)
