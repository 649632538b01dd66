"""Large bodies are read a slice a turn, whosever they are, and small requests come in between."""

from __future__ import annotations

import asyncio
from typing import cast

from mainspring.gateway.http.reading import Reading
from mainspring.gateway.uploads import LARGE_BYTES, SLICE_BYTES, Uploads

UPLOADS = 64
BODY_BYTES = 8 << 20


class FakeTransport:
    """Reads, while it may, whatever its connection takes, once in each turn of the loop."""

    def __init__(self, log: list[tuple[int, int]], number: int, uploads: Uploads) -> None:
        self._log = log
        self._number = number
        self.reading = Reading(uploads)
        self.reading.begin(cast(asyncio.Transport, self))
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

    def look(self) -> None:
        if self.paused or not self.missing:
            return
        count = len(self.reading.limited(self._memory[: self.missing], self.missing))
        self.missing -= count
        self._log.append((self._number, count))
        self.reading.took(self.missing)


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
    assert max(count for _, count in first) < LARGE_BYTES, "the first look at each"
    # The last part of a body is not large any more, and is read as soon as it is there.
    assert max(sum(count for _, count in turn) for turn in others) <= SLICE_BYTES + LARGE_BYTES
    assert sum(count for turn in (first, *others) for _, count in turn) == UPLOADS * BODY_BYTES


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
