"""Tests of a device without a cluster."""

from __future__ import annotations

from typing import cast

import pytest

from mainspring.cli.profiling.lone_device import LoneDevice
from mainspring.worker.engine import Engine


class ClosedEngine:
    """An engine that keeps whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def closed_after(error: BaseException) -> bool:
    engine = ClosedEngine()
    with pytest.raises(type(error)), LoneDevice(cast("Engine", engine), 1):
        raise error
    return engine.closed


def test_a_failure_closes_the_engine_and_an_interruption_does_not() -> None:
    """Another thread may still compute in the engine's memory when the main thread is interrupted."""
    assert closed_after(ValueError())
    assert not closed_after(KeyboardInterrupt())
