"""Outcomes from another thread to event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mainspring.client.asynchronous import Delivery
from mainspring.client.requests import Call
from mainspring.messages.clients import ListModels


class Channel:
    """Notes what is cancelled."""

    def __init__(self) -> None:
        self.cancelled: list[Call] = []

    def cancel(self, call: Call) -> None:
        self.cancelled.append(call)


def calls(count: int, channel: Channel | None = None) -> list[Call]:
    return [Call(channel or Channel(), ListModels(key), 0, 1) for key in range(count)]  # type: ignore[arg-type]


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def end_all(mine: list[Call]) -> None:
    for number, call in enumerate(mine):
        call.set_result(number)


def test_many_outcomes_wake_the_loop_few_times_and_each_finds_its_own() -> None:
    async def run() -> None:
        loop, delivery, mine, woken = asyncio.get_running_loop(), Delivery(), calls(1_000), 0
        threadsafe = loop.call_soon_threadsafe

        def counted(*arguments: Any, **options: Any) -> asyncio.Handle:
            nonlocal woken
            woken += 1
            return threadsafe(*arguments, **options)

        waits = [asyncio.create_task(delivery.outcome(call)) for call in mine]
        await asyncio.sleep(0)
        loop.call_soon_threadsafe = counted  # type: ignore[assignment, method-assign]
        thread = in_thread(lambda: end_all(mine))
        # The loop is busy until all have ended.
        thread.join()
        assert await asyncio.gather(*waits) == list(range(1_000))
        assert woken == 1

    asyncio.run(run())


def test_an_error_is_raised_and_what_has_ended_already_is_found() -> None:
    async def run() -> None:
        delivery, (bad, done) = Delivery(), calls(2)
        bad.set_exception(KeyError("x"))
        done.set_result(7)
        with pytest.raises(KeyError):
            await delivery.outcome(bad)
        assert await delivery.outcome(done) == 7

    asyncio.run(run())


def test_cancelling_the_wait_cancels_the_call() -> None:
    async def run() -> None:
        channel = Channel()
        delivery, (call,) = Delivery(), calls(1, channel)
        task = asyncio.create_task(delivery.outcome(call))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert channel.cancelled == [call]

    asyncio.run(run())


def test_a_loop_that_is_closed_is_told_nothing() -> None:
    delivery, (first, second) = Delivery(), calls(2)
    loop = asyncio.new_event_loop()
    for call in (first, second):
        task = loop.create_task(delivery.outcome(call))
        loop.run_until_complete(asyncio.sleep(0))
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    assert first.cancelled()
    assert not delivery._ended
