"""Requests for graphs in the request table: one to the client, several to the controller."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.cache import PredictionCache
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.effects import Answer, Arrive, Effect, Push, Refuse, Withdraw
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.gateway.core.validation import check_request
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.graphs import GraphSpec, StepSpec
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.messages.peers import Dispatch, Output, Rejected, TensorHeader
from mainspring.messages.queries import QueryStep, StepsKnown, shape_fault
from tests.gateway.core.interleaving import ALICE
from tests.gateway.graphs.test_checking import CASCADE, model
from tests.gateway.graphs.test_flow import PLAIN, alone, graphs

MS = 1_000_000


class Cluster:
    """A gateway's table with some models and graphs, whose controller and workers the tests play."""

    def __init__(self, models: dict[str, ModelSpec], *specs: GraphSpec) -> None:
        self.catalog = Catalog(most_rows=4_096)
        for each in models.values():
            self.catalog.model_up(msgspec.structs.replace(each, batch_sizes=(1, 2)))
        for spec in specs:
            self.catalog.set_graph(spec.name, spec)
        self.cache = PredictionCache(1 << 20)
        self.core = GatewayCore(GatewayConfig(), self.catalog.signatures, self.cache)
        self.keys = 0
        self.core.controller_welcomed(0, 5)
        self.waiting: dict[int, tuple[str, int]] = {}
        """Model and step of each piece that the controller has, by id."""
        self.frames: tuple[Any, ...] = ()
        self.ended: list[Effect] = []
        self.query: Arrive | None = None
        self.known: list[tuple[QueryStep, ...]] = []
        """What the controller was told anew of the steps."""
        self.actions = 0

    def submit(self, name: str, **arrays: np.ndarray[Any, Any]) -> None:
        headers = tuple(
            [TensorHeader(key, str(each.dtype).lstrip("|"), each.shape) for key, each in arrays.items()]
        )
        frames = [each.tobytes() for each in arrays.values()]
        asked = InferRequest(1, name, headers, 50 * MS)
        accepted = check_request(asked, [*map(len, frames)], self.catalog.resolve, 10**12)
        digest = self.cache.digest(accepted, frames) if self.cache.used else None
        self.keys += 1
        self.core.submit(0, ALICE, self.keys, accepted, list(frames), digest)
        self.take()

    def take(self) -> None:
        effects = self.core.drain()
        self.core.validate()
        for each in effects:
            match each:
                case StepsKnown():
                    self.known.append(each.steps)
                case Arrive(pieces=()):
                    assert self.query is not None
                    assert each.query == self.query.request_id
                    self.waiting[each.request_id] = each.model, each.step
                case Arrive():
                    self.query = each
                    for piece in each.pieces:
                        self.waiting[piece.request_id] = each.steps[piece.step].model, piece.step
                case Push():
                    self.frames = each.frames
                case Answer() | Refuse():
                    self.ended.append(each)
                case Withdraw(request_id=request_id) if request_id in self.waiting:
                    del self.waiting[request_id]

    def run(self, request_id: int) -> None:
        """Have a worker run a piece of a model of `PLAIN`."""
        name, _ = self.waiting.pop(request_id)
        self.actions += 1
        self.core.dispatched(MS, Dispatch(self.actions, "w", (request_id,), (False,), 2))
        self.take()
        given_ = [np.frombuffer(each) for each in self.frames]
        assert len(given_[0]) <= 2
        found = given_[0] + 1 if name == "up" else given_[0] * 2 - given_[1]
        self.core.outputs(2 * MS, Output(self.actions, request_id, 1), (found.tobytes(),))
        self.take()

    def reject(self, request_id: int) -> None:
        del self.waiting[request_id]
        self.core.rejected(2 * MS, Rejected(request_id, Reason.DEADLINE_PASSED, "late"))
        self.take()

    def over(self) -> None:
        """Nothing is left of any request."""
        table = self.core._table
        assert self.core.in_flight == len(table.by_id) == table._input_bytes == 0
        assert self.core.next_wakeup_ns() is None


@given(st.data(), graphs(), st.lists(st.integers(-3, 6).map(float), min_size=1, max_size=6))
def test_pieces_in_any_order_give_each_row_what_it_would_get_alone(
    data: st.DataObject, spec: GraphSpec, values: list[float]
) -> None:
    cluster, missing = Cluster(PLAIN, spec), set[str]()
    cluster.submit("g", image=np.array(values))
    while cluster.waiting:
        request_id = data.draw(st.sampled_from(sorted(cluster.waiting)))
        assert cluster.query is not None
        name = spec.steps[cluster.waiting[request_id][1]].name
        # The order of the graph's steps is that of the file: each names earlier ones alone.
        if not spec.steps[cluster.waiting[request_id][1]].required and data.draw(st.booleans()):
            missing.add(name)
            cluster.reject(request_id)
        else:
            cluster.run(request_id)
    [answer] = cluster.ended
    assert isinstance(answer, Answer)
    found = np.frombuffer(answer.frames[0])  # type: ignore[call-overload]
    assert found.tolist() == [alone(spec, value, missing) for value in values]
    assert answer.outputs[0].shape == (len(values),)
    cluster.over()


