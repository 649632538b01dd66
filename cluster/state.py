"""All models and workers that the scheduler knows, with the estimates that they share."""

from __future__ import annotations

from mainspring.cluster.estimates import RANK, Estimates
from mainspring.cluster.placements import Model, Placement, Worker


class Cluster:
    """Everything the scheduler knows, with the lookups that policies need."""

    def __init__(self, estimate_rank: int = RANK) -> None:
        """Begin without models and workers; estimates are the so many-largest (`estimates`)."""
        self.models: dict[str, Model] = {}
        self.workers: dict[str, Worker] = {}
        self.open_workers = 0
        """How many of them take new work (`recount`)."""
        self.estimates = Estimates(estimate_rank)

    def recount(self) -> None:
        """Count the workers that take new work: one came or left, or began or ceased to take it."""
        self.open_workers = sum([worker.open for worker in self.workers.values()])

    def place(self, model: Model, worker: Worker) -> Placement:
        """Enter a model on a worker, as known, and return the placement."""
        kind = worker.device_kind
        times = self.estimates.infer_times(kind, model.spec)
        load_time = self.estimates.load_time(kind, model.spec)
        placement = Placement(model, worker, times, load_time)
        model.placements[worker.name] = placement
        model.infer_times[kind] = times
        model.load_times[kind] = load_time
        worker.placements[model.name] = placement
        return placement
