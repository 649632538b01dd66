"""What becomes of operators' commands on their way to the controller."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from mainspring.console.config import ConsoleConfig
from mainspring.console.web.source import Granted, LiveSource, Unanswered
from mainspring.messages.metrics import DeviceHealth
from mainspring.messages.observing import Devices
from mainspring.messages.operating import DrainWorker, Operate, Operated

DRAIN = DrainWorker("worker-0")


class Asked:
    """A source whose controller is played by a test."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, there: bool = True, patience_ms: float = 60_000.0
    ) -> None:
        config = ConsoleConfig(controller_address="tcp://127.0.0.1:9", operate_timeout_ms=patience_ms)
        self.source = LiveSource(config, operable=True)
        self.sent: list[Operate] = []
        self._there = there
        monkeypatch.setattr(self.source._stream, "send", self._send)

    def _send(self, message: Operate) -> bool:
        self.sent.append(message)
        return self._there

    def answer(self, message: msgspec.Struct) -> None:
        self.source._stream.on_answer(message)


def test_each_gets_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)

    async def both() -> list[Granted]:
        waiting = [asyncio.create_task(asked.source.operate(DRAIN, who)) for who in ("ann", "bob")]
        while len(asked.sent) < 2:
            await asyncio.sleep(0)
        first, second = asked.sent
        assert (first.who, first.command, second.who) == ("ann", DRAIN, "bob")
        assert first.token != second.token
        asked.answer(Operated(77, True, "nobody asked for this"))
        asked.answer(Operated(second.token, False, "no"))
        asked.answer(Operated(second.token, True, "said twice"))
        asked.answer(Operated(first.token, True, "yes"))
        return await asyncio.gather(*waiting)

    assert asyncio.run(both()) == [Granted(True, "yes"), Granted(False, "no")]
    asked.source.close()


def test_what_the_controller_says_of_devices_is_what_the_pages_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    held = {"worker-0": DeviceHealth(("its clocks are held down",))}
    asked.answer(Devices(held))
    assert asked.source.view.devices == held
    asked.answer(Devices({}))
    assert asked.source.view.devices == {}
    asked.source.close()


def test_without_a_controller_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, there=False)
    with pytest.raises(Unanswered, match="connecting to tcp") as refused:
        asyncio.run(asked.source.operate(DRAIN, "ann"))
    assert refused.value.at_once
    asked.source.close()


def test_a_controller_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, patience_ms=20.0)
    with pytest.raises(Unanswered, match="look before you ask again") as refused:
        asyncio.run(asked.source.operate(DRAIN, "ann"))
    assert not refused.value.at_once
    asked.answer(Operated(asked.sent[0].token, True, "too late"))
    asked.source.close()