def cascade() -> Cluster:
    image = [TensorSpec("x", "float32", (2,))]
    models = {name: model(name, image, [TensorSpec("logits", "float32", (10,))]) for name in ("fast", "slow")}
    spec = msgspec.convert(CASCADE, GraphSpec)
    return Cluster(models, spec)


def test_the_controller_is_told_of_all_steps_and_of_the_pieces_that_may_begin() -> None:
    cluster = cascade()
    cluster.submit("cascade", image=np.zeros((3, 2), np.float32))
    assert cluster.query is not None
    first, second = cluster.query.steps
    assert (first.model, first.rows, first.certain) == ("fast", 3, True)
    assert (second.model, second.after, second.certain) == ("slow", (0,), False)
    assert [(piece.rows, piece.step) for piece in cluster.query.pieces] == [(2, 0), (1, 0)]


def test_what_a_required_step_is_refused_for_ends_the_whole() -> None:
    cluster = cascade()
    cluster.submit("cascade", image=np.zeros((3, 2), np.float32))
    cluster.reject(min(cluster.waiting))
    [refused] = cluster.ended
    assert isinstance(refused, Refuse)
    assert (refused.reason, refused.detail) == (Reason.DEADLINE_PASSED, "step 'fast': late")
    cluster.over()


def test_a_client_that_leaves_ends_every_step() -> None:
    cluster = cascade()
    cluster.submit("cascade", image=np.zeros((2, 2), np.float32))
    cluster.core.cancel(ALICE, 1)
    cluster.take()
    assert len(cluster.ended) == 1
    cluster.over()


def test_a_new_controller_is_told_of_the_query_again_with_what_is_left() -> None:
    cluster = cascade()
    cluster.submit("cascade", image=np.zeros((3, 2), np.float32))
    cluster.waiting.clear()
    cluster.core.controller_welcomed(2 * MS, 6)
    cluster.take()
    assert [step for _, step in cluster.waiting.values()] == [0, 0]


def test_a_new_controller_is_not_told_of_rows_of_a_step_that_has_ended() -> None:
    steps = (
        StepSpec(name="first", model="up", inputs={"a": "image"}),
        StepSpec(name="then", model="up", inputs={"a": "first.y"}),
    )
    spec = GraphSpec(name="g", inputs=("image",), steps=steps, outputs={"o": "then.y"})
    cluster = Cluster(PLAIN, spec)
    cluster.submit("g", image=np.zeros(2))
    cluster.run(min(cluster.waiting))
    cluster.core.controller_welcomed(3 * MS, 6)
    cluster.take()
    assert cluster.query is not None
    assert [step.rows for step in cluster.query.steps] == [0, 2]
    assert shape_fault(cluster.query.steps, cluster.query.pieces) is None
    cluster.run(max(cluster.waiting))
    [answer] = cluster.ended
    assert isinstance(answer, Answer)
    assert np.frombuffer(answer.frames[0]).tolist() == [2, 2]  # type: ignore[call-overload]
    cluster.over()


def chain(when: str) -> Cluster:
    """A first step, one under a condition, and one behind that."""
    steps = (
        StepSpec(name="first", model="up", inputs={"a": "image"}),
        StepSpec(name="some", model="up", inputs={"a": "first.y"}, when=when),
        StepSpec(name="then", model="up", inputs={"a": "some.y"}),
    )
    outputs: dict[str, str | tuple[str, ...]] = {"o": ("then.y", "first.y")}
    return Cluster(PLAIN, GraphSpec(name="g", inputs=("image",), steps=steps, outputs=outputs))


def test_the_controller_is_told_that_a_condition_failed() -> None:
    cluster = chain("first.y > 5")
    cluster.submit("g", image=np.zeros(1))
    assert cluster.query is not None
    assert [(step.rows, step.certain) for step in cluster.query.steps] == [(1, True), (1, False), (1, False)]
    cluster.run(min(cluster.waiting))
    [known] = cluster.known
    assert [step.rows for step in known] == [0, 0, 0]
    cluster.over()


