"""A process's connections to several controllers: it hears the one that leads, and tells others so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import TO_CONTROLLER, TO_WORKER, encode
from mainspring.messages.peers import Deposed, Goodbye, Leads, Ping, Pong, Refused, Welcome
from mainspring.messages.roles import Role
from mainspring.transport.bounds import Limits
from mainspring.transport.controllers import STANDBY, ControllerLinks, connect
from mainspring.transport.greeting import present
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener
from tests.patience import PATIENCE_S

LIMITS = Limits(1 << 20, 1 << 20, 100)
HELLO = Goodbye("any message will do as a hello")


class Stage:
    """Two controllers that say what a test has them say, and a process that is connected to both."""

    def __init__(self, folder: Path) -> None:
        self.hub = Hub()
        shows = present(Role.CONTROLLER, "")
        self.addresses = [f"unix://{folder}/c{number}.sock" for number in range(2)]
        self.controllers = [Listener(self.hub, each, {"worker": LIMITS}, shows) for each in self.addresses]
        self.heard: list[list[msgspec.Struct]] = [[], []]
        self.told: list[msgspec.Struct] = []
        links = connect(self.hub, ", ".join(self.addresses), self.begin)
        assert isinstance(links, ControllerLinks)
        self.links = links
        self.until(lambda: all(link.connected for link in links.links))

    def begin(self, hub: Hub, address: str) -> Link:
        shows, expects = present(Role.WORKER, ""), Identity(Role.CONTROLLER)
        return Link(hub, address, LIMITS, name=b"w0", shows=shows, expects=expects)

    def say(self, controller: int, message: msgspec.Struct) -> None:
        self.controllers[controller].send(b"worker/w0", (encode(message),))

    def pump(self) -> None:
        self.hub.wait(1_000_000)
        for controller, heard in zip(self.controllers, self.heard, strict=True):
            while (received := controller.receive()) is not None:
                heard.append(TO_CONTROLLER.decode(received[1][0]))
        while (parts := self.links.receive()) is not None:
            self.told.append(TO_WORKER.decode(parts[0]))

    def until(self, condition: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up_s, (self.heard, self.told)
            self.pump()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.links.allegiance.validate()
    made.hub.close()


def welcome(epoch: int) -> Welcome:
    return Welcome(PROTOCOL_VERSION, 1, epoch)


def test_all_are_greeted_and_the_one_that_welcomes_is_heard(stage: Stage) -> None:
    stage.links.greet((encode(HELLO),))
    stage.until(lambda: stage.heard == [[HELLO], [HELLO]])
    stage.say(0, Refused(STANDBY, "another one leads"))
    stage.say(1, welcome(3))
    stage.until(lambda: stage.told == [welcome(3)])
    assert (stage.links.epoch, stage.links.obeyed) == (3, True)
    stage.links.send((encode(HELLO),))
    stage.until(lambda: stage.heard[1] == [HELLO, HELLO])
    assert stage.heard[0] == [HELLO]


def test_who_stands_by_has_its_pings_answered(stage: Stage) -> None:
    stage.say(1, welcome(3))
    stage.say(0, Ping(7, 5))
    stage.until(lambda: any(isinstance(each, Pong) and each.sequence == 7 for each in stage.heard[0]))
    assert stage.told == [welcome(3)]


def test_a_deposed_leader_is_told_and_not_heard(stage: Stage) -> None:
    stage.say(0, welcome(3))
    stage.until(lambda: stage.told == [welcome(3)])
    stage.say(1, Leads(4))
    stage.until(lambda: stage.told == [welcome(3), Leads(4)])
    for each in (welcome(3), Leads(3), Ping(1, 1), Refused("unknown_session", "it was silent")):
        stage.say(0, each)
    stage.say(1, welcome(4))
    stage.until(lambda: stage.heard[0].count(Deposed(4)) == 2)
    stage.until(lambda: stage.told[-1] == welcome(4))
    assert stage.told == [welcome(3), Leads(4), welcome(4)]


def test_the_session_is_with_the_leaders_connection(stage: Stage) -> None:
    stage.say(0, welcome(3))
    stage.until(lambda: stage.links.obeyed)
    stage.controllers[1].disconnect(b"worker/w0", "for the test")
    stage.until(lambda: not stage.links.links[1].connected)
    assert stage.links.obeyed
    stage.controllers[0].disconnect(b"worker/w0", "for the test")
    stage.until(lambda: not stage.links.obeyed)


def test_one_that_comes_later_is_greeted_then(stage: Stage) -> None:
    stage.links.greet((encode(HELLO),))
    stage.say(0, welcome(3))
    stage.until(lambda: stage.heard == [[HELLO], [HELLO]])
    stage.controllers[1].disconnect(b"worker/w0", "for the test")
    stage.until(lambda: stage.heard[1] == [HELLO, HELLO])
