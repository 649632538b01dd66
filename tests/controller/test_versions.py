"""A repository's models: their versions are told to gateways, and go once nobody needs them."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from mainspring.controller.retiring import Retiring
from mainspring.controller.specs import served_fault
from mainspring.messages.actions import Infer
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec, ServedModel
from mainspring.messages.peers import AdminReply, AdminRequest, Drained, ModelDown, ModelUp, Rejected, Served
from tests.controller.peers import FakeGateway, Stage, spec

_TOKENS = itertools.count(1000)


def ask(stage: Stage, gateway: FakeGateway, **wish: object) -> AdminReply:
    """Ask as an administrator and return the answer."""
    token = next(_TOKENS)
    gateway.send(msgspec.structs.replace(AdminRequest(token), **wish))
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
    retiring = Retiring()
    assert retiring.begin("m", [])
    assert len(retiring) == 0
    assert not retiring.begin("m", [1, 2])
    assert retiring.left(1) == []
    assert retiring.left(2) == ["m"]
    stage.start()
    reply = ask(stage, stage.gateway(), remove="nothing", drain=True)
    assert reply.reason is Reason.UNKNOWN_MODEL
