"""A show as it is at one moment: made and encoded once for all pages that want the same.

Pages are served on *beats*, instants that are the same for all of them. What several pages want on one beat,
with the same parameters, is one picture. Making pictures may take a share of the console's time: what is
beyond it comes later, one page after the other.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from time import monotonic_ns, thread_time_ns
from typing import Any, NamedTuple

from mainspring.console.payloads import Schedule
from mainspring.console.web.guard import encode
from mainspring.console.web.shows import Asked, Broken, make
from mainspring.console.web.source import Source

_LOGGER = logging.getLogger(__name__)
_KEPT = 256
"""Most shows whose pictures of their last beat are remembered."""
_KEPT_NS = 10_000_000_000
"""Longest time for which they are remembered after that beat."""
_FASTEST = 1
"""Level of compression: the higher ones save a tenth and take three times as long."""


class Picture:
    """One show at one moment."""

    def __init__(self, number: int, asked: Asked, head: bytes, replay: bytes | None, data: Any) -> None:
        self.number = number
        self.version = data.version if isinstance(data, Schedule) else None
        """Version that the next picture may be ``after``, to hold only what changed; None for a show that
        comes whole."""
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


class _Made(NamedTuple):
    """A picture, and the version after which it holds the changes; None if it is whole."""

    after: int | None
    picture: Picture

    def suits(self, known: int | None) -> bool:
        """Return whether a page that knows all up to this version can go on with it."""
        if self.picture.version is None or self.after is None or known is None:
            return self.picture.version is None or self.after is known is None
        return self.after <= known <= self.picture.version


class _Beat(NamedTuple):
    """The pictures of one show that were made on one beat."""

    number: int
    made: list[_Made]


class Pictures:
    """Makes pictures of what a source holds."""

    def __init__(self, source: Source, interval_ns: int, share: float) -> None:
        """``share``: of the console's time, that making them may take."""
        self._source = source
        self._interval_ns = interval_ns
        self._share = share
        self._kept: dict[_Key, _Beat] = {}
        """The newest beat of each show; the one that was not asked for longest comes first."""
        self._number = 0
        self._turn = asyncio.Lock()
        self._paid_ns = 0
        """Instant from which on the share is kept if nothing is made before."""
        self._broken: dict[str, str] = {}
        """Error of each show when it was last logged."""
        self.made = 0
        """Pictures made so far."""
        self.made_ns = 0
        """Time that making them took."""

    def beat(self) -> int:
        """Return the present beat's number."""
        return monotonic_ns() // self._interval_ns

    def beat_after(self, every_ns: int) -> int:
        """Return the number of the next beat of those that are ``every_ns`` apart, rounded to beats."""
        every = max(1, round(every_ns / self._interval_ns))
        return (self.beat() // every + 1) * every

    async def next_beat(self) -> None:
        """Wait for the next beat."""
        await asyncio.sleep((self._interval_ns - monotonic_ns() % self._interval_ns) / 1e9)

    async def get(self, asked: Asked, known: int | None = None) -> Picture:
        """Return a picture of this beat, for a page that knows all up to a version.

        Raises as `mainspring.console.web.shows.make`.
        """
        beat = self.beat()
        found = self._find(asked, known, beat)
        if found is not None:
            return found
        async with self._turn:
            found = self._find(asked, known, beat)
            if found is not None:
                return found
            while (early_ns := self._paid_ns - monotonic_ns()) > self._interval_ns:
                await asyncio.sleep((early_ns - self._interval_ns) / 1e9)
            begin_ns = thread_time_ns()
            try:
                return self._make(asked, known)
            finally:
                took_ns = thread_time_ns() - begin_ns
                self._paid_ns = max(self._paid_ns, monotonic_ns()) + round(took_ns / self._share)
                self.made += 1
                self.made_ns += took_ns
                # What came meanwhile is taken in before the next picture is made.
                await asyncio.sleep(0)

    def _find(self, asked: Asked, known: int | None, beat: int) -> Picture | None:
        """Return what was made since a beat, if it suits."""
        kept = self._kept.get(self._key(asked))
        if kept is None or kept.number < beat:
            return None
        return next((each.picture for each in kept.made if each.suits(known)), None)

    def _key(self, asked: Asked) -> _Key:
        return _Key(self._source.epoch, asked.show, asked.params)

    def _make(self, asked: Asked, known: int | None) -> Picture:
        key = self._key(asked)
        beat = self._kept.pop(key, _Beat(-1, []))
        if beat.number == self.beat():
            after = known
        else:
            after = _shared(beat.made, known)
            beat = _Beat(self.beat(), [])
        picture = self._picture(asked, after)
        beat.made.append(_Made(after, picture))
        self._kept[key] = beat
        self._forget()
        return picture

    def _forget(self) -> None:
        """Forget the pictures of old beats, and those of most shows."""
        oldest = self.beat() - max(2, _KEPT_NS // self._interval_ns)
        for key in list(self._kept):
            if len(self._kept) <= _KEPT and self._kept[key].number >= oldest:
                break
            del self._kept[key]

    def _picture(self, asked: Asked, after: int | None) -> Picture:
        try:
            data = make(self._source.view, asked, after)
        except Broken as broken:
            cause = repr(broken.__cause__)
            if self._broken.get(asked.show) != cause:
                self._broken[asked.show] = cause
                _LOGGER.exception("%s with %s", broken, asked.params.decode())
            raise
        self._number += 1
        replay = self._source.replay()
        shown = None if replay is None else encode(replay)
        return Picture(self._number, asked, encode(self._source.head()), shown, data)


def _shared(before: list[_Made], known: int | None) -> int | None:
    """Return after which version changes suffice for all that got a picture on the last beat.

    Pages that got different ones, because one was late, have the same again from then on.
    """
    versions = [made.picture.version for made in before if made.picture.version is not None]
    if known is None or known not in versions:
        return known
    return min(versions)


def _deflated(data: bytes) -> bytes:
    squeeze = zlib.compressobj(_FASTEST, zlib.DEFLATED, -zlib.MAX_WBITS)
    return squeeze.compress(data) + squeeze.flush()
