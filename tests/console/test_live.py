"""Following a stream whose other end misbehaves: silent, garbled, gone; and in an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from mainspring.console import live
from mainspring.console.live import Batch, Following, LiveStream
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import TO_CONTROLLER, encode
from mainspring.messages.events import RequestCancelled, Wakeup
from mainspring.messages.observing import ObserverHello, Records, Stage
from mainspring.messages.peers import Ping, Pong, Refused, Welcome
from tests.blocking import Server
from tests.patience import PATIENCE_S

ONE = msgspec.msgpack.encode([(5, RequestCancelled(1))])


class Controller:
    """The other end of a stream, played by the test."""

    def __init__(self) -> None:
        self.server = Server(role="controller")
        self.stream = LiveStream(self.server.address)
        self.batches: list[Batch] = []
        self.heard: list[msgspec.Struct] = []
        self.peer = b""

    def until(self, condition: Callable[[], object]) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up_s, f"it is {self.stream.state}: {self.stream.detail}"
            batch = self.stream.poll(1_000_000)
            if batch is not None:
                self.batches.append(batch)
            while self.server.poll():
                self.peer, data = self.server.receive()
                self.heard.append(TO_CONTROLLER.decode(data))

    def hellos(self) -> int:
        return sum(isinstance(message, ObserverHello) for message in self.heard)

    def say(self, message: msgspec.Struct, *frames: bytes) -> None:
        self.server.send([self.peer, encode(message), *frames])

    def welcome(self) -> None:
        self.until(self.hellos)
        self.say(Welcome(PROTOCOL_VERSION, 1))
        self.say(Records(7, Stage.BEGIN, 5), ONE)
        self.say(Records(7, Stage.END, 6), msgspec.msgpack.encode([]))
        self.until(lambda: self.stream.state == "live")


@pytest.fixture
def controller() -> Iterator[Controller]:
    played = Controller()
    yield played
    played.stream.close()
    played.server.close()


def test_a_controller_that_falls_silent_is_connected_to_anew(controller: Controller) -> None:
    controller.welcome()
    ended = controller.server.listener.ended
    controller.until(lambda: controller.hellos() == 2)
    assert controller.server.listener.ended > ended
    assert controller.stream.state == "connecting"
    controller.say(Welcome(PROTOCOL_VERSION, 2))
    controller.until(lambda: controller.stream.state == "catching_up")


def test_pings_are_answered_and_tell_what_time_it_is(controller: Controller) -> None:
    controller.welcome()
    controller.say(Ping(3, 900))
    controller.until(lambda: any(isinstance(message, Pong) for message in controller.heard))
    assert controller.batches[-1] == Batch(7, Stage.LIVE, 900, [(900, Wakeup())])


@pytest.mark.parametrize(
    "parts",
    [
        (b"\xc1",),
        (encode(Records(7, Stage.LIVE, 9)),),
        (encode(Records(7, Stage.LIVE, 9)), b"\xc1"),
        (encode(Records(7, Stage.LIVE, 9)), msgspec.msgpack.encode([(1, {"type": "nonsense"})])),
    ],
)
def test_what_is_no_message_is_passed_over(
    controller: Controller, parts: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    controller.welcome()
    controller.server.send([controller.peer, *parts])
    controller.say(Records(7, Stage.LIVE, 10), ONE)
    controller.until(lambda: controller.batches[-1].now_ns == 10)
    assert "an unknown message" in caplog.text


def test_a_refusal_is_told_and_asked_again(controller: Controller) -> None:
    controller.until(controller.hellos)
    controller.say(Refused("too_many_peers", "32 observers are connected"))
    controller.until(lambda: "32 observers are connected" in controller.stream.detail)
    controller.until(lambda: controller.hellos() > 1)
    assert not controller.stream.send(Pong(1, 1, 1, 1)), "nobody is there to hear it"


def test_an_event_loop_gets_the_same_while_others_have_their_turn() -> None:
    played, turns = Controller(), []

    async def others() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0.001)

    async def follow() -> Batch:
        task = asyncio.create_task(others())
        async with asyncio.timeout(PATIENCE_S):
            batch = await played.stream.next()
        task.cancel()
        return batch

    def welcome() -> None:
        while not played.heard:
            played.peer, data = played.server.receive(PATIENCE_S * 1e3)
            played.heard.append(TO_CONTROLLER.decode(data))
        played.say(Welcome(PROTOCOL_VERSION, 1))
        played.say(Records(7, Stage.BEGIN, 5), ONE)

    thread = threading.Thread(target=welcome)
    thread.start()
    batch = asyncio.run(follow())
    thread.join()
    assert batch == Batch(7, Stage.BEGIN, 5, [(5, RequestCancelled(1))])
    assert turns
    played.stream.close()
    played.server.close()


def test_history_is_kept_only_within_one_run() -> None:
    said: list[object] = []

    class Taker:
        def reset(self, *, keep_history: bool) -> None:
            said.append(keep_history)

        def take(self, now_ns: int, entry: live.Observed) -> None:
            said.append((now_ns, entry))

    following = Following(Taker())
    for run in (7, 7, 8):
        following.take(Batch(run, Stage.BEGIN, 5, [(5, Wakeup())]))
    assert said == [False, (5, Wakeup()), True, (5, Wakeup()), False, (5, Wakeup())]
