"""A worker's rights to the processor, while it serves and when it stops."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from mainspring.messages.metrics import DeviceHealth
from mainspring.worker import realtime
from mainspring.worker.engines.emulated import EmulatedEngine
from tests.patience import PATIENCE_S
from tests.worker.peers import Cluster


def test_what_ends_a_worker_has_no_real_time_priority(
    start: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    classes: dict[int, int] = {}
    seen: list[tuple[int, int]] = []

    def see(_device: object) -> DeviceHealth:
        me = threading.get_ident()
        seen.append((me, classes.get(me, os.SCHED_OTHER)))
        return DeviceHealth()

    monkeypatch.setattr(realtime, "_lock_memory", str)
    monkeypatch.setattr(
        os, "sched_setscheduler", lambda _who, kind, _how: classes.update({threading.get_ident(): kind})
    )
    monkeypatch.setattr(os, "sched_getscheduler", lambda _who: classes.get(threading.get_ident()))
    monkeypatch.setattr(EmulatedEngine, "health", see, raising=False)
    monkeypatch.setattr(EmulatedEngine, "close", see)
    cluster = start(realtime=True, exec_core=max(os.sched_getaffinity(0)))
    deadline_s = time.monotonic() + PATIENCE_S
    while not seen and time.monotonic() < deadline_s:
        time.sleep(0.01)
    cluster.close()
    network, kind = seen[-1]
    assert kind == os.SCHED_OTHER
    assert (network, os.SCHED_FIFO) in seen, "while it serves"
