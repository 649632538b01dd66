"""The evidence in commands: it is the arithmetic of plans over the state just before the command, exactly."""

from __future__ import annotations

from collections import Counter

from mainspring.cluster.apply import apply
from mainspring.cluster.plans import Plan, plans, reject_evidence
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Infer, Load
from mainspring.messages.codes import Reason
from mainspring.messages.commands import Command, Reject
from mainspring.messages.events import Event
from mainspring.messages.evidence import Candidate, PlanEvidence, Readiness
from mainspring.simulator.scenario import random_scenario, run_to_end
from tests.cluster.test_apply import disturb, reader

WITHOUT = {Reason.UNKNOWN_MODEL, Reason.TOO_MANY_ROWS, Reason.OVERLOADED, Reason.MODEL_REMOVED}
"""Rejections that workers have nothing to do with."""


class Checked:
    """A seeded run whose every INFER, LOAD and rejection is held against a replica of the state."""

    def __init__(self, seed: int, policy: str) -> None:
        self.found: Counter[str] = Counter()
        entries: list[tuple[int, Event | Command]] = []
        simulation = random_scenario(seed, policy, record=lambda *entry: entries.append(entry))
        disturb(simulation, seed)
        run_to_end(simulation)
        self._cluster = reader(simulation.scheduler.config)
        for now_ns, entry in entries:
            self._take(now_ns, entry)

    def _take(self, now_ns: int, entry: Event | Command) -> None:
        match entry:
            case Infer():
                self._infer(now_ns, entry)
            case Load():
                self._load(entry)
            case Reject():
                self._reject(now_ns, entry)
        apply(self._cluster, now_ns, entry)

    def _infer(self, now_ns: int, infer: Infer) -> None:
        evidence, worker = infer.evidence, self._cluster.workers[infer.worker]
        assert evidence is not None
        placement = worker.placements[infer.model]
        index = placement.times.sizes.index(infer.batch_size)
        plan = Plan(now_ns, now_ns + self._cluster.dispatch_delay_ns, placement, index)
        assert evidence == plan.evidence()
        assert infer.predicted_begin_ns == plan.begin_ns
        assert infer.predicted_begin_ns == max(evidence.exec_free_ns, evidence.inputs_ns, evidence.weights_ns)
        ahead = [each.action_id for each in worker.exec.actions()]
        assert ([0, *ahead][-1], len(ahead)) == (evidence.exec_after, evidence.exec_ahead)
        loading = [each.action_id for each in worker.load.actions() if each.model == infer.model]
        assert (evidence.load_id, evidence.weights_ns > 0) == (sum(loading), bool(loading))
        self.found["INFER"] += 1
        self.found["INFER behind a LOAD"] += evidence.load_id > 0
        self.found["INFER behind others"] += evidence.exec_ahead > 0
        self.found["INFER behind its inputs"] += evidence.inputs_ns > max(
            evidence.exec_free_ns, evidence.weights_ns
        )

    def _load(self, load: Load) -> None:
        evidence, worker = load.evidence, self._cluster.workers[load.worker]
        assert evidence is not None
        ahead = [each.action_id for each in worker.load.actions()]
        assert ([0, *ahead][-1], len(ahead)) == (evidence.load_after, evidence.load_ahead)
        assert all(worker.placements[name].state.value == "prepared" for name in evidence.evicted)
        self.found[f"LOAD {evidence.reason.value}"] += 1
        self.found["evicted"] += len(evidence.evicted)

    def _reject(self, now_ns: int, reject: Reject) -> None:
        cluster, evidence = self._cluster, reject.evidence
        self.found[reject.reason.value] += 1
        if evidence is None:
            assert reject.reason in WITHOUT
            return
        request = cluster.requests[reject.request_id]
        model, rows = request.model, request.rows
        found = plans(cluster, now_ns, model, rows, 0)
        assert evidence == reject_evidence(model, found, evidence.waiting)
        if reject.reason is not Reason.NO_WORKER:
            assert evidence.waiting == waiting(cluster, request)
        if reject.reason is Reason.DEADLINE_UNREACHABLE:
            assert evidence.best is not None
            assert reject.earliest_finish_ns == evidence.best.finish_ns + cluster.response_margin_ns
            assert request.due_ns is not None
            assert evidence.best.finish_ns > request.due_ns
        if evidence.best is not None:
            self._best(evidence.best, evidence.others)
        self.found["others"] += len(evidence.others)
        self.found["left out"] += evidence.more
        self.found["impossible"] += evidence.best is None
        for each in evidence.others:
            self.found[each.readiness.value] += 1

    def _best(self, best: PlanEvidence, others: tuple[Candidate, ...]) -> None:
        """Check the best plan against the worker's timelines, and that no other is better."""
        worker = self._cluster.workers[best.worker]
        running = [each.action_id for each in worker.exec.actions()]
        loading = [each.action_id for each in worker.load.actions()]
        assert ([0, *running][-1], len(running)) == (best.exec_after, best.exec_ahead)
        assert best.begin_ns == max(best.exec_free_ns, best.inputs_ns, best.weights_ns)
        if best.readiness is Readiness.PREPARED:
            assert ([0, *loading][-1], len(loading)) == (best.load_after, best.load_ahead)
            assert best.load_ns > 0
        else:
            assert (best.load_after, best.load_ahead, best.load_ns) == (0, 0, 0)
            assert (best.load_id in loading) == (best.readiness is Readiness.LOADING)
        assert all(each.finish_ns == 0 or each.finish_ns >= best.finish_ns for each in others)


def waiting(cluster: Cluster, request: Request) -> int:
    """Return how many others wait for a request's model, those included that an event has just put back."""
    before = 0
    for each in cluster.undecided:
        if each is request:
            break
        before += each.model is request.model and each.place is Place.UNDECIDED
    return request.model.waiting + before - (request.place is Place.QUEUED)


PLAYED = [("mainspring", seed) for seed in range(16)]
PLAYED += [(policy, seed) for policy in ("clockwork", "edf") for seed in range(16, 22)]


def test_all_evidence_is_exact() -> None:
    found: Counter[str] = Counter()
    for policy, seed in PLAYED:
        found += Checked(seed, policy).found
    enough = ["INFER", "deadline_unreachable", "deadline_passed", "evicted", "others"]
    assert not [what for what in enough if found[what] < 1_000]
    seldom = ["INFER behind a LOAD", "INFER behind others", "INFER behind its inputs", "no_worker"]
    assert not [what for what in seldom if found[what] < 100]
    rare = ["worker_failed", "model_not_ready", "drained", "failed", "loading", "too_large"]
    rare += ["LOAD demand", "LOAD missed", "LOAD replication", "LOAD pinned", "LOAD operator"]
    assert not [what for what in rare if not found[what]]
