"""What every test needs: a process whose garbage collector is never slow, and no haste."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine any example may take long, which says nothing about what is tested.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> Iterator[None]:
    """Put what other tests left out of the collector's sight, and keep it there.

    To go through it takes half a second, in which all threads stand still, and those under test that keep
    time are late. What serves in this process unfreezes when it ends, which is right where it is alone.
    """
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", _keep_frozen)
        yield


@pytest.fixture(autouse=True)
def same_rights() -> Iterator[None]:
    """Fail a test after which this process runs elsewhere, or before others: so would all after it."""
    before = _rights()
    yield
    assert _rights() == before, "cores, scheduling class and niceness should be as they were before the test"


@pytest.fixture
def real_unfreeze(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test of what unfreezing frees."""
    monkeypatch.setattr(gc, "unfreeze", _UNFREEZE)


def _rights() -> tuple[set[int], int, int]:
    return os.sched_getaffinity(0), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)


_UNFREEZE = gc.unfreeze


def _keep_frozen() -> None:
    """Unfreeze nothing."""
