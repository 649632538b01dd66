"""Deadlines that several requests share, of threads, tasks and blocks within one another."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import mainspring
from mainspring import AsyncClient, Client, Deadline
from mainspring.ray import handle
from tests.client.fakes import fake_gateway
from tests.client.test_deadlines import Script, X

SECOND = 1_000_000_000


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def client(script: Script) -> Iterator[Client]:
    with fake_gateway(script) as address, Client(address) as client:
        yield client


def sent_s(script: Script) -> list[float | None]:
    """Return what each request had left when it was sent, in seconds; None for best effort."""
    return [None if each.slo_ns is None else each.slo_ns / SECOND for each in script.requests]


def test_calls_share_what_is_left(client: Client, script: Script) -> None:
    with client.deadline("60s") as deadline:
        client.infer("m", {"data": X})
        time.sleep(0.05)
        client.infer("m", {"data": X})
        client.submit("m", {"data": X}).result()
        deadline.infer("m", {"data": X})
        client.sequence("m").infer({"data": X})
    client.infer("m", {"data": X})
    left = sent_s(script)
    assert left.pop() is None, "the block is over"
    shared = [each for each in left if each is not None]
    assert len(shared) == 5
    assert shared == sorted(shared, reverse=True)
    assert 30 < shared[1] <= shared[0] - 0.05 < 60 - 0.05


def test_the_earliest_of_blocks_and_arguments_holds(client: Client, script: Script) -> None:
    with client.deadline("60s"), client.deadline(timedelta(seconds=1_000)):
        client.infer("m", {"data": X}, slo="2000s")
        client.infer("m", {"data": X}, slo="10s")
        client.infer("m", {"data": X}, deadline="9s")
        with client.deadline("8s") as nearer:
            client.infer("m", {"data": X}, slo="11s", deadline="12s")
        client.infer("m", {"data": X}, deadline=nearer)
        client.infer("m", {"data": X})
    client.infer("m", {"data": X}, deadline=nearer, slo="7s")
    bounds = [60, 10, 9, 8, 8, 60, 7]
    for left, bound in zip(sent_s(script), bounds, strict=True):
        assert left is not None
        assert 0.5 * bound < left <= bound


def ask(client: Client, deadline: Deadline, by: str) -> None:
    match by:
        case "argument":
            client.infer("m", {"data": X}, slo="10s", deadline=deadline)
        case "submit":
            deadline.submit("m", {"data": X})
        case "sequence":
            with deadline:
                client.sequence("m").infer({"data": X})
        case "list":
            deadline.infer("m", {"data": [1, 2]})
        case _:
            with deadline:
                client.infer("m", {"data": X}, slo="10s")


@pytest.mark.parametrize("by", ["infer", "submit", "sequence", "argument", "list"])
def test_a_call_begun_too_late_raises_and_is_not_sent(client: Client, script: Script, by: str) -> None:
    client.infer("m", {"data": X})
    before = len(script.seen)
    deadline = client.deadline("1ms")
    time.sleep(0.01)
    assert deadline.passed
    assert deadline.left_ms < 0
    with pytest.raises(mainspring.DeadlinePassed, match=r"ms after the deadline .* not sent"):
        ask(client, deadline, by)
    client.infer("m", {"data": X})
    assert len(script.seen) == before + 1


def test_a_thread_takes_part_where_it_is_given_the_deadline(client: Client, script: Script) -> None:
    with client.deadline("60s") as deadline, ThreadPoolExecutor(2) as pool:
        pool.submit(client.infer, "m", {"data": X}).result()
        pool.submit(client.infer, "m", {"data": X}, deadline=deadline).result()
        pool.submit(deadline.infer, "m", {"data": X}).result()
    none, *left = sent_s(script)
    assert none is None
    assert all(each is not None and 30 < each < 60 for each in left)


def test_one_deadline_is_entered_by_many_threads_at_once(client: Client, script: Script) -> None:
    deadline, meet = client.deadline("60s"), threading.Barrier(4)

    def enter() -> None:
        with deadline:
            meet.wait(10)
            client.infer("m", {"data": X})
        client.infer("m", {"data": X}, outputs=["after"])

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(enter) for _ in range(4)]:
            each.result()
    assert [each.slo_ns is None for each in script.requests] == [
        bool(each.outputs) for each in script.requests
    ]


def test_tasks_within_a_block_share_it_and_others_do_not(script: Script) -> None:
    async def ask() -> None:
        async with AsyncClient(address) as client:
            begun = asyncio.Event()

            async def outside() -> None:
                await begun.wait()
                await client.infer("m", {"data": X}, outputs=["outside"])

            other = asyncio.create_task(outside())
            async with client.deadline("60s") as deadline:
                await asyncio.gather(*(client.infer("m", {"data": X}) for _ in range(3)))
                await asyncio.create_task(asyncio.to_thread(client.submit, "m", {"data": X}))
                late = client.infer("m", {"data": X})
                begun.set()
                await other
            with client.deadline("30s"):
                await deadline.infer("m", {"data": X})
            # Its deadline is that of the block in which it was called.
            await late
            with client.deadline("1ms"):
                await asyncio.sleep(0.01)
                with pytest.raises(mainspring.DeadlinePassed):
                    await client.infer("m", {"data": X})

    with fake_gateway(script) as address:
        asyncio.run(ask())
    left = {"inside": [], "outside": []}  # type: dict[str, list[int | None]]
    for each in script.requests:
        left["outside" if each.outputs else "inside"].append(each.slo_ns)
    assert left["outside"] == [None]
    assert len(left["inside"]) == 6
    assert all(each is not None and each < 60 * SECOND for each in left["inside"])
    assert min(each for each in left["inside"] if each is not None) < 30 * SECOND


def test_a_handle_of_ray_takes_part(script: Script) -> None:
    with fake_gateway(script) as address, Client(address) as client, client.deadline("60s") as deadline:
        model = handle("m", slo="1000s", address=address)
        model.remote({"data": X}).result()
        model.remote({"data": X}, deadline=deadline).result()
    assert all(each is not None and 30 < each < 60 for each in sent_s(script))


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (0.3, TypeError, r"deadline is a float; pass text with a unit such as '100ms'$"),
        (None, TypeError, r"deadline is None; pass text with a unit such as '100ms'$"),
        ("300", mainspring.InvalidSlo, "not a duration"),
        ("0ms", mainspring.InvalidSlo, "some time from now"),
        ("-1s", mainspring.InvalidSlo, "some time from now"),
        ("none", mainspring.InvalidSlo, "some time from now"),
    ],
)
def test_what_is_no_deadline_says_what_would_be(
    client: Client, given: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        client.deadline(given)
    if error is TypeError and given is not None:
        with pytest.raises(error, match=says):
            client.infer("m", {"data": X}, deadline=given)


def test_it_says_what_is_left(client: Client) -> None:
    assert repr(client.deadline("60s")).startswith(("Deadline(59", "Deadline(60000.0 ms left)"))
    assert isinstance(client.deadline("1s"), Deadline)
