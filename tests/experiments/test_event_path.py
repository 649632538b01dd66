"""The way of an event through the scheduler's files is counted by its calls."""

from __future__ import annotations

import pytest

from mainspring.experiments.event_path import watched, ways
from mainspring.messages.events import ModelAdded
from mainspring.scheduler import core
from mainspring.scheduler.config import SchedulerConfig
from tests.scheduler.hand import spec


@pytest.mark.skipif(not core.__file__.endswith(".py"), reason="calls of compiled code are not seen")
def test_the_files_of_an_event_and_its_returns_are_counted() -> None:
    scheduler = core.Scheduler(SchedulerConfig())
    watched(scheduler, 0, ModelAdded(spec("m")))
    [(files, returns)] = ways["ModelAdded"]
    assert files > 5
    assert returns < files
