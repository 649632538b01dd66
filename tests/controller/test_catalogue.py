"""Adding and removing models, and the status, over real sockets."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.controller.specs import spec_fault
from mainspring.messages.actions import Infer, Prepare, Release
from mainspring.messages.codes import Reason
from mainspring.messages.model import Profile, TensorSpec
from mainspring.messages.peers import AdminReply, AdminRequest, ModelDown, ModelUp, Rejected
from tests.controller.peers import Stage, spec


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
    assert "'m0'" in reply.detail
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
