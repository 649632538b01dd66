"""What the controller's collections free, though it is spared most of them."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from mainspring.controller import server
from mainspring.controller.config import ControllerConfig
from mainspring.controller.server import QUIET_NS, Controller
from mainspring.messages.events import Event, ModelRemoved, RequestArrived
from mainspring.scheduler.config import SchedulerConfig
from tests.controller.peers import spec


class Cycle:
    """Something that only a collection frees, as a worker's tables are."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def controller() -> Iterator[Controller]:
    models = [spec(f"m{number}") for number in range(3)]
    controller = Controller(ControllerConfig(address="tcp://127.0.0.1:*"), SchedulerConfig(), models)
    try:
        yield controller
    finally:
        gc.unfreeze()
        controller.close()


def handle(controller: Controller, *events: Event) -> None:
    for event in events:
        controller._logged.handle(1, event)
    controller._logged.settle()


def frozen_cycle(controller: Controller, now_ns: int) -> weakref.ref[Cycle]:
    """Return what nothing holds any more but the frozen heap."""
    held = Cycle()
    controller._collect(now_ns)
    return weakref.ref(held)


def test_what_was_frozen_is_freed_once_a_model_is_gone_and_no_request_comes(controller: Controller) -> None:
    begin_ns = time.monotonic_ns()
    ref = frozen_cycle(controller, begin_ns)
    handle(controller, ModelRemoved("m0"), RequestArrived(1, "m1", 1, None))
    controller._collect(begin_ns + QUIET_NS)
    assert ref() is not None, "a request has come since the last time"
    controller._collect(begin_ns + 2 * QUIET_NS)
    assert ref() is None
    ref = frozen_cycle(controller, begin_ns + 3 * QUIET_NS)
    controller._collect(begin_ns + 4 * QUIET_NS)
    assert ref() is not None, "nothing has left"


def test_requests_without_end_do_not_keep_what_is_gone_for_ever(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_GONE", 2)
    now_ns = time.monotonic_ns()
    ref = frozen_cycle(controller, now_ns)
    handle(controller, ModelRemoved("m0"), RequestArrived(1, "m2", 1, None))
    controller._collect(now_ns)
    assert ref() is not None
    handle(controller, ModelRemoved("m1"), RequestArrived(2, "m2", 1, None))
    controller._collect(now_ns)
    assert ref() is None
