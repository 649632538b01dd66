"""When the gateway collects garbage, and what it leaves out of the next collections."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import pytest

from mainspring.gateway.server import COLLECT_BUSY_NS, COLLECT_NS, Garbage


class Collector(ModuleType):
    """Writes down what it is asked to do."""

    def __init__(self) -> None:
        super().__init__("gc")
        self.did: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda: self.did.append(name)


@pytest.fixture
def collector() -> Collector:
    return Collector()


def test_what_comes_later_is_frozen_too(collector: Collector) -> None:
    with Garbage(collector) as garbage:
        collector.did.clear()
        garbage.consider(2 * COLLECT_NS, asked=1, in_flight=0, held=0)
        assert collector.did == [], "a turn was just taken"
        garbage.consider(2 * COLLECT_NS, asked=1, in_flight=0, held=5_000)
        assert collector.did == ["collect", "freeze"]
        garbage.consider(2 * COLLECT_NS + 1, asked=1, in_flight=0, held=5_000)
        assert collector.did == ["collect", "freeze"], "no second time so soon"


def test_a_request_in_flight_is_not_kept_waiting(collector: Collector) -> None:
    with Garbage(collector) as garbage:
        garbage.consider(1, asked=1, in_flight=1, held=0)
        collector.did.clear()
        garbage.consider(2 * COLLECT_NS, asked=1, in_flight=1, held=0)
        assert collector.did == []
        garbage.consider(COLLECT_BUSY_NS + 1, asked=1, in_flight=1, held=0)
        assert collector.did == ["collect", "freeze"], "but not for ever"


def test_what_leaves_is_freed(collector: Collector) -> None:
    with Garbage(collector) as garbage:
        for turn, held in enumerate((9, 9, 8), 2):
            collector.did.clear()
            garbage.consider(2 * turn * COLLECT_NS, asked=-1, in_flight=0, held=held)
        assert collector.did == ["unfreeze", "collect", "freeze"]


def test_what_leaves_is_freed_when_no_request_waits_for_that(collector: Collector) -> None:
    with Garbage(collector) as garbage:
        garbage.consider(2 * COLLECT_NS, asked=-1, in_flight=0, held=9)
        collector.did.clear()
        garbage.consider(2 * COLLECT_BUSY_NS, asked=1, in_flight=1, held=8)
        assert collector.did == ["collect", "freeze"]
        garbage.consider(3 * COLLECT_BUSY_NS, asked=1, in_flight=0, held=8)
        assert collector.did == ["collect", "freeze", "unfreeze", "collect", "freeze"]


def test_the_collector_is_put_back() -> None:
    assert gc.isenabled()
    with Garbage():
        assert not gc.isenabled()
    assert gc.isenabled()
