"""The small pure parts beside the request table."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.admin import AdminTable
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.effects import Connection
from mainspring.gateway.core.validation import BadRequest
from mainspring.messages.clients import AddModel, Done, ErrorReply, GetStatus, RemoveModel
from mainspring.messages.codes import Reason
from mainspring.messages.peers import AdminReply, AdminRequest
from mainspring.messages.served import ServedModel
from mainspring.messages.sharding import ShardMap, first_map
from tests.gateway.fakes import make_spec

MS = 1_000_000
ALICE = Connection("zeromq", b"alice")


def test_what_a_new_session_does_not_confirm_is_forgotten_after_a_while() -> None:
    catalog = Catalog()
    for name in ("kept", "gone"):
        catalog.model_up(make_spec(name))
        catalog.worker_up(name, "tcp://1")
    catalog.begin_session()
    catalog.model_up(make_spec("kept"))
    catalog.worker_up("kept", "tcp://2")
    assert catalog.next_wakeup_ns() is None, "the controller may not have come to the rest yet"
    assert catalog.tick(10**12) == []
    assert set(catalog.signatures) == {"kept", "gone"}
    catalog.told_all(2 * 10**12)
    due_ns = catalog.next_wakeup_ns()
    assert due_ns is not None
    assert due_ns > 2 * 10**12
    catalog.told_all(due_ns - 1)
    assert catalog.next_wakeup_ns() == due_ns
    assert catalog.tick(due_ns - 1) == []
    assert catalog.tick(due_ns) == ["gone"]
    assert [spec.name for spec in catalog.models()] == ["kept"]
    assert catalog.workers == {"kept": "tcp://2"}
    assert catalog.next_wakeup_ns() is None


def test_a_model_that_may_still_be_told_is_not_unknown() -> None:
    catalog = Catalog()
    catalog.complete = False
    catalog.model_up(make_spec("told"))
    assert catalog.resolve("told").spec.name == "told"
    with pytest.raises(BadRequest, match="'untold' may be one of them; send the request again") as caught:
        catalog.resolve("untold")
    assert caught.value.reason is Reason.CONTROLLER_UNREACHABLE
    with pytest.raises(BadRequest) as caught:
        catalog.resolve("told", 7)
    assert caught.value.reason is Reason.UNKNOWN_MODEL
    catalog.told_all(0)
    with pytest.raises(BadRequest) as caught:
        catalog.resolve("untold")
    assert caught.value.reason is Reason.UNKNOWN_MODEL


def test_what_goes_down_before_it_is_confirmed_is_gone_once() -> None:
    catalog = Catalog()
    catalog.model_up(make_spec("m"))
    catalog.worker_up("w", "tcp://1")
    catalog.begin_session()
    catalog.model_down("m")
    catalog.worker_down("w")
    catalog.told_all(0)
    assert catalog.tick(10**12) == []
    assert catalog.models() == ()


def test_an_operators_default_slo_stands_before_the_repositorys_until_it_is_unset() -> None:
    catalog = Catalog()
    catalog.model_up(make_spec("m"))
    catalog.serve(ServedModel("served", {1: "m"}, slo_ns=50 * MS))
    catalog.set_default_slo("served", 7 * MS)
    catalog.set_default_slo("plain", 9 * MS)
    assert (catalog.options("served").slo_ns, catalog.options("plain").slo_ns) == (7 * MS, 9 * MS)
    catalog.serve(ServedModel("served", {2: "m"}, slo_ns=60 * MS))
    assert catalog.options("served") == ServedModel("served", {2: "m"}, slo_ns=7 * MS)
    catalog.set_default_slo("served", None)
    assert catalog.options("served").slo_ns == 60 * MS


def test_a_controller_that_began_anew_has_no_default_slos_of_operators() -> None:
    catalog = Catalog()
    catalog.set_default_slo("kept", 7 * MS)
    catalog.set_default_slo("gone", 7 * MS)
    catalog.begin_session()
    catalog.set_default_slo("kept", 8 * MS)
    assert catalog.options("gone").slo_ns == 7 * MS
    catalog.told_all(0)
    due_ns = catalog.next_wakeup_ns()
    assert due_ns is not None
    catalog.tick(due_ns)
    assert catalog.options("kept").slo_ns == 8 * MS
    assert catalog.options("gone").slo_ns is None


@pytest.mark.parametrize(
    "change",
    [
        {"batch_sizes": ()},
        {"inputs": (msgspec.structs.replace(make_spec("m").inputs[0], dtype="no"),)},
        {"inputs": (msgspec.structs.replace(make_spec("m").inputs[0], dtype="(,"),)},
        {"inputs": make_spec("m").inputs * 2},
        {"outputs": make_spec("m").outputs * 2},
    ],
)
def test_a_spec_that_makes_no_sense_is_a_value_error(change: dict[str, object]) -> None:
    catalog = Catalog()
    spec = msgspec.structs.replace(make_spec("m"), **change)
    with pytest.raises(ValueError, match="'m'"):
        catalog.model_up(spec)
    assert catalog.models() == ()


def only_map() -> ShardMap:
    return first_map(["unix:///one"])


def test_each_command_gets_one_answer() -> None:
    admin = AdminTable(GatewayConfig(admin_timeout_ms=100.0, max_admin_requests=3), only_map)
    spec = make_spec("m")
    assert admin.ask(0, ALICE, AddModel(1, spec), [0]) == AdminRequest(0, add=spec)
    assert admin.ask(1, ALICE, RemoveModel(2, "m"), [0]) == AdminRequest(1, remove="m")
    assert admin.ask(2, ALICE, GetStatus(3), [0]) == AdminRequest(2, status=True)
    full = admin.ask(3, ALICE, GetStatus(4), [0])
    assert isinstance(full, ErrorReply)
    assert full.reason is Reason.OVERLOADED
    assert admin.answered(AdminReply(0), {}) == (ALICE, Done(1))
    assert admin.answered(AdminReply(0), {}) is None
    answered = admin.answered(AdminReply(1, Reason.UNKNOWN_MODEL, "no m"), {})
    assert answered == (ALICE, ErrorReply(2, Reason.UNKNOWN_MODEL, "no m"))
    assert admin.next_wakeup_ns() == 100 * MS + 2
    [(connection, reply)] = admin.tick(100 * MS + 2)
    assert isinstance(reply, ErrorReply)
    assert (connection, reply.key, reply.reason) == (ALICE, 3, Reason.TIMED_OUT)
    assert admin.next_wakeup_ns() is None


def test_commands_end_with_their_controller() -> None:
    admin = AdminTable(GatewayConfig(), only_map)
    admin.ask(0, ALICE, GetStatus(3), [0])
    [(_, reply)] = admin.controller_lost()
    assert isinstance(reply, ErrorReply)
    assert reply.reason is Reason.CONTROLLER_UNREACHABLE
    refused = admin.ask(0, ALICE, GetStatus(4), [])
    assert isinstance(refused, ErrorReply)
    assert refused.reason is Reason.CONTROLLER_UNREACHABLE


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"grace_ms": 0.0}, "grace_ms is 0.0; it must be greater than 0"),
        ({"max_in_flight": -1}, "max_in_flight is -1"),
        ({"controller_timeout_ms": 100.0}, "at least twice hello_interval_ms"),
    ],
)
def test_a_config_that_cannot_work_is_refused(settings: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        GatewayConfig(**settings)  # type: ignore[arg-type]