def test_the_controller_is_told_how_many_rows_take_part_before_they_come_and_that_what_follows_will() -> None:
    cluster = chain("first.y > 5")
    cluster.submit("g", image=np.array([1.0, 7.0, 8.0, 9.0]))
    cluster.run(min(cluster.waiting))
    assert not cluster.known, "a piece of the first step is out"
    cluster.run(min(cluster.waiting))
    [known] = cluster.known
    assert [(step.rows, step.certain) for step in known] == [(0, True), (3, True), (3, True)]
    while cluster.waiting:
        cluster.run(min(cluster.waiting))
    assert len(cluster.known) == 1, "nothing of it was new"
    cluster.over()


def test_nothing_is_told_of_a_graph_without_conditions() -> None:
    cluster = chain("")
    cluster.submit("g", image=np.zeros(3))
    while cluster.waiting:
        cluster.run(min(cluster.waiting))
    assert not cluster.known
    cluster.over()


def test_an_answer_says_of_each_step_where_its_time_went() -> None:
    cluster = chain("first.y > 5")
    cluster.submit("g", image=np.array([1.0, 7.0]))
    cluster.run(min(cluster.waiting))
    cluster.run(min(cluster.waiting))
    cluster.run(min(cluster.waiting))
    [answer] = cluster.ended
    assert isinstance(answer, Answer)
    first, some, then = answer.timing.steps
    assert (first.name, first.rows, first.begin_ns, first.end_ns, first.queue_ns) == (
        "first",
        2,
        0,
        2 * MS,
        MS,
    )
    assert (first.batch_size, first.worker, first.execute_ns) == (2, "w", 1)
    assert (some.rows, some.begin_ns) == (1, first.end_ns)
    assert (then.rows, then.end_ns) == (1, 2 * MS)
    assert answer.timing.missing == ()


def test_an_answer_names_steps_that_were_skipped_and_steps_that_are_missing() -> None:
    steps = (
        StepSpec(name="always", model="up", inputs={"a": "image"}),
        StepSpec(name="never", model="up", inputs={"a": "image"}, when="image > 5"),
        StepSpec(name="soft", model="up", inputs={"a": "image"}, required=False),
    )
    spec = GraphSpec(name="g", inputs=("image",), steps=steps, outputs={"o": "always.y"})
    cluster = Cluster(PLAIN, spec)
    cluster.submit("g", image=np.array([1.0]))
    soft = next(each for each, (_, step) in cluster.waiting.items() if step == 2)
    cluster.reject(soft)
    cluster.run(min(cluster.waiting))
    [answer] = cluster.ended
    assert isinstance(answer, Answer)
    assert [(each.rows, each.missing) for each in answer.timing.steps] == [(1, False), (0, False), (1, True)]
    assert answer.timing.missing == ("soft",)


def test_the_share_of_rows_that_a_step_has_is_learnt_and_told() -> None:
    cluster = chain("first.y > 5")
    shares = []
    for value in (1.0, 1.0, 9.0):
        cluster.submit("g", image=np.array([value] * 2))
        assert cluster.query is not None
        shares.append(cluster.query.steps[1].share)
        while cluster.waiting:
            cluster.run(min(cluster.waiting))
    assert shares == [1.0, 0.0, 0.0]
    cluster.submit("g", image=np.array([9.0] * 32))
    assert cluster.query is not None
    some = cluster.query.steps[1]
    assert (some.share, some.rows, some.certain) == (0.062, 2, False)


def test_shares_outlive_a_change_of_models() -> None:
    cluster = chain("first.y > 5")
    cluster.submit("g", image=np.array([1.0]))
    cluster.run(min(cluster.waiting))
    cluster.catalog.model_up(msgspec.structs.replace(PLAIN["up"], name="another"))
    cluster.submit("g", image=np.array([1.0]))
    assert cluster.query is not None
    assert cluster.query.steps[1].share == 0.0
    cluster.catalog.set_graph("g", msgspec.structs.replace(cluster.catalog.graphs.specs["g"], slo_ms=5.0))
    cluster.core.cancel(ALICE, 1)
    cluster.take()
    cluster.submit("g", image=np.array([1.0]))
    assert cluster.query.steps[1].share == 1.0, "it is another graph"


def test_a_gateway_begins_with_the_shares_that_others_have_learnt() -> None:
    cluster, other = chain("first.y > 5"), chain("first.y > 5")
    spec = cluster.catalog.graphs.specs["g"]
    other.submit("g", image=np.array([1.0]))
    other.run(min(other.waiting))
    for each in (cluster, other):
        each.catalog.set_graph("g", spec, {"some": 0.25, "a step that there was": 0.5})
        each.submit("g", image=np.array([1.0] * 2))
    assert cluster.query is not None
    assert other.query is not None
    assert [step.share for step in cluster.query.steps] == [1.0, 0.25, 1.0]
    assert other.query.steps[1].share == 0.0, "it has learnt it itself"


