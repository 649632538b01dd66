"""The evidence in commands: it is the arithmetic of plans over the state just before the command, exactly."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from mainspring.cluster.apply import apply
from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.plans import CANDIDATES, PLANNED_FOR, Plan, plans, readiness, reject_evidence
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.residency import at, is_loadable
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import (
    Candidate,
    Command,
    Evidence,
    Infer,
    Load,
    PlanEvidence,
    Prepare,
    Readiness,
    Reject,
    RejectEvidence,
    Result,
)
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import Event, ModelAdded, OperatorAsked, WorkerJoined
from mainspring.messages.operating import AssignModel, DrainWorker
from mainspring.simulator.scenario import random_scenario, run_to_end
from tests.cluster.test_apply import OPEN_NS, disturb, reader
from tests.fuzz import seeds
from tests.scheduler.hand import MS, spec

WITHOUT = {Reason.UNKNOWN_MODEL, Reason.TOO_MANY_ROWS, Reason.OVERLOADED, Reason.MODEL_REMOVED}
"""Rejections that workers have nothing to do with."""
TOGETHER = {Reason.NO_WORKER, Reason.MODEL_NOT_READY}
"""Why all that wait for a model are rejected at once."""


class Checked:
    """A seeded run whose every INFER, LOAD and rejection is held against a replica of the state."""

    def __init__(self, seed: int, policy: str) -> None:
        self.found: Counter[str] = Counter()
        entries: list[tuple[int, Event | Command]] = []
        simulation = random_scenario(
            seed,
            policy,
            validate_every=20,
            record=lambda *entry: entries.append(entry),
            open_ns=OPEN_NS[seed % 3],
        )
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
        self._instants(now_ns, placement, index, evidence)
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
        assert all(is_loadable(self._cluster.models[name], worker) for name in evidence.evicted)
        self.found[f"LOAD {evidence.reason.value}"] += 1
        self.found["evicted"] += len(evidence.evicted)

    def _reject(self, now_ns: int, reject: Reject) -> None:
        cluster, evidence = self._cluster, reject.evidence
        self.found[reject.reason.value] += 1
        if evidence is None:
            assert reject.reason in WITHOUT
            return
        if reject.request_id in cluster.queries:
            # Its evidence is about one of its pieces, which the controller doesn't know yet.
            self.found["queries"] += 1
            return
        request = cluster.requests[reject.request_id]
        model, rows = request.model, request.rows
        found = plans(cluster, now_ns, model, rows, 0)
        told = reject_evidence(self._cluster, model, found, evidence.waiting, evidence.ahead)
        assert evidence == told
        if reject.reason not in TOGETHER or request.place is not Place.QUEUED:
            assert evidence.waiting == waiting(cluster, request)
        if reject.reason is Reason.DEADLINE_UNREACHABLE:
            self._unreachable(reject, evidence, request)
        if evidence.best is not None:
            self._best(now_ns, model, rows, evidence.best, evidence.others)
        self.found["others"] += len(evidence.others)
        self.found["left out"] += evidence.more
        self.found["impossible"] += evidence.best is None
        for each in evidence.others:
            self.found[each.readiness.value] += 1

    def _unreachable(self, reject: Reject, evidence: RejectEvidence, request: Request) -> None:
        assert evidence.best is not None
        assert request.due_ns is not None
        if reject.earliest_finish_ns is None:
            # What else was promised while a worker opens an executable would be late.
            assert evidence.best.finish_ns <= request.due_ns
            assert "executable" in reject.detail
            self.found["promised"] += 1
        else:
            assert reject.earliest_finish_ns == evidence.best.finish_ns + self._cluster.response_margin_ns
            assert evidence.best.finish_ns > request.due_ns

    def _instants(self, now_ns: int, placement: Placement, index: int, evidence: Evidence) -> None:
        """Check when EXEC, inputs and weights are ready against the worker's timelines."""
        worker, soonest_ns = placement.worker, now_ns + self._cluster.dispatch_delay_ns
        assert evidence.exec_free_ns == worker.exec.available_ns(now_ns, soonest_ns)
        transfer_ns = placement.times.transfer_ns[index]
        assert evidence.inputs_ns == worker.exec.inputs_at_ns(soonest_ns, transfer_ns)
        match placement.state:
            case State.RESIDENT:
                assert evidence.weights_ns == 0
            case State.LOADING:
                assert evidence.weights_ns == placement.ready_ns(now_ns)
            case _:
                load_ns = placement.load_time.ns
                assert evidence.weights_ns == worker.load.available_ns(now_ns, soonest_ns) + load_ns

    def _best(
        self, now_ns: int, model: Model, rows: int, best: PlanEvidence, others: tuple[Candidate, ...]
    ) -> None:
        """Check the best plan against the worker's timelines, and that no other is better."""
        worker = self._cluster.workers[best.worker]
        placement = at(self._cluster, model.base, worker, keep=False)
        index = model.index_of[rows]
        self._instants(now_ns, placement, index, best)
        assert best.duration_ns == placement.times.ns[index]
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


PLAYED = [("mainspring", seed) for seed in seeds(16)]
PLAYED += [(policy, seed) for policy in ("clockwork", "edf") for seed in seeds(6, first=16)]
# While workers open executables, more is promised than there is time for.
PLAYED += [("mainspring", 179), ("clockwork", 158)]


@functools.cache
def found_in(policy: str, seed: int) -> Counter[str]:
    return Checked(seed, policy).found


