"""Adding, draining and removing models, versions of a repository, and the status, over real sockets."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from mainspring.controller.registry import DrainingModels, served_fault, spec_fault
from mainspring.messages.actions import Infer, Prepare, Release
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec, Profile, TensorSpec
from mainspring.messages.peers import AdminReply, AdminRequest, Drained, ModelDown, ModelUp, Rejected, Served
from mainspring.messages.served import ServedModel
from tests.controller.peers import FakeGateway, Stage, spec


def test_a_model_added_live_is_served(stage: Stage) -> None:
    stage.start()
    gateway, worker = stage.cluster()
    other = stage.gateway("g1")
    assert stage.admin(gateway, add=spec("new")).reason is None
    stage.until(lambda: bool(other.all(ModelUp)) and bool(worker.all(Prepare)))
    assert gateway.all(ModelUp) == other.all(ModelUp) == [ModelUp(spec("new"))]
    stage.until(lambda: stage.knows(gateway, "w0", 1))
    gateway.arrive(1, "new")
    stage.until(lambda: bool(worker.all(Infer)))


def test_adding_again_is_done_and_adding_another_of_the_name_is_refused(stage: Stage) -> None:
    stage.start((spec("m0", "h0"),))
    gateway = stage.gateway()
    assert stage.admin(gateway, add=spec("m0", "h0")).reason is None
    reply = stage.admin(gateway, add=spec("m0", "h1"))
    assert reply.reason is Reason.MODEL_EXISTS
    assert "'m0' is served with other weights" in reply.detail
    reply = stage.admin(gateway, add=msgspec.structs.replace(spec("m0", "h0"), batch_sizes=(1,)))
    assert "'m0' is served with another executable, or other batch sizes" in reply.detail
    assert gateway.all(ModelUp) == [ModelUp(spec("m0", "h0"))]


def test_a_model_removed_live_is_served_no_more(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, worker = stage.cluster("m0")
    assert stage.admin(gateway, remove="m0").reason is None
    stage.until(lambda: bool(worker.all(Release)))
    assert gateway.all(ModelDown) == [ModelDown("m0")]
    gateway.arrive(1)
    stage.until(lambda: bool(gateway.all(Rejected)))
    assert gateway.last(Rejected).reason is Reason.UNKNOWN_MODEL
    assert stage.admin(gateway, remove="m0").reason is Reason.UNKNOWN_MODEL


def test_models_are_bounded(stage: Stage) -> None:
    stage.start((spec("m0"),), max_models=1)
    gateway = stage.gateway()
    assert stage.admin(gateway, add=spec("m1")).reason is Reason.OVERLOADED


def test_the_status_has_what_only_the_shell_knows(stage: Stage) -> None:
    stage.start((spec(),))
    gateway, _ = stage.cluster("m0")
    ahead = stage.worker("w1", offset_ns=10**12)
    stage.until(lambda: stage.knows(gateway, "w1", 1))
    ahead.socket.send([b"garbage"])
    stage.until(lambda: stage.status(gateway).dropped_messages == {"bad_message": 1})
    status = stage.status(gateway)
    offsets = {found.worker: found.clock_offset_ns for found in status.workers}
    assert abs(offsets["w0"]) < 10**9
    assert abs(offsets["w1"] - 10**12) < 10**9
    assert all(found.notes == ("memory is not locked",) for found in status.workers)
    assert status.policy == "mainspring"
    assert [model.name for model in status.models] == ["m0"]


@pytest.mark.parametrize(
    "request_",
    [AdminRequest(5), AdminRequest(5, add=spec(), status=True), AdminRequest(5, remove="a", status=True)],
)
def test_an_administrator_asks_for_exactly_one_thing(stage: Stage, request_: AdminRequest) -> None:
    stage.start()
    gateway = stage.gateway()
    gateway.send(request_)
    stage.until(lambda: bool(gateway.all(AdminReply)))
    assert gateway.last(AdminReply).token == 5
    assert gateway.last(AdminReply).reason is Reason.BAD_MESSAGE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "0 characters"),
        ({"name": "x" * 200}, "200 characters"),
        ({"batch_sizes": ()}, "batch sizes are ()"),
        ({"batch_sizes": (2, 1)}, "ascending"),
        ({"batch_sizes": (0, 1)}, "positive"),
        ({"extents": (0,)}, "at least one page"),
        ({"weights_bytes": 1 << 40}, "weights have"),
        ({"profiles": {"cpu": Profile({1: 5}, 1)}}, "'cpu' lacks"),
        ({"profiles": {"cpu": Profile({1: 5, 2: 5, 4: 5}, -1)}}, "'cpu' lacks"),
        ({"profiles": {"cpu": Profile({1: 5, 2: 5, 4: 2**64 - 1}, 1)}}, "at most 3,600 s"),
        ({"profiles": {"cpu": Profile({1: 5, 2: 5, 4: 5, 8: 2**63}, 1)}}, "at most 3,600 s"),
        ({"batch_sizes": (1, 2**62)}, "at most 65536"),
        ({"extents": (2**62,)}, "at most 16777216"),
        ({"inputs": (TensorSpec("x", "floaty", (1,)),)}, "'floaty'"),
        ({"inputs": (TensorSpec("x", "(,", (1,)),)}, "'(,'"),
        ({"inputs": (TensorSpec("x", "datetime64", (1,)),)}, "one of bool, float16"),
        ({"inputs": (TensorSpec("x", "int8", (1,)),) * 2}, "inputs have the name 'x' more than once"),
        ({"outputs": (TensorSpec("x", "int8", (2**30, 2**30)),)}, "at most 1,099,511,627,776"),
        ({"outputs": (TensorSpec("x", "int8", (-1,)),)}, "(-1,)"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused_with_the_reason(
    stage: Stage, changes: dict[str, object], words: str
) -> None:
    bad = msgspec.structs.replace(spec("bad"), **changes)
    assert words in (spec_fault(bad) or "")


def test_a_bad_model_over_the_wire_changes_nothing(stage: Stage) -> None:
    stage.start()
    gateway = stage.gateway()
    reply = stage.admin(gateway, add=msgspec.structs.replace(spec("bad"), batch_sizes=()))
    assert reply.reason is Reason.BAD_MESSAGE
    assert "batch sizes" in reply.detail
    assert gateway.all(ModelUp) == []
    assert spec_fault(spec()) is None


_TOKENS = itertools.count(1000)


def ask(stage: Stage, gateway: FakeGateway, **command: object) -> AdminReply:
    """Ask as an administrator and return the answer."""
    token = next(_TOKENS)
    gateway.send(msgspec.structs.replace(AdminRequest(token), **command))
    stage.until(lambda: any(reply.token == token for reply in gateway.all(AdminReply)))
    return gateway.last(AdminReply)


def version(number: int) -> ModelSpec:
    return msgspec.structs.replace(spec(f"net@{number}-aa"), served_as="net", version=number)


def test_gateways_hear_of_versions_now_and_when_they_join(stage: Stage) -> None:
    stage.start((version(1), version(2)))
    gateway, other = stage.gateway("g0"), stage.gateway("g1")
    table = ServedModel("net", {1: "net@1-aa", 2: "net@2-aa"}, slo_ns=5, cache=True, config="{}")
    assert ask(stage, gateway, serve=table).reason is None
    stage.until(lambda: bool(other.all(Served)))
    assert other.all(Served) == [Served(table)]
    reply = ask(stage, gateway, remove="net")
    assert (reply.reason, "is a repository's" in reply.detail) == (Reason.UNKNOWN_MODEL, True)
    late = stage.gateway("g2")
    stage.until(lambda: late.all(Served) == [Served(table)])
    assert late.received.index(Served(table)) > late.received.index(ModelUp(version(2)))
    assert ask(stage, gateway, serve=ServedModel("net", {})).reason is None
    later = stage.gateway("g3")
    stage.until(lambda: len(later.all(ModelUp)) == 2)
    assert later.all(Served) == []


def test_a_table_of_unknown_models_or_nonsense_is_refused(stage: Stage) -> None:
    stage.start((version(1),))
    gateway = stage.gateway()
    reply = ask(stage, gateway, serve=ServedModel("net", {3: "net@3-aa"}))
    assert (reply.reason, "add it first" in reply.detail) == (Reason.UNKNOWN_MODEL, True)
    assert ask(stage, gateway, serve=ServedModel("", {1: "net@1-aa"})).reason is Reason.BAD_MESSAGE
    assert ask(stage, gateway, serve=ServedModel("n", {}), status=True).reason is Reason.BAD_MESSAGE


@pytest.mark.parametrize(
    "wrong",
    [
        ServedModel("n" * 200, {}),
        ServedModel("n", {0: "x"}),
        ServedModel("n", dict.fromkeys(range(1, 2000), "x")),
        ServedModel("n", {1: "x"}, slo_ns=0),
        ServedModel("n", {1: "x"}, labels={"y": ("a" * (3 << 20), "b" * (3 << 20))}),
        ServedModel("n", {1: "x"}, slo_ns=1 << 62),
        ServedModel("n", {1: "x"}, config="x" * (1 << 21)),
    ],
)
def test_each_number_of_a_table_is_bounded(wrong: ServedModel) -> None:
    assert served_fault(wrong)
    assert served_fault(ServedModel("n", {1: "x"}, slo_ns=1)) is None


def test_a_model_stays_until_every_gateway_has_drained_it(stage: Stage) -> None:
    stage.start((version(1),))
    gateway, worker = stage.cluster("net@1-aa")
    other = stage.gateway("g1")
    worker.holds = (Infer,)
    gateway.arrive(1, "net@1-aa")
    stage.until(lambda: bool(worker.all(Infer)))
    assert ask(stage, gateway, remove="net@1-aa", drain=True).reason is None
    stage.until(lambda: other.all(ModelDown) == [ModelDown("net@1-aa", drain=True)])
    other.send(Drained("net@1-aa"))
    # What one gateway still sends is served, whatever the others say.
    gateway.arrive(2, "net@1-aa")
    worker.holds = ()
    worker.end(worker.last(Infer))
    stage.until(lambda: sum(len(each.request_ids) for each in worker.all(Infer)) == 2)
    assert gateway.all(Rejected) == []
    assert [model.name for model in stage.status(gateway).models] == ["net@1-aa"]
    gateway.send(Drained("net@1-aa"))
    stage.until(lambda: ModelDown("net@1-aa") in other.all(ModelDown))
    assert stage.status(gateway).models == ()


def test_a_gateway_that_joins_has_to_drain_it_and_one_that_leaves_has_not(stage: Stage) -> None:
    stage.start((version(1),))
    gateway, leaver = stage.gateway("g0"), stage.gateway("g1")
    assert ask(stage, gateway, remove="net@1-aa", drain=True).reason is None
    assert ask(stage, gateway, remove="net@1-aa", drain=True).reason is None
    joiner = stage.gateway("g2")
    stage.until(lambda: joiner.all(ModelDown) == [ModelDown("net@1-aa", drain=True)])
    gateway.send(Drained("net@1-aa"))
    joiner.send(Drained("net@1-aa"))
    stage.pump_for(0.05)
    assert len(stage.status(gateway).models) == 1
    leaver.close()
    stage.until(lambda: ModelDown("net@1-aa") in gateway.all(ModelDown))


def test_a_model_that_is_added_again_stays(stage: Stage) -> None:
    stage.start((version(1),))
    gateway = stage.gateway()
    assert ask(stage, gateway, remove="net@1-aa", drain=True).reason is None
    assert ask(stage, gateway, add=version(1)).reason is None
    stage.until(lambda: gateway.received[-2] == ModelUp(version(1)))
    gateway.send(Drained("net@1-aa"))
    assert [model.name for model in stage.status(gateway).models] == ["net@1-aa"]


def test_without_gateways_a_model_goes_at_once_and_an_unknown_one_is_refused(stage: Stage) -> None:
    draining = DrainingModels()
    assert draining.begin("m", [])
    assert len(draining) == 0
    assert not draining.begin("m", [1, 2])
    assert draining.left(1) == []
    assert draining.left(2) == ["m"]
    stage.start()
    reply = ask(stage, stage.gateway(), remove="nothing", drain=True)
    assert reply.reason is Reason.UNKNOWN_MODEL
