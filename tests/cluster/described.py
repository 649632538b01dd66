"""A cluster's state as plain values, to compare two of them."""

from __future__ import annotations

from typing import Any

from mainspring.cluster.device_kinds import Estimates
from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.requests import Request
from mainspring.cluster.rolling import Rolling
from mainspring.cluster.state import Cluster
from mainspring.cluster.timeline import Timeline
from mainspring.cluster.workers import Worker

COUNTS = ("arrived", "finished", "late", "rejected", "slo_ns", "outlier")


def described(cluster: Cluster) -> dict[str, Any]:
    """Return all that `apply` keeps, and nothing that is the scheduler's own."""
    return {
        "models": {name: _model(cluster, model) for name, model in cluster.models.items()},
        "workers": {name: _worker(worker) for name, worker in cluster.workers.items()},
        "open": cluster.open_workers,
        "requests": {request.id: _request(request) for request in cluster.requests.values()},
        "running": {action_id: [_request(each) for each in b] for action_id, b in cluster.running.items()},
        "queries": {
            query.id: (query.event, query.arrived_ns, query.due_ns, tuple(query.done), sorted(query.open))
            for query in cluster.queries.values()
        },
        "queued": cluster.queued,
        "shares": cluster.graph_shares,
        "drained": list(cluster.drained),
        "pinned": list(cluster.pinned),
        "operations": list(cluster.operations.items()),
        "kinds": {n: (k.provider, k.offer, k.workers, k.in_time, k.late) for n, k in cluster.kinds.items()},
        "retiring": list(cluster.retiring.items()),
        "moving": dict(cluster.moving),
        "estimates": _estimates(cluster.estimates),
    }


def _named(cluster: Cluster, workers: int) -> list[str]:
    return [worker.name for worker in cluster.workers.values() if workers & worker.bit]


def _model(cluster: Cluster, model: Model) -> dict[str, Any]:
    return {
        "number": model.number,
        "spec": model.spec,
        "queue": [request.id for request in model.queue],
        "dues": list(model.queue.dues),
        "rows": model.queue.rows,
        "backlog": [request.id for request in model.backlog],
        "prepared": sorted(_named(cluster, model.prepared)),
        "absent": sorted(_named(cluster, model.absent)),
        "usable": list(model.usable),
        "counts": [getattr(model.counts, name) for name in COUNTS],
        "overdue": model.overdue or {},
        "losses": model.losses
        and (
            *(model.losses.by_action, model.losses.last_ns),
            *(model.losses.worker, model.losses.action),
        ),
        "infer": {kind: list(times.ns) for kind, times in model.infer_times.items()},
        "inputs": {kind: list(times.transfer_ns) for kind, times in model.infer_times.items()},
        "load": {kind: time.ns for kind, time in model.load_times.items()},
        "buckets": {ceilings: _model(cluster, bucket) for ceilings, bucket in model.buckets.items()},
    }


def _worker(worker: Worker) -> dict[str, Any]:
    return {
        "number": worker.number,
        "kind": worker.device_kind,
        "free": worker.pages.free,
        "owners": [worker.pages.owner(page) for page in range(worker.pages.size)],
        "exec": _timeline(worker.exec),
        "inputs": (worker.exec.inputs_free_ns, worker.exec.inputs_came_ns),
        "load": _timeline(worker.load),
        "others": list(worker.others.items()),
        "placements": {n: _placement(each) for n, each in worker.placements.items() if not each.plain},
        "lru": list(worker.lru),
        "counts": (worker.prepares, worker.prepared, worker.lead_ns),
        "flags": (worker.stopping, worker.draining, worker.retiring),
    }


def _placement(placement: Placement) -> tuple[Any, ...]:
    slot = placement.load_slot
    return (
        placement.state,
        placement.detail,
        (placement.failures, placement.infers, placement.last_used_ns),
        (placement.leaving, placement.usable, placement.given_up),
        placement.pages,
        None if slot is None else slot.action,
        [_placement(bucket) for bucket in placement.buckets],
    )


def _timeline(timeline: Timeline[Any]) -> tuple[Any, ...]:
    slots = [
        (slot.action, slot.begin_ns, slot.end_ns, slot.ready_ns, slot.soonest_ns, slot.transfer_ns)
        for slot in timeline._slots.values()
    ]
    return timeline.free_ns, timeline._first_end_ns, slots


def _request(request: Request) -> tuple[Any, ...]:
    return (
        request.event,
        request.arrived_ns,
        request.due_ns,
        request.turn_ns,
        request.cold,
        request.place,
        request.model.number,
    )


def _estimates(estimates: Estimates) -> dict[Any, Any]:
    found: dict[Any, Any] = {"per byte": estimates._load_ns_per_byte}
    for key, times in estimates._infer.items():
        transfers = {index: _rolling(each) for index, each in times._transfers.items()}
        opening = None if times.opening is None else _rolling(times.opening)
        found[key] = [_rolling(each) for each in times._rolling], transfers, opening
    for load_key, time in estimates._load.items():
        found[load_key] = _rolling(time._rolling)
    found["openings"] = {kind: _rolling(each) for kind, each in estimates._openings.items()}
    return found


def _rolling(rolling: Rolling) -> tuple[Any, ...]:
    return (
        list(rolling._samples),
        rolling._estimate_ns,
        rolling._since_ns,
        (rolling._doubts, rolling._doubted, rolling._halfway_ns, rolling._seed_ns, rolling._returns),
    )
