"""``shared``: what a gateway has written comes to the device unchanged, or the driver's refusal is told."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.shared import check_shared
from mainspring.experiments.gpu_check.verdicts import State
from mainspring.worker.engines.cuda.driver import Copy

Gpu = Callable[[FakeDriver], Settings]


def test_what_comes_to_the_device_is_compared_and_timed(gpu: Gpu) -> None:
    driver = FakeDriver()
    told, compared, *ways = check_shared(gpu(driver))
    assert "GB/s" in told.found
    assert (compared.state, compared.found) == (State.MET, "0")
    assert ["from there" in ways[0].what, "by way of IO memory" in ways[1].what] == [True, True]
    assert driver.calls.count("register_host") == 2
    assert not driver.leaks


@pytest.mark.parametrize("fault", ["does not copy all", "never says that a copy has ended"])
def test_what_is_wrong_is_missed(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    driver = FakeDriver()
    if fault == "does not copy all":
        copy = driver.copy

        def shortened(target: int, source: int, size: int, kind: Copy, stream: int) -> None:
            copy(target, source, size - (kind is Copy.TO_DEVICE), kind, stream)

        monkeypatch.setattr(driver, "copy", shortened)
    else:
        monkeypatch.setattr(driver, "happened", lambda _event: False)
    _, compared, *_ = check_shared(gpu(driver))
    assert compared.state is State.MISSED


def test_a_driver_that_pins_no_such_memory_is_told(gpu: Gpu) -> None:
    driver = FakeDriver()
    driver.pins_read_only = False
    (found,) = check_shared(gpu(driver))
    assert found.state is State.NOT_RUN
    assert "operation not supported" in found.found
    assert not driver.leaks


def test_a_processor_has_no_such_copies(gpu: Gpu) -> None:
    settings = gpu(FakeDriver())
    settings = msgspec.structs.replace(settings, device="cpu")
    (found,) = check_shared(settings)
    assert found.state is State.NOT_RUN
