"""Providers on real sockets: who may be one, what they are told, what restarts and losses leave behind."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring.controller.memory import Memory
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import TO_PROVIDER
from mainspring.messages.codes import Reason
from mainspring.messages.operating import ScaleWorkers
from mainspring.messages.peers import AdminReply, AdminRequest, Goodbye, Refused, Welcome
from mainspring.messages.scaling import KindStatus, Notice, Offer, Provide, ProviderHello, Running
from mainspring.simulator.redecide import redecide
from tests.controller.peers import FakeGateway, Peer, Stage, spec

MODELS = (spec("a"),)


class FakeProvider(Peer):
    """Has workers of one kind, and starts none."""

    kind = "provider"
    offer = Offer("cpu", "w", 8, ("w0",))

    def decode(self, data: bytes) -> msgspec.Struct:
        return TO_PROVIDER.decode(data)

    def hello(self, *offers: Offer, protocol: int = PROTOCOL_VERSION) -> None:
        self.send(ProviderHello(protocol, self.name, offers or (self.offer,)))

    @property
    def told(self) -> list[tuple[str, ...]]:
        return [each.workers for each in self.all(Provide)]


def provider(stage: Stage, name: str = "launcher", peer_id: str | None = None) -> FakeProvider:
    made = FakeProvider(stage.address, name, peer_id)
    stage.peers.append(made)
    return made


def greeted(stage: Stage, name: str = "launcher", peer_id: str | None = None) -> FakeProvider:
    made = provider(stage, name, peer_id)
    made.hello()
    stage.until(lambda: bool(made.all(Welcome)))
    return made


def scaled(stage: Stage, gateway: FakeGateway, count: int, kind: str = "cpu") -> AdminReply:
    token = 1 + max((reply.token for reply in gateway.all(AdminReply)), default=0)
    gateway.send(AdminRequest(token, operate=ScaleWorkers(kind, count)))
    stage.until(lambda: any(reply.token == token for reply in gateway.all(AdminReply)))
    return gateway.last(AdminReply)


def kind_of(stage: Stage, gateway: FakeGateway) -> KindStatus:
    return stage.status(gateway).kinds[0]


def test_a_command_is_carried_out_and_seen_in_the_status(stage: Stage, tmp_path: Path) -> None:
    stage.start(MODELS, event_log_dir=str(tmp_path / "log"))
    gateway, worker = stage.cluster("a")
    launcher = greeted(stage)
    assert scaled(stage, gateway, 2).reason is None
    stage.until(lambda: launcher.told == [("w0", "w-0")])
    assert kind_of(stage, gateway) == KindStatus("cpu", "launcher", 8, 2, 1)
    launcher.send(Running((Offer("cpu", "w", 8, ("w0", "w-0"), "w-0 died (exit code 1)"),)))
    stage.until(lambda: kind_of(stage, gateway).fault == "w-0 died (exit code 1)")
    second = stage.worker("w-0")
    launcher.send(Running((Offer("cpu", "w", 8, ("w0", "w-0")),)))
    stage.until(lambda: kind_of(stage, gateway) == KindStatus("cpu", "launcher", 8, 2, 2))
    assert scaled(stage, gateway, 1).reason is None
    stage.until(lambda: launcher.told[-1] == ("w0",))
    second.send(Goodbye("it was stopped"))
    stage.until(lambda: kind_of(stage, gateway) == KindStatus("cpu", "launcher", 8, 1, 1))
    assert worker.prepared
    stage.stop()
    assert redecide(tmp_path / "log").difference is None


def test_what_cant_be_is_refused_with_what_can(stage: Stage) -> None:
    stage.start(MODELS)
    gateway, _ = stage.cluster("a")
    answer = scaled(stage, gateway, 2)
    assert answer.reason is Reason.BAD_INPUT
    assert "mainspring up" in answer.detail
    greeted(stage)
    for count, kind, why in ((2, "tpu", "kinds are cpu"), (0, "cpu", "at least 1"), (9, "cpu", "at most 8")):
        answer = scaled(stage, gateway, count, kind)
        assert answer.reason is Reason.BAD_INPUT
        assert why in answer.detail


def test_what_was_asked_outlives_the_controller_and_a_provider_that_was_away(
    stage: Stage, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"state_file": str(tmp_path / "changes")}
    first = stage.start(MODELS, **settings)
    gateway, _ = stage.cluster("a")
    launcher = greeted(stage)
    scaled(stage, gateway, 3)
    stage.until(lambda: launcher.told == [("w0", "w-0", "w-1")])
    stage.stop()
    stage.peers.clear()
    stage.start(MODELS, **settings, address=first.address)
    stage.gateway()
    again = greeted(stage)
    stage.until(lambda: again.told == [("w0", "w-0", "w-1")])


def test_a_worker_that_came_by_a_move_is_wanted_after_a_restart(stage: Stage, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"state_file": str(tmp_path / "changes")}
    first = stage.start(MODELS, **settings)
    gateway, _ = stage.cluster("a")
    launcher = greeted(stage)
    scaled(stage, gateway, 1)
    both = Offer("cpu", "w", 8, ("w0", "w9"), moved=("w9",))
    launcher.send(Running((both,)))
    stage.until(lambda: kind_of(stage, gateway).wanted == 2)
    stage.stop()
    stage.peers.clear()
    stage.start(MODELS, **settings, address=first.address)
    later = stage.gateway()
    again = provider(stage)
    again.hello(Offer("cpu", "w", 8, ("w0", "w9")))
    stage.until(lambda: bool(stage.status(later).kinds) and kind_of(stage, later).wanted == 2)


def test_a_provider_that_has_not_heard_of_a_move_is_told_of_it_when_it_greets(
    stage: Stage, tmp_path: Path
) -> None:
    Memory(str(tmp_path / "changes")).moved("w9", "tcp://b:1")
    stage.start(MODELS, state_file=str(tmp_path / "changes"))
    gateway, _ = stage.cluster("a")
    launcher = provider(stage)
    launcher.hello(Offer("cpu", "w", 8, ("w0", "w9")))
    stage.until(lambda: bool(launcher.all(Provide)))
    assert launcher.all(Provide)[0] == Provide("launcher", "cpu", ("w0",), {"w9": "tcp://b:1"})
    assert kind_of(stage, gateway).wanted == 1


def test_a_newer_process_of_a_name_takes_its_place_and_is_told_what_the_other_was(stage: Stage) -> None:
    stage.start(MODELS)
    gateway, _ = stage.cluster("a")
    first = greeted(stage, peer_id="provider:launcher-1")
    scaled(stage, gateway, 2)
    stage.until(lambda: first.told == [("w0", "w-0")])
    second = greeted(stage, peer_id="provider:launcher-2")
    stage.until(lambda: second.told == [("w0", "w-0")])
    stage.until(lambda: bool(first.all(Refused)))
    assert first.last(Refused).code == "name_taken"
    first.hello()
    first.send(Running((first.offer,)))
    stage.until(lambda: first.last(Refused).code == "unknown_session")
    assert len(first.all(Welcome)) == 1, "it does not take its name back"
    assert kind_of(stage, gateway).provider == "launcher"
    second.send(Goodbye("it stops"))
    stage.until(lambda: kind_of(stage, gateway).provider == "")
    first.hello()
    stage.until(lambda: kind_of(stage, gateway).provider == "launcher")


def test_one_that_calls_itself_otherwise_leaves_nothing_under_its_former_name(stage: Stage) -> None:
    stage.start(MODELS)
    gateway, _ = stage.cluster("a")
    launcher = greeted(stage)
    launcher.name = "other"
    launcher.hello(Offer("tpu", "t", 8))
    stage.until(lambda: len(launcher.all(Welcome)) == 2)
    providers = {each.kind: each.provider for each in stage.status(gateway).kinds}
    assert providers == {"cpu": "", "tpu": "other"}


def test_what_is_wrong_with_a_kind_is_told_in_characters_that_a_terminal_shows(stage: Stage) -> None:
    stage.start(MODELS)
    gateway, _ = stage.cluster("a")
    launcher = greeted(stage)
    launcher.send(Running((Offer("cpu", "w", 8, ("w0",), "\x1b[31mred\nnext" + "x" * 1000),)))
    stage.until(lambda: kind_of(stage, gateway).fault.startswith(" [31mred next"))
    assert len(kind_of(stage, gateway).fault) == 500


def test_one_that_is_silent_is_lost(stage: Stage) -> None:
    stage.start(MODELS, heartbeat_interval_ms=20.0, heartbeat_timeout_ms=400.0)
    gateway, _ = stage.cluster("a")
    launcher = greeted(stage)
    launcher.answers_pings = False
    stage.until(lambda: kind_of(stage, gateway).provider == "")
    assert "nothing is connected" in kind_of(stage, gateway).fault
    assert "unknown_session" in [each.code for each in launcher.all(Refused)]
    launcher.answers_pings = True
    launcher.hello()
    stage.until(lambda: kind_of(stage, gateway).provider == "launcher")


@pytest.mark.parametrize(
    ("offers", "code", "why"),
    [
        ((Offer("cpu", "w", 8, ("w 0",)),), "bad_message", "letters, digits"),
        ((Offer("cpu", "w", 8, ("a", "a")),), "bad_message", "twice"),
        ((Offer("cpu", "w", 8), Offer("cpu", "v", 8)), "bad_message", "twice"),
        ((Offer("cpu", "w", -1),), "bad_message", "0 to 4,096 workers"),
        ((Offer("", "w", 8),), "bad_message", "1 to 128 characters"),
        ((Offer("cpu/tvm-sm_90", "w", 8),), "bad_message", "none of them /"),
        (tuple(Offer(f"k{number}", "w", 8) for number in range(65)), "bad_message", "64 are the most"),
    ],
)
def test_one_whose_words_are_of_no_use_is_refused(
    stage: Stage, offers: tuple[Offer, ...], code: str, why: str
) -> None:
    stage.start(MODELS)
    bad = provider(stage)
    bad.hello(*offers)
    stage.until(lambda: bool(bad.all(Refused)))
    assert bad.last(Refused).code == code
    assert why in bad.last(Refused).detail


def test_a_kind_has_one_provider(stage: Stage) -> None:
    stage.start(MODELS)
    greeted(stage)
    other = provider(stage, "ray")
    other.hello()
    stage.until(lambda: bool(other.all(Refused)))
    assert other.last(Refused).code == "name_taken"
    assert "launcher has workers of kind cpu already" in other.last(Refused).detail


def test_one_of_another_protocol_is_refused(stage: Stage) -> None:
    stage.start(MODELS)
    old = provider(stage)
    old.hello(protocol=PROTOCOL_VERSION + 1)
    stage.until(lambda: bool(old.all(Refused)))
    assert old.last(Refused).code == "protocol_mismatch"


def test_operators_are_told_of_a_worker_that_is_lost_and_of_its_return(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.start(MODELS, heartbeat_interval_ms=50.0, heartbeat_timeout_ms=400.0)
    _, worker = stage.cluster("a")
    launcher = greeted(stage)
    worker.answers_pings = False
    stage.until(lambda: len(launcher.all(Notice)) == 1)
    worker.answers_pings = True
    worker.hello()
    stage.until(lambda: len(launcher.all(Notice)) == 2)
    lost, back = [notice.text for notice in launcher.all(Notice)]
    assert lost.startswith(f"worker {worker.name} is lost: silent for ")
    assert back.startswith(f"worker {worker.name} is back after ")
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [text for text in warned if text.startswith("worker ")] == [lost, back]


def test_operators_are_not_told_of_what_they_or_the_worker_want(stage: Stage) -> None:
    stage.start(MODELS, heartbeat_timeout_ms=60_000.0)
    gateway, _ = stage.cluster("a")
    launcher = greeted(stage)
    second = stage.worker("w-0")
    stage.until(lambda: stage.knows(gateway, "w-0", 1))
    second.send(Goodbye("it was stopped"))
    stage.until(lambda: not stage.knows(gateway, "w-0"))
    stage.worker("w-0", "worker:another")
    stage.until(lambda: stage.knows(gateway, "w-0", 1))
    assert not launcher.all(Notice)
