"""Sequences: requests for a model whose state the gateway keeps from one to the next."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from numpy.typing import ArrayLike

from mainspring.client.channel import PerProcess
from mainspring.client.deadlines import AnyDeadline, deadline_of
from mainspring.client.errors import OfOneProcess, TimedOut, UnknownSequence, kind_of
from mainspring.client.result import InferResult

if TYPE_CHECKING:
    from mainspring.client.asynchronous import AsyncClient
    from mainspring.client.client import Arguments, Client

_ID_BITS = 63
"""Number of random bits of an id: every client and every type of a model's input can hold such a number."""


class Place(NamedTuple):
    """The position of a request in a sequence."""

    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False


NOWHERE = Place()


class Places:
    """The positions of a sequence's requests, as they follow one another."""

    def __init__(self, model: str, sequence_id: int | str | None, version: int | None) -> None:
        if sequence_id is None:
            sequence_id = secrets.randbits(_ID_BITS) or 1
        if isinstance(sequence_id, bool) or not isinstance(sequence_id, int | str):
            raise TypeError(f"sequence_id is {kind_of(sequence_id)}; pass a number from 1 on, or a text")
        if not sequence_id:
            raise ValueError(f"sequence_id is {sequence_id!r}, which stands for none; leave it out for one")
        self.model, self.sequence_id, self.version = model, sequence_id, version
        self.begun = False
        """True if there is a state that the next request continues."""

    @contextmanager
    def request(self, *, last: bool) -> Iterator[Place]:
        """Give the place of the next request, which the block sends; note whether it got its outputs."""
        place = Place(self.sequence_id, not self.begun, last)
        try:
            yield place
        except UnknownSequence:
            self.begun = False
            raise
        # After any other error the state is what it was, if there is one.
        self.begun = not last

    def arguments(
        self,
        called_ns: int,
        inputs: Mapping[str, ArrayLike],
        slo_ms: float | None,
        slo: str | timedelta | None,
        outputs: Ordered[str] | None,
        priority: int,
        deadline: AnyDeadline,
    ) -> Arguments:
        """Return the arguments of a request of the sequence, which has no place in it yet."""
        from mainspring.client.client import Arguments

        given = (inputs, slo_ms, slo, outputs, self.version, priority, "", deadline_of(called_ns, deadline))
        return Arguments(called_ns, self.model, *given)


def _not_its_turn(waited_s: float) -> TimedOut:
    return TimedOut(f"the sequence's earlier requests had not ended after {waited_s:g} s")


class Sequence(OfOneProcess):
    """A sequence of requests, as `Client.sequence` makes it.

    ```python
    with client.sequence("voice") as stream:
        for chunk in microphone:
            speech = stream.infer({"input": chunk}, slo="30ms")["output"]
    ```

    Its first request begins it, and ``last=True`` or the end of the ``with`` frees its state. Requests run in
    the order of their calls, one at a time. One that fails leaves the state as it was: send it again, or go
    on without it. After `UnknownSequence` (the gateway was restarted, or nothing was sent for too long) the
    next request begins the sequence again.
    """

    def __init__(self, client: Client, places: Places) -> None:
        self._client, self._places = client, places
        self._locks = PerProcess(threading.Lock)

    @property
    def sequence_id(self) -> int | str:
        """Return the id of the sequence at the gateway."""
        return self._places.sequence_id

    def infer(
        self,
        inputs: Mapping[str, ArrayLike],
        slo_ms: float | None = None,
        outputs: Ordered[str] | None = None,
        priority: int = 0,
        *,
        slo: str | timedelta | None = None,
        deadline: AnyDeadline = None,
        last: bool = False,
    ) -> InferResult:
        """Run the model on these inputs and the state; arguments and errors as for `Client.infer`.

        ``last``: the sequence ends with this request.
        """
        called_ns = monotonic_ns()
        told = (inputs, slo_ms, slo, outputs, priority, deadline)
        arguments = self._places.arguments(called_ns, *told)
        patience_s = self._client.patience_s(arguments)
        lock = self._locks.get()
        if not lock.acquire(timeout=patience_s):
            raise _not_its_turn(patience_s)
        try:
            with self._places.request(last=last) as place:
                return self._client.run(arguments._replace(place=place))
        finally:
            lock.release()

    def close(self) -> None:
        """Free the state at the gateway; a further request begins the sequence again."""
        with self._locks.get():
            if self._places.begun:
                self._places.begun = False
                self._client.end_sequence(self._places)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncSequence(OfOneProcess):
    """The same for asyncio, as `AsyncClient.sequence` makes it: ``async with``, and ``await`` of `infer`."""

    def __init__(self, client: AsyncClient, places: Places) -> None:
        self._client, self._places = client, places
        self._locks = PerProcess(asyncio.Lock)

    @property
    def sequence_id(self) -> int | str:
        """Return the id of the sequence at the gateway."""
        return self._places.sequence_id

    async def infer(
        self,
        inputs: Mapping[str, ArrayLike],
        slo_ms: float | None = None,
        outputs: Ordered[str] | None = None,
        priority: int = 0,
        *,
        slo: str | timedelta | None = None,
        deadline: AnyDeadline = None,
        last: bool = False,
    ) -> InferResult:
        """Run the model on these inputs and the state; see `Sequence.infer`."""
        called_ns = monotonic_ns()
        told = (inputs, slo_ms, slo, outputs, priority, deadline)
        arguments = self._places.arguments(called_ns, *told)
        patience_s = self._client.patience_s(arguments)
        lock = self._locks.get()
        try:
            await asyncio.wait_for(lock.acquire(), patience_s)
        except TimeoutError:
            raise _not_its_turn(patience_s) from None
        try:
            with self._places.request(last=last) as place:
                return await self._client.run(arguments._replace(place=place))
        finally:
            lock.release()

    async def close(self) -> None:
        """Free the state at the gateway; see `Sequence.close`."""
        async with self._locks.get():
            if self._places.begun:
                self._places.begun = False
                self._client.end_sequence(self._places)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
