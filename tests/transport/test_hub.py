"""Waits that are neither shorter nor much longer than they should be, by each of the two ways."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any

import pytest

from mainspring.transport.hub import READY_AT_ONCE, SELECTABLE, Hub, PreciseWait

MS = 1_000_000
FOREVER_NS = 60_000 * MS


@pytest.fixture
def epoll() -> Iterator[select.epoll]:
    with select.epoll() as made:
        yield made


@pytest.fixture(params=["epoll_pwait2", "in steps"])
def wait(request: pytest.FixtureRequest, epoll: select.epoll) -> Callable[[int], Any]:
    """Waiting by this way."""
    made = PreciseWait(epoll)
    if request.param == "in steps":
        return made._in_steps
    return made.wait


@pytest.fixture
def bell() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("timeout_ns", [40_000, 300_000, MS, 2_700_000, 8 * MS, 23 * MS])
def test_without_an_event_no_wait_is_too_short(wait: Callable[[int], Any], timeout_ns: int) -> None:
    before_ns = monotonic_ns()
    assert wait(timeout_ns) == []
    assert monotonic_ns() - before_ns >= timeout_ns


def test_it_ends_with_what_is_ready(wait: Callable[[int], Any], epoll: select.epoll, bell: int) -> None:
    epoll.register(bell, select.EPOLLIN | select.EPOLLOUT)
    assert wait(FOREVER_NS) == [(bell, select.EPOLLOUT)]
    os.eventfd_write(bell, 1)
    assert wait(FOREVER_NS) == [(bell, select.EPOLLIN | select.EPOLLOUT)]


def test_an_event_in_the_middle_of_it_ends_it(
    wait: Callable[[int], Any], epoll: select.epoll, bell: int
) -> None:
    epoll.register(bell, select.EPOLLIN)
    timer = threading.Timer(0.02, os.eventfd_write, (bell, 1))
    timer.start()
    assert wait(FOREVER_NS) == [(bell, select.EPOLLIN)]
    timer.join()


def test_many_are_ready_at_once(wait: Callable[[int], Any], epoll: select.epoll) -> None:
    bells = [os.eventfd(1) for _ in range(READY_AT_ONCE + 10)]
    for fd in bells:
        epoll.register(fd, select.EPOLLIN)
    assert len({fd for fd, mask in wait(FOREVER_NS) if mask == select.EPOLLIN}) == READY_AT_ONCE
    for fd in bells:
        os.close(fd)


@pytest.mark.timing("the best of twenty waits is at most two milliseconds longer than asked for")
@pytest.mark.parametrize(("in_steps", "beyond"), [(False, False), (True, False), (True, True)])
def test_waits_end_soon_also_in_steps_and_beyond_what_select_takes(
    epoll: select.epoll, in_steps: bool, beyond: bool
) -> None:
    fd = fcntl.fcntl(epoll.fileno(), fcntl.F_DUPFD, SELECTABLE if beyond else 0)
    with select.epoll.fromfd(fd) as other:
        made = PreciseWait(other)
        wait = made._in_steps if in_steps else made.wait
        for timeout_ns in (300_000, 1_700_000, 4 * MS):
            late_ns = []
            for _ in range(20):
                before_ns = monotonic_ns()
                assert wait(timeout_ns) == []
                late_ns.append(monotonic_ns() - before_ns - timeout_ns)
            # The machine may be late with any of them, but hardly with all.
            assert 0 <= min(late_ns) < (2 * MS if beyond else MS)


def test_a_signal_is_handled_at_once(epoll: select.epoll) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    me = threading.get_ident()
    timer = threading.Timer(0.02, signal.pthread_kill, (me, signal.SIGUSR1))
    try:
        timer.start()
        assert PreciseWait(epoll).wait(FOREVER_NS) == []
        assert came == [signal.SIGUSR1]
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_kernel_without_it_is_waited_for_in_steps(epoll: select.epoll) -> None:
    calls = []

    def unknown(*_: Any) -> int:
        calls.append(1)
        ctypes.set_errno(errno.ENOSYS)
        return -1

    waits = PreciseWait(epoll, unknown)
    before_ns = monotonic_ns()
    assert waits.wait(MS) == waits.wait(MS) == []
    assert monotonic_ns() - before_ns >= 2 * MS
    assert len(calls) == 1, "it is asked for once"


def test_an_epoll_object_that_can_not_be_waited_for_is_an_error() -> None:
    def failing(*_: Any) -> int:
        ctypes.set_errno(errno.EBADF)
        return -1

    with select.epoll() as epoll, pytest.raises(OSError, match="Bad file descriptor"):
        PreciseWait(epoll, failing).wait(MS)


def test_a_watched_bell_wakes_the_hub_each_time_that_it_rings(bell: int) -> None:
    hub, token = Hub(), object()
    hub.watch(bell, token)
    for _ in range(3):
        os.eventfd_write(bell, 1)
        assert hub.wait(FOREVER_NS) == [token]
        assert hub.wait(0) == [], "though nobody has read it"
    hub.close()
