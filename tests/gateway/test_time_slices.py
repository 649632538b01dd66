"""Large answers are made a slice at a time, in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.oip.steps import Steps, mapped, whole
from mainspring.gateway.time_slices import MOST_AT_WORK, TimeSlices
from mainspring.messages.codes import Reason


def run(test: Callable[[TimeSlices], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        await test(TimeSlices())

    asyncio.run(go())


def counting(seen: list[str], name: str, slices: int) -> Steps[str]:
    for number in range(slices):
        if number:
            yield
        seen.append(f"{name}{number}")
    return name


def fails(slices: int) -> Steps[str]:
    for _ in range(slices):
        yield
    raise RuntimeError("a fault")


def unexpected(error: Exception) -> None:
    raise AssertionError("nothing was to fail") from error


def ignored(_: object) -> None:
    """Drop it."""


def test_what_is_one_slice_is_done_at_once() -> None:
    async def test(turns: TimeSlices) -> None:
        seen: list[str] = []
        turns.do(counting(seen, "a", 1), seen.append, unexpected)
        assert seen == ["a0", "a"]

    run(test)


def test_large_answers_take_turns_with_each_other_and_with_everything_else() -> None:
    async def test(turns: TimeSlices) -> None:
        seen: list[str] = []
        turns.do(counting(seen, "a", 3), seen.append, unexpected)
        turns.do(counting(seen, "b", 2), seen.append, unexpected)
        assert seen == ["a0", "b0"]
        loop = asyncio.get_running_loop()
        loop.call_soon(seen.append, "other")
        found = await turns.finish(counting(seen, "c", 1))
        assert (found, seen) == ("c", ["a0", "b0", "c0"])
        while "a" not in seen:
            loop.call_soon(seen.append, "-")
            await asyncio.sleep(0)
        said = [each for each in seen if each != "-"]
        assert said == ["a0", "b0", "c0", "a1", "other", "b1", "b", "a2", "a"]
        # Between two slices there was a turn for others.
        assert "-" in seen[seen.index("b1") : seen.index("a2")]

    run(test)


def test_a_fault_ends_one_answer_only() -> None:
    async def test(turns: TimeSlices) -> None:
        errors: list[Exception] = []
        turns.do(fails(0), ignored, errors.append)
        turns.do(fails(2), ignored, errors.append)

        def breaks(_: str) -> None:
            raise ValueError("whoever wanted it")

        turns.do(counting([], "a", 2), breaks, errors.append)
        assert await turns.finish(counting([], "b", 9)) == "b"
        assert [type(each) for each in errors] == [RuntimeError, ValueError, RuntimeError]
        with pytest.raises(RuntimeError, match="a fault"):
            await turns.finish(fails(3))

    run(test)


def test_what_nobody_wants_any_more_is_not_made() -> None:
    async def test(turns: TimeSlices) -> None:
        seen: list[str] = []
        turns.do(counting(seen, "a", 9), seen.append, unexpected, lambda: len(seen) < 3)
        task = asyncio.create_task(turns.finish(counting([], "b", 1_000_000)))
        await asyncio.sleep(0)
        task.cancel()
        assert await turns.finish(counting([], "c", 9)) == "c"
        assert seen == ["a0", "a1", "a2"]
        assert not turns._waiting

    run(test)


def test_too_many_at_one_time_are_refused() -> None:
    async def test(turns: TimeSlices) -> None:
        ended: list[str] = []
        for _ in range(MOST_AT_WORK):
            turns.do(counting([], "a", 2), ended.append, unexpected)
        with pytest.raises(BadRequest, match="ask for binary data") as caught:
            await turns.finish(counting([], "b", 2))
        assert caught.value.reason is Reason.OVERLOADED
        assert await turns.finish(counting([], "small", 1)) == "small"
        while len(ended) < MOST_AT_WORK:
            await asyncio.sleep(0)

    run(test)


def test_lists_are_looked_at_with_pauses_between() -> None:
    steps = mapped([[1] * 4_000, [2] * 90, [3] * 4_000, [4] * 5_000], len)
    assert len(list(steps)) == 2
    assert whole(mapped([[1], [2, 3]], sum)) == [1, 5]
