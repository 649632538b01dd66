"""What the controller's collections free, though it is spared most of them."""

from __future__ import annotations

import gc
import weakref

import pytest

from mainspring.controller.config import ControllerConfig
from mainspring.controller.server import Controller
from mainspring.messages.events import ModelRemoved
from mainspring.scheduler.config import SchedulerConfig
from tests.controller.peers import spec


class Cycle:
    """Something that only a collection frees, as a worker's tables are."""

    def __init__(self) -> None:
        self.own = self


@pytest.mark.usefixtures("real_unfreeze")
def test_what_was_frozen_is_freed_once_a_worker_or_a_model_is_gone() -> None:
    controller = Controller(ControllerConfig(address="tcp://127.0.0.1:*"), SchedulerConfig(), [spec("m0")])
    held = Cycle()
    ref = weakref.ref(held)
    try:
        controller._collect()
        del held
        controller._logged.handle(1, ModelRemoved("m0"))
        controller._logged.settle()
        controller._collect()
        assert ref() is None
    finally:
        gc.unfreeze()
        controller.close()
