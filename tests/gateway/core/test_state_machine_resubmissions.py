"""Requests that the gateway has to effect a second time, or may not effect again."""

from __future__ import annotations

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import Arrive, Push, Refuse, Withdraw
from mainspring.gateway.core.state_machine import ARRIVAL_RETRY_NS, GatewayCore
from mainspring.gateway.core.validation import Signature
from mainspring.messages.codes import Reason
from tests.gateway.core.test_state_machine import MS, SIGNATURE, arrival, core_with, dispatch, submit
from tests.gateway.fakes import make_spec


def test_what_was_dispatched_and_could_not_be_sent_again_is_tried_again_not_timed_out() -> None:
    core = core_with()
    dispatch(core, arrival(submit(core, slo_ms=900)).request_id, worker="dead")
    core.worker_lost(MS, "dead")
    [_, anew] = core.drain()
    assert isinstance(anew, Arrive)
    core.arrival_unsent(MS, anew.request_id)
    core.tick(MS + ARRIVAL_RETRY_NS)
    again = arrival(core.drain())
    core.arrival_unsent(30 * MS, again.request_id)
    core.controller_lost(31 * MS)
    core.tick(30 * MS + ARRIVAL_RETRY_NS)
    assert core.drain() == [], "outputs may be on their way"
    core.controller_welcomed(60 * MS, 6)
    arrival(core.drain())
    core.validate()


def test_a_request_of_a_models_former_shape_is_refused_when_it_is_dispatched() -> None:
    signatures = {"m": SIGNATURE}
    core = GatewayCore(GatewayConfig(), signatures)
    core.controller_welcomed(0, 5)
    first, second = (arrival(submit(core, key)).request_id for key in (1, 2))
    signatures["m"] = Signature(make_spec("m"))
    [push] = dispatch(core, first)
    assert isinstance(push, Push)
    assert not push.message.withdrawn, "told again of the same model"
    signatures["m"] = Signature(make_spec("m", columns=5))
    withdraw, refuse, push = dispatch(core, second)
    assert withdraw == Withdraw(second)
    assert isinstance(refuse, Refuse)
    assert (refuse.reason, "other inputs" in refuse.detail) == (Reason.MODEL_REMOVED, True)
    assert isinstance(push, Push)
    assert push.message.withdrawn
    core.validate()
