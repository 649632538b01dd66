"""Models that catch up late, in any order, have the estimates that they would have had at once."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.cluster.apply import apply
from mainspring.cluster.membership import join, lose
from mainspring.cluster.models import Model
from mainspring.cluster.snapshot import snapshot
from mainspring.cluster.state import Cluster
from mainspring.messages.events import ModelAdded, ModelRemoved, WorkerJoined
from mainspring.messages.model import ModelSpec
from mainspring.messages.snapshot import Told
from mainspring.messages.targets import kinds_build
from tests.cluster.described import described
from tests.scheduler.versions import DEVICES, MODELS, version

Step = tuple[str, int, int]


def ordered(cluster: Cluster) -> dict[str, Any]:
    """Return what `described` leaves out: in which order models know of kinds."""
    found = {}
    for each in cluster.models.values():
        for one in (each, *each.buckets.values()):
            found[one.name] = list(one.infer_times), list(one.load_times)
    return found


class Both:
    """A cluster whose models catch up late, and one whose models do at each change."""

    def __init__(self, at_once: int) -> None:
        self.late, self.prompt = Cluster(), Cluster()
        self.late.device_kinds.at_once = at_once
        self._now_ns = 0

    def step(self, what: str, one: int, other: int) -> None:
        self._now_ns += 1
        for cluster in (self.late, self.prompt):
            self._step(cluster, what, one, other)
        if what == "settle" and self.late.device_kinds.behind:
            self.late.device_kinds.settle_some()
        if what == "ask" and (known := self.late.models.get(f"m{one % MODELS}")):
            for each in known.by_bucket:
                assert each.infer_times.keys() == each.load_times.keys() == self.late.of_kind.keys()
        self.late.device_kinds.validate()

    def _step(self, cluster: Cluster, what: str, one: int, other: int) -> None:
        device, targets = DEVICES[other % len(DEVICES)]
        match what:
            case "join":
                lose(cluster, f"w{one}")
                join(cluster, WorkerJoined(f"w{one}", device, 8, targets=targets))
            case "leave":
                lose(cluster, f"w{one}")
            case "add":
                apply(cluster, self._now_ns, ModelAdded(version(one % MODELS, other)))
            case "remove":
                apply(cluster, self._now_ns, ModelRemoved(f"m{one % MODELS}"))
            case "learn" if known := cluster.models.get(f"m{one % MODELS}"):
                for kind in cluster.of_kind:
                    size = kinds_build(kind, known.spec).weights_bytes
                    cluster.estimates.loaded(kind, size, self._now_ns * known.spec.weights_bytes)
                    known.load_times[kind].add(self._now_ns, self._now_ns)
                    known.by_bucket[-1].infer_times[kind].add(self._now_ns, 0, self._now_ns)

    def compare(self) -> None:
        assert ordered(self.late) == ordered(self.prompt)
        assert described(self.late) == described(self.prompt)


WHAT = ["join"] * 4 + ["leave"] * 4 + ["add"] * 3 + ["learn"] * 2 + ["remove", "ask"] + ["settle"] * 5
STEPS = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 5), st.integers(0, 5)), max_size=60)


@given(STEPS, st.sampled_from([1, 2, 5]), st.permutations(range(MODELS)))
@settings(max_examples=150, deadline=None)
def test_it_is_as_if_all_had_caught_up_at_each_change(
    steps: list[Step], at_once: int, asked: list[int]
) -> None:
    both = Both(at_once)
    for number in range(MODELS):
        both.step("add", number, number)
    for step in steps:
        both.step(*step)
    for number in asked:
        both.step("ask", number, 0)
    both.compare()


@given(STEPS, st.sampled_from([1, 5]))
@settings(max_examples=60, deadline=None)
def test_a_snapshot_tells_all_of_it(steps: list[Step], at_once: int) -> None:
    both = Both(at_once)
    for number in range(MODELS):
        both.step("add", number, number)
    for step in steps:
        both.step(*step)
    late, prompt = (told(cluster) for cluster in (both.late, both.prompt))
    assert sorted(map(repr, late)) == sorted(map(repr, prompt)), "estimates may stand in another order"


def told(cluster: Cluster) -> list[Told]:
    """Return what a snapshot tells."""
    return [entry for part in snapshot(cluster) for entry in part]


def both_of(*specs: ModelSpec) -> Both:
    both = Both(1)
    for cluster in (both.late, both.prompt):
        for spec in specs:
            apply(cluster, 0, ModelAdded(spec))
    return both


def test_who_is_looked_at_first_has_the_estimates_of_who_came_first() -> None:
    both = both_of(version(0, 1), version(1, 1))
    both.step("join", 0, 0)
    later = both.late.models["m1"]
    assert list(later.infer_times) == ["fast"]
    assert later.infer_times["fast"].ns == both.prompt.models["m0"].infer_times["fast"].ns
    assert later.infer_times["fast"].ns[0] < version(1, 1).profiles["fast"].infer_ns[1]
    both.compare()


def test_a_kind_that_comes_back_is_the_last_one() -> None:
    both = both_of(version(0, 1))
    for step in (("join", 0, 0), ("join", 1, 1), ("leave", 0, 0), ("join", 0, 0)):
        both.step(*step)
    assert list(both.late.models["m0"].infer_times) == ["slow", "fast"]


def test_what_loads_took_when_the_kind_came_is_what_an_estimate_begins_with() -> None:
    both = both_of(version(0, 0), version(1, 0), version(2, 3))
    both.step("join", 0, 4)
    before_ns = both.prompt.models["m1"].load_times["odd"].ns
    for cluster in (both.late, both.prompt):
        size = version(2, 3).weights_bytes
        cluster.estimates.loaded("odd", size, 77 * size)
    assert both.late.models["m1"].load_times["odd"].ns == before_ns
    both.compare()


def test_a_kind_that_has_gone_again_leaves_what_would_have_been_known() -> None:
    both = both_of(version(0, 1), version(1, 4))
    both.step("join", 0, 0)
    both.step("leave", 0, 0)
    assert both.late.device_kinds.behind
    assert not both.late.models["m0"].infer_times
    both.compare()


def test_a_model_that_goes_has_caught_up_before() -> None:
    both = both_of(version(0, 1), version(1, 1))
    both.step("join", 0, 0)
    both.step("remove", 0, 0)
    gone = version(0, 1).profiles["fast"].infer_ns[1]
    assert both.late.models["m1"].infer_times["fast"].ns[0] == gone
    both.compare()


def test_changes_are_forgotten_once_all_models_know_of_them() -> None:
    both = both_of(*(version(number, 1) for number in range(MODELS)))
    both.step("join", 0, 0)
    for _ in range(MODELS):
        assert both.late.device_kinds.behind
        both.step("settle", 0, 0)
    both.step("settle", 0, 0)
    assert not both.late.device_kinds.behind
    both.step("settle", 0, 0)
    both.compare()


def test_a_change_while_models_catch_up_is_for_all_of_them() -> None:
    both = both_of(*(version(number, 1) for number in range(MODELS)))
    both.step("join", 0, 0)
    both.step("settle", 0, 0)
    both.step("join", 1, 1)
    for _ in range(MODELS):
        both.step("settle", 0, 0)
    assert both.late.device_kinds.behind
    for _ in range(MODELS + 1):
        both.step("settle", 0, 0)
    assert not both.late.device_kinds.behind
    both.compare()


def test_the_line_drops_models_that_are_gone_wherever_walks_are() -> None:
    cluster = Cluster()
    served: list[Model] = []
    apply(cluster, 0, ModelAdded(version(0, 1)))
    line = cluster.device_kinds._line
    for number in range(3_000):
        model = Model(version(1, 1), number + 2)
        cluster.device_kinds.serve(model)
        served.append(model)
    walk = line.walk()
    passed = [walk.next() for _ in range(2_000)]
    for model in served[:2_600]:
        cluster.device_kinds.release(model)
    assert len(line) == 401
    assert len(line.models) < 3_001
    left = []
    while (model_ := walk.next()) is not None:
        left.append(model_)
    assert left == served[2_600:]
    assert passed[1:] == served[:1_999]
    walk.close()
    assert line.walks == []
