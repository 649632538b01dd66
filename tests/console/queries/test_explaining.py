"""Stories of requests, against a replica of the state just before each decision: all of them are exact."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.cluster.follow import follow
from mainspring.cluster.plans import CANDIDATES, Plan, plans, soonest
from mainspring.cluster.residency import hosts
from mainspring.cluster.state import Cluster
from mainspring.console.payloads import Alternative, Story
from mainspring.console.queries.request import request
from mainspring.console.view.requests import Request
from mainspring.console.view.view import View
from mainspring.messages.actions import Infer, Reject
from mainspring.messages.codes import Reason
from mainspring.messages.events import QueryArrived, RequestArrived
from mainspring.telemetry.entries import SegmentHeader
from tests.cluster.test_apply import disturb, reader
from tests.console.view.streams import EVERYTHING, Watched, feed

BY_WORKERS = {
    *(Reason.DEADLINE_UNREACHABLE, Reason.DEADLINE_PASSED, Reason.NO_WORKER),
    *(Reason.MODEL_NOT_READY, Reason.WORKER_FAILED),
}


class Expected(msgspec.Struct):
    """What a story has to say of one decision."""

    now_ns: int
    finish_ns: dict[str, int | None]
    """By worker: predicted end of EXEC; None if it could not run the model."""
    words: dict[str, tuple[str, ...]]
    """By worker: what its text has to name."""
    sent_to: str = ""


def words(cluster: Cluster, plan: Plan) -> tuple[str, ...]:
    """Return what the text about a plan has to name, from the worker's own timelines."""
    worker = plan.placement.worker
    running = [each for each in worker.exec.actions() if isinstance(each, Infer)]
    loading = worker.load.actions()
    told = [f"EXEC takes {plan.duration_ns / 1e6:.1f} ms"]
    if running:
        rest = f" and {len(running) - 1} before it" if len(running) > 1 else ""
        told.append(
            f"INFER {running[-1].action_id} ({running[-1].model} of batch {running[-1].batch_size}){rest}"
        )
    else:
        told.append("EXEC idle")
    match plan.placement.state.value:
        case "resident":
            told.append("resident; ")
        case "loading":
            own = next(each for each in loading if each.model == plan.placement.model.name)
            told.append(f"being loaded by LOAD {own.action_id}, ")
        case "prepared":
            told.append(f"LOAD takes {plan.placement.load_time.ns / 1e6:.1f} ms")
            if loading:
                told.append(f"behind LOAD {loading[-1].action_id} ({loading[-1].model})")
    return tuple(told)


def decided(watched: Watched) -> tuple[View, dict[int, Expected], set[int]]:
    """Play a run to its end; return a view of it, what stories of its requests have to say, and its
    queries with their pieces."""
    records = watched.everything()
    view, cluster = View(EVERYTHING), reader(watched.scheduler.config)
    feed(view, records)
    expected: dict[int, Expected] = {}
    queries: set[int] = set()
    for now_ns, entry in records:
        if isinstance(entry, SegmentHeader):
            continue
        if isinstance(entry, QueryArrived):
            queries.add(entry.query_id)
        elif isinstance(entry, RequestArrived) and entry.query:
            queries.add(entry.request_id)
        known = isinstance(entry, Reject) and entry.request_id in cluster.requests
        if isinstance(entry, Reject) and known and entry.reason in BY_WORKERS:
            asked = cluster.requests[entry.request_id]
            found = plans(cluster, now_ns, asked.model, asked.rows, 0)
            finish_ns: dict[str, int | None] = dict.fromkeys(
                each.name for each in hosts(cluster, asked.model)
            )
            finish_ns |= {plan.placement.worker.name: plan.finish_ns for plan in found}
            told = {plan.placement.worker.name: words(cluster, plan) for plan in found}
            expected[entry.request_id] = Expected(now_ns, finish_ns, told)
        elif isinstance(entry, Infer):
            placement = cluster.workers[entry.worker].placements[entry.model]
            index = placement.times.sizes.index(entry.batch_size)
            plan = Plan(now_ns, now_ns + cluster.dispatch_delay_ns, placement, index)
            for each in entry.request_ids:
                expected[each] = Expected(
                    now_ns, {entry.worker: plan.finish_ns}, {entry.worker: words(cluster, plan)}, entry.worker
                )
        follow(cluster, now_ns, entry)
    return view, expected, queries


