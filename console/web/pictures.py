"""A show as it is at one moment: made and encoded once for all pages that want the same.

Pages are served on *beats*, instants that are the same for all of them. What several pages want on one beat,
with the same parameters, is one picture. Making pictures may take a share of the console's time: what is
beyond it comes later, one page after the other.
"""

from __future__ import annotations

import asyncio
import zlib
from time import monotonic_ns, thread_time_ns
from typing import Any, NamedTuple

from mainspring.console.payloads import Schedule
from mainspring.console.web.answers import encode
from mainspring.console.web.shows import Asked, make
from mainspring.console.web.source import Source

_KEPT = 256
"""Pictures of the last beats that are remembered."""
_FASTEST = 1
"""Level of compression: the higher ones save a tenth and take three times as long."""


class Picture:
    """One show at one moment."""

    def __init__(self, number: int, asked: Asked, head: bytes, replay: bytes | None, data: Any) -> None:
        self.number = number
        self.version = data.version if isinstance(data, Schedule) else None
        """What the next one may be ``after``, to hold only what changed; None for a show that comes whole."""
        self.data = encode(data)
        self._head = b"".join(
            (
                b'{"n":%d,"show":' % number,
                encode(asked.show),
                b',"params":',
                asked.params,
                b',"head":',
                head,
                b"" if replay is None else b',"replay":' + replay,
            )
        )
        self._made: dict[tuple[bool, bool], bytes] = {}

    def message(self, *, same: bool = False, deflated: bool = False) -> bytes:
        """Return what is sent to a page; without the data if they are the ``same`` as before."""
        made = self._made.get((same, deflated))
        if made is None:
            if deflated:
                made = _deflated(self.message(same=same))
            elif same:
                made = self._head + b',"same":true}'
            else:
                made = b"".join((self._head, b',"data":', self.data, b"}"))
            self._made[same, deflated] = made
        return made


class _Key(NamedTuple):
    epoch: int
    show: str
    params: bytes
    after: int | None


class Pictures:
    """Makes pictures of what a source holds."""

    def __init__(self, source: Source, interval_ns: int, share: float) -> None:
        """``share``: of the console's time, that making them may take."""
        self._source = source
        self._interval_ns = interval_ns
        self._share = share
        self._kept: dict[_Key, tuple[int, Picture]] = {}
        """With the beat that each is of; the oldest first."""
        self._number = 0
        self._turn = asyncio.Lock()
        self._paid_ns = 0
        """Instant from which on the share is kept if nothing is made before."""
        self.made = 0
        """Pictures made so far."""
        self.made_ns = 0
        """Time that making them took."""

    def beat(self) -> int:
        """Return the present beat's number."""
        return monotonic_ns() // self._interval_ns

    async def next_beat(self, every_ns: int) -> None:
        """Wait for the first beat that is a whole number of ``every_ns`` away from the others."""
        every_ns = max(1, round(every_ns / self._interval_ns)) * self._interval_ns
        await asyncio.sleep((every_ns - monotonic_ns() % every_ns) / 1e9)

    async def get(self, asked: Asked, after: int | None = None) -> Picture:
        """Return a picture of this beat. Raises as `mainspring.console.web.shows.make`."""
        async with self._turn:
            kept = self._find(asked, after)
            if kept is not None:
                return kept
            while (early_ns := self._paid_ns - monotonic_ns()) > self._interval_ns:
                await asyncio.sleep((early_ns - self._interval_ns) / 1e9)
            begin_ns = thread_time_ns()
            try:
                return self._make(asked, after)
            finally:
                took_ns = thread_time_ns() - begin_ns
                self._paid_ns = max(self._paid_ns, monotonic_ns()) + round(took_ns / self._share)
                self.made += 1
                self.made_ns += took_ns
                # What came meanwhile is taken in before the next picture is made.
                await asyncio.sleep(0)

    def _find(self, asked: Asked, after: int | None) -> Picture | None:
        beat, picture = self._kept.get(self._key(asked, after), (-1, None))
        return picture if beat == self.beat() else None

    def _key(self, asked: Asked, after: int | None) -> _Key:
        return _Key(self._source.epoch, asked.show, asked.params, after)

    def _make(self, asked: Asked, after: int | None) -> Picture:
        data = make(self._source.view, asked, after)
        self._number += 1
        replay = self._source.replay()
        picture = Picture(
            self._number,
            asked,
            encode(self._source.head()),
            None if replay is None else encode(replay),
            data,
        )
        key = self._key(asked, after)
        self._kept.pop(key, None)
        self._kept[key] = self.beat(), picture
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return picture


def _deflated(data: bytes) -> bytes:
    squeeze = zlib.compressobj(_FASTEST, zlib.DEFLATED, -zlib.MAX_WBITS)
    return squeeze.compress(data) + squeeze.flush()
