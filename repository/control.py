"""Where gateways reach the repository: one question over a connection, its answer, and the connection ends.

Handshake and framing are those of all processes (`transport.streams`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from mainspring.messages.codes import Reason
from mainspring.messages.repository import MAX_MESSAGE_BYTES, NotChanged, Question, Reply
from mainspring.messages.roles import Role
from mainspring.transport import streams
from mainspring.transport.bounds import Ended, Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.handshake import Violation

_LOGGER = logging.getLogger("mainspring.repository")

Answer = Callable[[Question], Awaitable[Reply]]

MAX_QUESTIONS = 256
"""Requests answered at the same time; one more is refused."""
QUESTION_S = 5.0
"""How long a question may take to arrive."""
QUESTION = Limits(part_bytes=1 << 16, backlog_bytes=0, backlog_messages=0, message_bytes=1 << 16, tensors=0)
"""A question is a name in an envelope; it carries no tensors."""

_DECODER = msgspec.msgpack.Decoder(Question)
_ENCODER = msgspec.msgpack.Encoder()


class Control:
    """Listens for questions, and sends the answers."""

    def __init__(self, answer: Answer, secret: bytes | None = None) -> None:
        """``secret``: the run's; without one, only this user's processes of this host are answered."""
        self._answer = answer
        self._shows = Pass(Role.REPOSITORY, secret)
        self._questions = 0
        self._server: asyncio.Server | None = None
        self.address = ""
        """With the real port."""

    async def listen(self, address: str) -> None:
        """Accept questions from now on; raise OSError that names the address if that is not possible."""
        try:
            self.address, self._server = await streams.serve(address, self._serve)
        except (OSError, ValueError, OverflowError) as error:
            raise OSError(
                f"the model repository can't listen at {address}: {error}; "
                "choose another with [repository] address"
            ) from None

    async def close(self) -> None:
        """Accept no more questions."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._questions += 1
        try:
            await streams.accept(reader, writer, self._shows, (Role.GATEWAY,))
            reply = await self._reply(reader)
            if reply is not None:
                data = _ENCODER.encode(reply)
                if len(data) > MAX_MESSAGE_BYTES:
                    data = _ENCODER.encode(NotChanged(Reason.OVERLOADED, "the index is too long to be sent"))
                await streams.send(writer, (data,))
        except Violation as error:
            _LOGGER.info("%s ends a new connection: %s", self.address, error)
        except (OSError, EOFError, Ended):
            pass
        finally:
            self._questions -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _reply(self, reader: asyncio.StreamReader) -> Reply | None:
        """Return the answer to the question that arrives; None if none does in time."""
        try:
            async with asyncio.timeout(QUESTION_S):
                (data,) = await streams.receive(reader, QUESTION)
            question = _DECODER.decode(data)
        except TimeoutError:
            return None
        except (Violation, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return NotChanged(Reason.BAD_MESSAGE, f"the question can't be read: {error}")
        if self._questions > MAX_QUESTIONS:
            return NotChanged(Reason.OVERLOADED, f"{MAX_QUESTIONS} such questions wait already")
        return await self._answer(question)
