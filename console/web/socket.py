"""One page's WebSocket: the page says what it shows, and gets pictures of it as fast as it draws them.

A page that draws slowly skips pictures and never lags: at most `AHEAD` are on their way to it at any time,
because it says of each that it has *seen* it. Nothing is queued for it here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Annotated

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from mainspring.console.config import ConsoleConfig
from mainspring.console.queries.asking import BadQuery, Unknown
from mainspring.console.web.guard import encode
from mainspring.console.web.pictures import Picture, Pictures
from mainspring.console.web.shows import Asked, BadParams, Broken, ask, explained
from mainspring.console.web.source import Seek, Source

AHEAD = 2
"""Pictures that a page may not have seen yet."""
_POLICY_VIOLATION = 1008
_TRY_AGAIN_LATER = 1013


class Said(msgspec.Struct, forbid_unknown_fields=True):
    """A message of a page: one of these things, or several."""

    token: str | None = None
    """Its right to see, before all else where one is needed."""
    show: str | None = None
    """Show that it displays from now on, with ``params`` and at most every ``every_ms``."""
    params: dict[str, object] = {}
    every_ms: Annotated[float, msgspec.Meta(ge=0, le=3_600_000)] = 0.0
    seen: int | None = None
    """Number of the newest picture that it has drawn."""
    pause: bool | None = None
    seek: Seek | None = None


_SAID = msgspec.json.Decoder(Said)


async def turn_away(socket: WebSocket, text: str) -> None:
    """Refuse a page because there are too many already."""
    with contextlib.suppress(WebSocketDisconnect):
        await socket.accept()
        await socket.send_text(encode({"error": {"text": text}}).decode())
        await socket.close(_TRY_AGAIN_LATER, "too many pages")


class PageSocket:
    """Serves one page."""

    def __init__(
        self,
        socket: WebSocket,
        pictures: Pictures,
        source: Source,
        refused: Callable[[str | None], str],
        config: ConsoleConfig,
    ) -> None:
        """``refused`` says of a token, or of none, why it may see nothing; empty if it may."""
        self._socket = socket
        self._pictures = pictures
        self._source = source
        self._refused = refused
        self._interval_ns = round(config.update_interval_ms * 1e6)
        self._patience_s = config.header_timeout_ms / 1e3
        self._deflated = socket.query_params.get("deflate") == "1"
        self._asked: Asked | None = None
        self._every_ns = self._interval_ns
        self._paused = False
        self._due_beat = 0
        """Number of the first beat on which the next picture may be sent."""
        self._changed = asyncio.Event()
        """Set when there may be something to send again."""
        self._sent: list[int] = []
        """Numbers of the pictures that were not seen yet."""
        self._last: Picture | None = None
        self._epoch = -1
        self._complaint = ""
        self._token: str | None = None

    async def serve(self) -> None:
        """Talk with the page until it leaves."""
        await self._socket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            if not await self._admitted():
                return
            async with asyncio.TaskGroup() as tasks:
                sender = tasks.create_task(self._send_pictures())
                await self._listen()
                sender.cancel()

    async def _admitted(self) -> bool:
        """Return whether the page may see anything, after its first message where it needs a token."""
        problem = self._refused(None)
        if not problem:
            return True
        try:
            async with asyncio.timeout(self._patience_s):
                said = await self._hear()
        except TimeoutError:
            said = None
        if said is not None:
            self._token = said.token
            problem = self._refused(said.token)
            if not problem:
                await self._obey(said)
                return True
        await self._part(problem)
        return False

    async def _part(self, problem: str) -> None:
        """Part with a page that may see nothing."""
        await self._complain(problem)
        await self._socket.close(_POLICY_VIOLATION, "a token is needed")

    async def _listen(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                said = await self._hear()
                if said is not None:
                    await self._obey(said)

    async def _hear(self) -> Said | None:
        """Return the page's next message; None for one that can't be understood, which the page learns."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        try:
            return _SAID.decode(message.get("text") or message.get("bytes") or b"")
        except msgspec.ValidationError as error:
            await self._complain(explained(str(error), Said))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            await self._complain(f"the message is not a JSON object: {error}")
        return None

    async def _obey(self, said: Said) -> None:
        if said.seen is not None:
            self._sent = [number for number in self._sent if number > said.seen]
        if said.pause is not None:
            self._paused = said.pause
        if said.seek is not None:
            try:
                self._source.seek(said.seek)
            except ValueError as error:
                await self._complain(str(error))
        if said.show is not None:
            try:
                self._asked = ask(said.show, said.params)
            except BadParams as error:
                self._asked = None
                await self._complain(str(error), said.show)
            self._every_ns = max(self._interval_ns, round(said.every_ms * 1e6))
            self._last, self._complaint, self._due_beat = None, "", 0
        self._changed.set()

    async def _send_pictures(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                while self._asked is None or self._paused or len(self._sent) >= AHEAD:
                    self._changed.clear()
                    await self._changed.wait()
                problem = self._refused(self._token)
                if problem:
                    await self._part(problem)
                    return
                if self._pictures.beat() >= self._due_beat:
                    self._due_beat = self._pictures.beat_after(self._every_ns)
                    await self._send_picture(self._asked)
                await self._pictures.next_beat()

    async def _send_picture(self, asked: Asked) -> None:
        try:
            picture = await self._pictures.get(asked, self._after())
        except (Unknown, BadQuery, Broken) as error:
            if isinstance(error, Unknown) and self._source.head().state == "catching_up":
                # It may be there once all is read that led up to the instant.
                return
            if str(error) != self._complaint:
                self._complaint = str(error)
                await self._complain(self._complaint, asked.show, unknown=isinstance(error, Unknown))
            return
        if self._asked is not asked or self._paused:
            return
        self._complaint = ""
        last, self._last, self._epoch = self._last, picture, self._source.epoch
        same = last is not None and last.data == picture.data and picture.version is None
        self._sent.append(picture.number)
        message = picture.message(same=same, deflated=self._deflated)
        if self._deflated:
            await self._socket.send_bytes(message)
        else:
            await self._socket.send_text(message.decode())

    def _after(self) -> int | None:
        """Return from which version on the page knows all that it shows; None if it does not."""
        if self._last is None or self._epoch != self._source.epoch:
            return None
        return self._last.version

    async def _complain(self, text: str, show: str | None = None, *, unknown: bool = False) -> None:
        """Say what is wrong; ``unknown`` if what was asked for does not exist."""
        error = {"text": text} if show is None else {"text": text, "show": show}
        if unknown:
            error["code"] = "unknown"
        await self._socket.send_text(encode({"error": error}).decode())