def check(view: View, story: Story, expected: Expected) -> None:
    """Raise AssertionError unless a story says exactly what is expected."""
    assert story.decided_ns == expected.now_ns
    assert len(story.alternatives) + story.more == len(expected.finish_ns)
    assert len(story.alternatives) <= 1 + CANDIDATES
    finishes = [each.finish_ns for each in story.alternatives]
    possible = sorted(finish_ns for finish_ns in expected.finish_ns.values() if finish_ns is not None)
    assert [each for each in finishes if each is not None] == possible[: len(finishes)]
    for index, each in enumerate(story.alternatives):
        assert each.finish_ns == expected.finish_ns[each.worker]
        assert each.chosen == (each.worker == expected.sent_to)
        assert each.feasible == in_time(view, story, each)
        if each.finish_ns is not None and index == 0:
            missing = [word for word in expected.words[each.worker] if word not in each.text]
            assert not missing, f"{missing} in {each.text}"
    if story.reason == "deadline_unreachable":
        assert finishes[0] is not None
        assert finishes[0] + view.settings.response_margin_ns == story.earliest_finish_ns
        assert not any(each.feasible for each in story.alternatives)


def in_time(view: View, story: Story, each: Alternative) -> bool:
    if each.finish_ns is None or story.deadline_ns is None:
        return each.finish_ns is not None
    return each.finish_ns + view.settings.response_margin_ns <= story.deadline_ns


@pytest.mark.parametrize("policy", ["mainspring", "clockwork"])
def test_every_story_is_exact(policy: str) -> None:
    rejected = ran = 0
    for seed in range(12):
        watched = Watched(seed, policy)
        disturb(watched.simulation, seed)
        view, expected, queries = decided(watched)
        for each in view.traffic.ended.newest(("rejected", "late", "in_time")):
            if each.id in queries:
                continue  # `test_stories` has theirs.
            story = request(view, str(each.id))
            if each.outcome != "rejected" or each.reason in BY_WORKERS:
                check(view, story, expected[each.id])
                rejected += each.outcome == "rejected"
                ran += each.outcome != "rejected"
            else:
                assert story.alternatives == []
            assert "not recorded" not in story.summary
    assert rejected > 1_000
    assert ran > 1_000


def test_what_waits_is_told_as_of_now() -> None:
    waiting = again = 0
    for seed in range(4):
        watched, view = Watched(seed), View(EVERYTHING)
        disturb(watched.simulation, seed)
        for at_ms in range(50, 1_000, 50):
            feed(view, watched.run_ms(at_ms))
            cluster = watched.scheduler._state.cluster
            for asked in cluster.requests.values():
                story = request(view, str(asked.id))
                if story.outcome == "waiting":
                    plan = soonest(plans(cluster, view.now_ns, asked.model, asked.rows, 0))
                    said = [each.finish_ns for each in story.alternatives if each.finish_ns is not None]
                    assert said[:1] == ([] if plan is None else [plan.finish_ns])
                    assert len(story.alternatives) + story.more == len(hosts(cluster, asked.model))
                    assert not any(each.chosen for each in story.alternatives)
                    assert plan is None or f"{plan.placement.worker.name} could be done" in story.summary
                    waiting += 1
                    again += "retried" in [step.what for step in story.steps]
    assert waiting > 300
    assert again > 0


def test_every_request_has_a_story_that_fits_its_end() -> None:
    outcomes = set()
    for seed in range(4):
        watched, view = Watched(seed), View(EVERYTHING)
        feed(view, watched.everything())
        ended = [*view.traffic.ended.newest(("rejected", "late", "in_time", "cancelled"))]
        outcomes |= {each.outcome for each in ended}
        for each in ended:
            fits(request(view, str(each.id)), each)
    assert outcomes == {"rejected", "late", "in_time", "cancelled"}


def fits(story: Story, each: Request) -> None:
    """Check that a story says what became of a request, and on which worker."""
    assert story.outcome == each.outcome
    assert story.steps[0].what == "arrived"
    assert [step.at_ns for step in story.steps] == sorted(step.at_ns for step in story.steps)
    assert sum(option.chosen for option in story.alternatives) == (
        each.outcome != "rejected" and each.action_id > 0
    )
    last = {"rejected": "rejected", "cancelled": "cancelled"}.get(each.outcome, "ended")
    assert last in [step.what for step in story.steps]
    if each.outcome == "late":
        assert story.summary.startswith("Late: EXEC ended ")
        assert "than predicted" in story.summary
    chosen = [option for option in story.alternatives if option.chosen]
    assert all(option.worker == each.worker for option in chosen)
