"""A call once an event is set, unless it is not wanted any more."""

from __future__ import annotations

import threading

from mainspring.transport.stopping import WhenSet
from tests.patience import PATIENCE_S


def test_it_is_called_once_the_event_is_set() -> None:
    event, called = threading.Event(), threading.Event()
    with WhenSet(event, called.set):
        assert not called.is_set()
        event.set()
        assert called.wait(PATIENCE_S)


def test_an_event_that_was_set_before_calls_at_once() -> None:
    event, called = threading.Event(), threading.Event()
    event.set()
    with WhenSet(event, called.set):
        assert called.wait(PATIENCE_S)


def test_nothing_is_called_behind_the_end() -> None:
    event, calls = threading.Event(), list[int]()
    before = set(threading.enumerate())
    with WhenSet(event, lambda: calls.append(1)):
        [thread] = set(threading.enumerate()) - before
    event.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not calls