def test_answers_are_kept_until_a_model_or_the_graph_is_another() -> None:
    cluster = chain("")
    cluster.cache.switch("g", True)
    spec = cluster.catalog.graphs.specs["g"]

    def runs() -> int:
        """Have the same request come, and return how many pieces of it run."""
        before = cluster.actions
        cluster.submit("g", image=np.array([1.0]))
        while cluster.waiting:
            cluster.run(min(cluster.waiting))
        answer = cluster.ended[-1]
        assert isinstance(answer, Answer)
        assert np.frombuffer(answer.frames[0]).tolist() == [4.0]  # type: ignore[call-overload]
        assert answer.timing.cached is (cluster.actions == before)
        assert bool(answer.timing.steps) is not answer.timing.cached
        return cluster.actions - before

    assert [runs(), runs()] == [3, 0]
    cluster.catalog.model_up(msgspec.structs.replace(PLAIN["up"], weights_hash="other", batch_sizes=(1, 2)))
    assert [runs(), runs()] == [3, 0], "a step's model has other weights"
    cluster.catalog.set_graph("g", msgspec.structs.replace(spec, outputs={"o": "then.y"}))
    assert [runs(), runs()] == [3, 0], "it is another graph"
    cluster.cache.validate()


def test_equal_requests_share_one_run() -> None:
    cluster = chain("")
    cluster.cache.switch("g", True)
    cluster.submit("g", image=np.array([1.0]))
    cluster.submit("g", image=np.array([1.0]))
    while cluster.waiting:
        cluster.run(min(cluster.waiting))
    assert cluster.actions == 3
    assert [len(each.timing.steps) for each in cluster.ended if isinstance(each, Answer)] == [3, 3]
    cluster.over()


def ensemble(least: int) -> Cluster:
    """Three members, of which the second weighs most and the first least."""
    steps = [
        StepSpec(name=name, model="up", inputs={"a": "image"}, weight=weight)
        for name, weight in (("light", 1.0), ("heavy", 5.0), ("middle", 2.0))
    ]
    outputs: dict[str, str | tuple[str, ...]] = {"o": tuple([f"{step.name}.y" for step in steps])}
    spec = GraphSpec(
        name="g", inputs=("image",), steps=tuple(steps), outputs=outputs, combine="mean", least=least
    )
    return Cluster(PLAIN, spec)


def test_members_come_in_the_order_of_their_weights() -> None:
    cluster = ensemble(1)
    cluster.submit("g", image=np.zeros(3))
    assert cluster.query is not None
    assert [piece.step for piece in cluster.query.pieces] == [1, 1, 2, 2, 0, 0]


def test_an_ensemble_is_refused_as_soon_as_too_few_members_are_left() -> None:
    cluster = ensemble(2)
    cluster.submit("g", image=np.zeros(1))
    first, second, _ = sorted(cluster.waiting)
    cluster.reject(first)
    assert not cluster.ended
    cluster.reject(second)
    [refused] = cluster.ended
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.DEADLINE_PASSED
    assert refused.detail == "output 'o' could have 1 of at least 2 members; step 'middle': late"
    cluster.over()


def test_an_ensemble_answers_at_its_cut_off_with_the_members_that_are_there() -> None:
    """A member's outputs never come: the reply leaves without them before the deadline, and is withdrawn."""
    cluster = ensemble(2)
    cluster.submit("g", image=np.array([3.0]))
    for _ in range(2):
        cluster.run(min(cluster.waiting))
    assert not cluster.ended
    at_ns = cluster.core.next_wakeup_ns()
    assert at_ns is not None
    assert 45 * MS < at_ns < 50 * MS
    cluster.core.tick(at_ns)
    cluster.take()
    [answer] = cluster.ended
    assert isinstance(answer, Answer)
    assert [step.name for step in answer.timing.steps if step.missing] == ["light"]
    assert not cluster.waiting, "the controller knows that nobody waits for the last member"
    cluster.over()


def test_a_cut_off_with_too_few_members_is_a_refusal_that_names_one() -> None:
    cluster = ensemble(2)
    cluster.submit("g", image=np.array([3.0]))
    cluster.run(min(cluster.waiting))
    cluster.core.tick(cluster.core.next_wakeup_ns() or 0)
    cluster.take()
    [refused] = cluster.ended
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.TIMED_OUT
    assert refused.detail.startswith(
        "output 'o' could have 1 of at least 2 members; step 'light': no outputs"
    )
    cluster.over()
