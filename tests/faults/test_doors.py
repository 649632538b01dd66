"""Strangers at the doors between processes: each attack is refused, and what is served goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.peer_connections import WorkerLinks
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import encode
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.observing import OBSERVER_VERSION, ObserverHello
from mainspring.messages.operating import Operate, SetDefaultSlo
from mainspring.messages.peers import AdminRequest, Arrival, GatewayHello, Input, WorkerHello
from mainspring.transport.bounds import Ended
from mainspring.transport.greeting import Greeting
from mainspring.transport.handshake import Unproved
from mainspring.transport.hub import Hub
from tests.blocking import Server
from tests.controller.peers import Stage, spec
from tests.transport.raw import admitted, by_tcp, connecting

MODELS = (spec("m0"), spec("m1"))
ROOT = Path(__file__).resolve().parents[2]
FORGED = (
    ("worker", WorkerHello(PROTOCOL_VERSION, "w0", "cpu", 8, PAGE_BYTES, "tcp://203.0.113.9:80")),
    ("gateway", GatewayHello(PROTOCOL_VERSION, "g9")),
    ("gateway", AdminRequest(1, remove="m0")),
    ("observer", ObserverHello(OBSERVER_VERSION, "o")),
    ("operator", Operate(1, "admin (forged)", SetDefaultSlo("m0", 1))),
)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def finish(greeting: Greeting) -> None:
    while not greeting.advance():
        pass


def test_strangers_by_tcp_change_nothing_whatever_they_say(stage: Stage) -> None:
    controller = stage.start(MODELS)
    gateway, _ = stage.cluster("m0", "m1")
    for role, message in FORGED:
        with by_tcp(controller.address) as raw:
            raw.setblocking(False)
            greeting = Greeting(raw, connecting(role, b"forged"))
            with pytest.raises((Unproved, Ended)):
                finish(greeting)
            body = encode(message)
            stage.pump()
            with contextlib.suppress(OSError):
                raw.send(len(body).to_bytes(4, "little") + bytes(4) + body)
    status = stage.status(gateway)
    assert [each.name for each in status.models] == ["m0", "m1"]
    assert [each.worker for each in status.workers] == ["w0"]
    assert controller._dropped["bad_framing"] == len(FORGED)
    assert not controller.scheduler.default_slos_ns()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_this_host_changes_nothing(stage: Stage) -> None:
    """By TCP and by the name of the socket: both are open to its connect, and neither to its messages."""
    controller = stage.start(MODELS)
    gateway, _ = stage.cluster("m0", "m1")
    attack = (
        "import encodings.idna, os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "port = int(sys.argv[1].rpartition(':')[2])\n"
        "tcp = socket.create_connection(('127.0.0.1', port))\n"
        "name = socket.socket(socket.AF_UNIX); name.connect(f'\\0mainspring/127.0.0.1/{port}')\n"
        "for each in (tcp, name):\n"
        "    each.sendall(bytes.fromhex(sys.argv[2])); print(each.recv(4096))\n"
    )
    body = encode(Operate(1, "admin", SetDefaultSlo("m0", 1)))
    said = connecting("operator", b"x").opening + len(body).to_bytes(4, "little") + bytes(4) + body
    ran = subprocess.run(
        [sys.executable, "-c", attack, controller.address, said.hex()],
        check=False,
        capture_output=True,
        timeout=60,
        cwd="/",
    )
    assert ran.stdout.count(b"it is not a process of this user on this host") == 2, ran
    assert not controller.scheduler.default_slos_ns()
    assert len(stage.status(gateway).models) == 2


def test_a_proved_role_does_not_speak_for_another(stage: Stage) -> None:
    """An observer does not operate, a worker does not remove a model."""
    controller = stage.start(MODELS)
    gateway, worker = stage.cluster("m0", "m1")
    worker.send(AdminRequest(1, remove="m0"))
    worker.send(Arrival(1, "m0", 1, None))
    worker.send(Operate(1, "admin (forged)", SetDefaultSlo("m0", 1)))
    gateway.send(WorkerHello(PROTOCOL_VERSION, "w0", "cpu", 8, PAGE_BYTES, "tcp://h:1"))
    stage.until(lambda: controller._dropped["bad_message"] == 4)
    assert [each.name for each in stage.status(gateway).models] == ["m0", "m1"]
    assert "w0" in controller._shell.sessions.workers
    assert not controller.scheduler.default_slos_ns()


@pytest.mark.parametrize("name", ["\n\x1b[31mFAKE", "../w0", "", "a b", "x" * 129, "\u202ex"])
def test_names_are_what_a_terminal_and_a_folder_can_bear(stage: Stage, name: str) -> None:
    controller = stage.start(MODELS)
    gateway = stage.gateway()
    gateway.send(GatewayHello(PROTOCOL_VERSION, name))
    stage.until(lambda: controller._dropped["bad_message"] == 1)
    assert name not in controller._shell.sessions.gateways


@pytest.mark.parametrize(("role", "named"), [("worker", b"other"), ("gateway", b"w"), ("tool", b"")])
def test_a_gateway_gives_inputs_only_to_the_worker_that_the_controller_named(role: str, named: bytes) -> None:
    hub = Hub()
    there = Server(role=role, name=named)
    links = WorkerLinks(hub, GatewayConfig(), lambda _: None)
    links.connect("w", there.address)
    assert links.send("w", Input(1, 1), [b"secret input"])
    link = links.link_of("w")
    assert link is not None
    for _ in range(2_000):
        there.poll(1)
        hub.wait(1_000_000)
        if link.refusal:
            break
    assert "not worker 'w'" in link.refusal
    assert not there.poll(20)
    there.close()
    hub.close()


def test_an_unfinished_message_to_the_controller_takes_no_memory(stage: Stage) -> None:
    controller = stage.start(MODELS)
    raw = admitted(controller.address, "gateway", b"x")
    sizes = (60_000_000).to_bytes(8, "little") * 50
    raw.sendall((10).to_bytes(4, "little") + (50).to_bytes(4, "little") + sizes)
    assert raw.recv(1) == b""
    raw.close()
    stage.until(lambda: controller._dropped["bad_framing"] == 1)
