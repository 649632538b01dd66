"""Large bodies are read a slice a turn, whosever they are, and small requests come in between."""

from __future__ import annotations

import asyncio
from typing import cast

from mainspring.gateway.memory import LARGE_BYTES, SLICE_BYTES, Reading, Uploads

UPLOADS = 64
BODY_BYTES = 8 << 20


class FakeTransport:
    """Reads, while it may, whatever its connection takes, once in each turn of the loop."""

    def __init__(self, log: list[tuple[int, int]], number: int, uploads: Uploads) -> None:
        self._log = log
        self._number = number
        self.reading = Reading(uploads)
        self.reading.begin(cast("asyncio.Transport", self))
        self.paused = False
        self.missing = BODY_BYTES
        self._memory = memoryview(bytearray(BODY_BYTES))

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def look(self, there: int = BODY_BYTES) -> None:
        if self.paused or not self.missing:
            return
        count = min(there, len(self.reading.limited(self._memory[: self.missing], self.missing)))
        self.missing -= count
        self._log.append((self._number, count))
        self.reading.took(count, self.missing)


async def _play() -> list[list[tuple[int, int]]]:
    uploads = Uploads()
    log: list[tuple[int, int]] = []
    transports = [FakeTransport(log, number, uploads) for number in range(UPLOADS)]
    turns = []
    while any(each.missing for each in transports):
        await asyncio.sleep(0)
        log.clear()
        for each in transports:
            each.look()
        turns.append(list(log))
    return turns


def test_no_turn_of_the_loop_reads_more_than_a_slice_of_all_uploads() -> None:
    first, *others = asyncio.run(_play())
    assert len(first) == UPLOADS
    assert first[0] == (0, SLICE_BYTES), "nobody else had come"
    assert max(count for _, count in first[1:]) < LARGE_BYTES, "the first look at each"
    # The last part of a body is not large any more, and is read as soon as it is there.
    assert max(sum(count for _, count in turn) for turn in others) <= SLICE_BYTES + LARGE_BYTES
    assert sum(count for turn in (first, *others) for _, count in turn) == UPLOADS * BODY_BYTES


def test_an_upload_alone_pauses_only_behind_a_whole_slice() -> None:
    async def play() -> None:
        alone = FakeTransport([], 0, Uploads())
        for there in (1_000, SLICE_BYTES - 1, 200_000):
            alone.look(there)
            assert not alone.paused, "it reads on as more comes"
            await asyncio.sleep(0)
        alone.look()
        assert alone.paused
        await asyncio.sleep(0)
        assert not alone.paused, "it has the next turn"
        alone.missing = LARGE_BYTES + 1
        alone.look(1)
        assert alone.missing == LARGE_BYTES
        assert not alone.paused, "the rest is not large"

    asyncio.run(play())


def test_an_upload_that_is_not_alone_waits_for_its_turn_however_little_came() -> None:
    async def play() -> None:
        uploads = Uploads()
        first, second = (FakeTransport([], number, uploads) for number in range(2))
        first.look(1_000)
        second.look(1_000)
        assert second.paused, "the first has this turn"
        assert not first.paused
        await asyncio.sleep(0)
        first.look(1_000)
        assert first.paused, "the second has this one"

    asyncio.run(play())


def test_uploads_get_their_turns_one_after_another() -> None:
    turns = asyncio.run(_play())[1:]
    order = [number for turn in turns for number, count in turn if count == SLICE_BYTES]
    assert order[:UPLOADS] == list(range(UPLOADS))
    assert order[UPLOADS : 2 * UPLOADS] == list(range(UPLOADS))


def test_a_connection_that_is_paused_or_gone_holds_up_nobody() -> None:
    async def play() -> None:
        uploads = Uploads()
        log: list[tuple[int, int]] = []
        paused, gone, third = (FakeTransport(log, number, uploads) for number in range(3))
        for each in (paused, gone, third):
            each.look()
        paused.reading.pause()
        gone.reading.end()
        for _ in range(4):
            await asyncio.sleep(0)
            paused.look()
            third.look()
        assert paused.paused
        assert paused.missing > third.missing
        assert paused.reading.resume()
        paused.look()

    asyncio.run(play())
