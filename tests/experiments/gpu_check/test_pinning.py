"""``pinning``: each kind of host memory is pinned untouched, copied from, and given back."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from mainspring.experiments.gpu_check import loading
from mainspring.experiments.gpu_check.loading import KINDS, check_pinning
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import State
from mainspring.worker.config import MIB

Gpu = Callable[[FakeDriver], Settings]


class Slow(FakeDriver):
    """Pins at 1 GB/s, by a clock that it keeps."""

    def register_host(self, address: int, size: int, *, read_only: bool = False) -> None:
        super().register_host(address, size, read_only=read_only)
        self.now_ns += size


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = Slow()
    monkeypatch.setattr(time, "monotonic_ns", lambda: made.now_ns)
    return made


def test_each_kind_is_pinned_and_copied_from(
    gpu: Gpu, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread: list[int] = []

    def interleave(_address: int, size: int) -> str:
        spread.append(size)
        return ""

    monkeypatch.setattr(loading, "memory_nodes", lambda: frozenset({0, 1}))
    monkeypatch.setattr(loading, "interleave", interleave)
    found = list(check_pinning(gpu(driver)))
    assert len(found) == 2 * len(KINDS)
    # Huge pages that the kernel keeps are on few machines.
    for verdict in found[2:]:
        assert (verdict.state, verdict.found) == (State.TOLD, "1.00 GB/s")
        assert 45 < float(verdict.note.split()[-2]) < 51
    assert ["from all nodes in turn" in verdict.what for verdict in found] == [False, True] * len(KINDS)
    assert spread[-2:] == [2 * MIB] * 2
    assert not driver.leaks


def test_on_one_node_nothing_is_spread(gpu: Gpu, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "memory_nodes", lambda: frozenset({0}))
    found = list(check_pinning(gpu(driver)))
    assert {verdict.found for verdict in found[1::2]} == {"the machine has one memory node"}


def test_a_host_without_room_pins_nothing(
    gpu: Gpu, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=3 * MIB))
    (verdict,) = check_pinning(gpu(driver))
    assert verdict.state is State.NOT_RUN
    assert "register_host" not in driver.calls