@pytest.mark.seeded
@pytest.mark.parametrize(("policy", "seed"), PLAYED)
def test_all_evidence_is_exact(policy: str, seed: int) -> None:
    assert found_in(policy, seed), "something should have been checked"


def test_the_seeds_reach_what_they_are_for() -> None:
    found: Counter[str] = Counter()
    for policy, seed in PLAYED:
        found += found_in(policy, seed)
    enough = ["INFER", "deadline_unreachable", "deadline_passed", "evicted", "others"]
    assert not [what for what in enough if found[what] < 1_000]
    seldom = ["INFER behind a LOAD", "INFER behind others", "INFER behind its inputs", "no_worker"]
    assert not [what for what in seldom if found[what] < 100]
    rare = ["worker_failed", "model_not_ready", "drained", "failed", "loading", "too_large", "promised"]
    rare += ["LOAD demand", "LOAD missed", "LOAD replication", "LOAD pinned", "LOAD operator"]
    assert not [what for what in rare if not found[what]]


def cluster_of(workers: int) -> Cluster:
    """A model that each worker has prepared; each has a longer LOAD outstanding than the one before it."""
    cluster = Cluster(dispatch_delay_ns=MS)
    for number in range(workers):
        apply(cluster, 0, WorkerJoined(f"w{number}", "gpu", 8))
    apply(cluster, 0, ModelAdded(spec("m")))
    apply(cluster, 0, ModelAdded(spec("other")))
    for number in range(workers):
        name = f"w{number}"
        for place, model in enumerate((spec("m"), spec("other"))):
            apply(cluster, 1, Prepare(10 * number + place, name, model))
            apply(cluster, 2, Result(10 * number + place, name, Status.OK, 1, 2))
        apply(cluster, 3, Load(1_000 + number, name, "other", (0,), 3, 4, 4, (workers - number) * MS))
    return cluster


def test_a_rejection_names_the_soonest_workers_and_counts_the_others() -> None:
    cluster = cluster_of(12)
    model = cluster.models["m"]
    evidence = reject_evidence(cluster, model, plans(cluster, 3, model, 1, 0), 4)
    assert evidence.best is not None
    assert (evidence.best.worker, evidence.best.load_after, evidence.best.load_ahead) == ("w11", 1_011, 1)
    assert [each.worker for each in evidence.others] == [f"w{number}" for number in range(10, 2, -1)]
    assert len(evidence.others) == CANDIDATES
    assert (evidence.more, evidence.waiting) == (3, 4)


def test_those_that_could_not_run_the_model_come_last_each_with_its_reason() -> None:
    cluster = cluster_of(4)
    model = cluster.models["m"]
    apply(cluster, 4, OperatorAsked("an operator", DrainWorker("w3")))
    stopping = Result(1_002, "w2", Status.STOPPING, 4, 4)
    apply(cluster, 4, stopping)
    broken = at(cluster, model, cluster.workers["w1"])
    broken.make_up(State.BROKEN)
    broken.detail = "no memory " * 100
    evidence = reject_evidence(cluster, model, plans(cluster, 4, model, 1, 0), 0)
    assert evidence.best is not None
    assert evidence.best.worker == "w0"
    reasons = {each.worker: each.readiness for each in evidence.others}
    assert reasons == {"w1": Readiness.BROKEN, "w2": Readiness.STOPPING, "w3": Readiness.DRAINED}
    assert [each.finish_ns for each in evidence.others] == [0, 0, 0]
    assert evidence.others[0].detail.startswith("no memory")
    assert len(evidence.others[0].detail) < 300
    broken.make_up(State.RELEASING)
    broken.leave()
    assert readiness(broken) is Readiness.RELEASING
    broken.make_up(State.PREPARED)
    assert readiness(broken) is Readiness.LEAVING


def test_a_worker_of_another_model_is_not_planned_for() -> None:
    cluster = cluster_of(2)
    owner, free = cluster.models["other"], cluster.models["m"]
    apply(cluster, 4, OperatorAsked("an operator", AssignModel("other", 1)))
    own = next(worker for worker in cluster.workers.values() if worker.owner)
    (planned,) = plans(cluster, 4, free, 1, 0)
    assert planned.placement.worker is not own
    evidence = reject_evidence(cluster, free, [planned], 0)
    assert [(each.worker, each.readiness) for each in evidence.others] == [(own.name, Readiness.ASSIGNED)]
    assert [plan.placement.worker for plan in plans(cluster, 4, owner, 1, 0)] == [own]


def test_of_very_many_workers_those_are_planned_for_that_may_be_in_time() -> None:
    cluster = cluster_of(4 * PLANNED_FOR)
    model = cluster.models["m"]
    for worker in cluster.workers.values():
        worker.exec.free_ns = 500 * MS
    assert len(plans(cluster, 4, model, 1, 0)) == PLANNED_FOR, "for a refusal's evidence"
    assert len(plans(cluster, 4, model, 1, 100 * MS)) == PLANNED_FOR, "nobody is in time"
    free = list(cluster.workers.values())[3 * PLANNED_FOR]
    free.exec.free_ns = 0
    found = plans(cluster, 4, model, 1, 100 * MS)
    assert found[-1].placement.worker is free
    assert found[-1].finish_ns <= 100 * MS
    assert len(found) == PLANNED_FOR + 1
    evidence = reject_evidence(cluster, model, plans(cluster, 4, model, 1, 0), 0)
    assert len(evidence.others) + evidence.more + 1 == 4 * PLANNED_FOR
