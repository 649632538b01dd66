"""Mainspring within Ray Serve: `handle` for a model is called as a handle of a deployment is.

Nothing here imports Ray. A handle is given to `bind` as any value is, and connects in the process that calls
it: a request goes from there to Mainspring's gateway, and no replica of Serve stands between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import cache
from typing import Any

import msgspec
from numpy.typing import ArrayLike

from mainspring.client.address import gateway_address
from mainspring.client.asynchronous import AsyncClient
from mainspring.client.deadlines import AnyDeadline, slo_nanoseconds
from mainspring.client.errors import kind_of
from mainspring.client.result import InferResult

__all__ = ["Handle", "Response", "handle"]


class Response:
    """A request's result to come, as a handle of Serve returns one.

    Awaited, it is the `InferResult`: the model's outputs, arrays by name. A request without outputs raises a
    `MainspringError`, whose class and ``reason`` say why. An argument for another deployment has to be
    awaited first: Serve waits for responses of its own alone.
    """

    def __init__(self, outcome: asyncio.Future[InferResult] | Future[InferResult]) -> None:
        self._outcome = outcome

    def __await__(self) -> Generator[Any, None, InferResult]:
        outcome = self._outcome
        if isinstance(outcome, Future):
            outcome = asyncio.wrap_future(outcome)
        return outcome.__await__()

    def result(self, timeout_s: float | None = None) -> InferResult:
        """Wait for the result, in a thread without an event loop.

        Raises the request's `MainspringError`; TimeoutError after ``timeout_s``, which leaves the request as
        it is; RuntimeError for a request of an event loop, which must not be blocked.
        """
        if not isinstance(self._outcome, Future):
            raise RuntimeError("result() would block the event loop that made this request: await it instead")
        return self._outcome.result(timeout_s)

    def cancel(self) -> None:
        """Give the request up, at the gateway too."""
        self._outcome.cancel()


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `handle`. It may be pickled, and used by any number of threads and event loops."""

    model: str
    slo_ns: int | None
    """Time from a call of `remote` to the deadline; None for best effort."""
    outputs: tuple[str, ...] | None
    version: int | None
    priority: int
    address: str | None
    token: str | None
    curve_key: str | None

    def __repr__(self) -> str:
        slo = "best effort" if self.slo_ns is None else f"slo_ms={self.slo_ns / 1e6:g}"
        return f"{type(self).__name__}({self.model!r}, {slo})"

    def options(
        self,
        *,
        slo_ms: float | None = None,
        slo: str | timedelta | None = None,
        outputs: Sequence[str] | None = None,
        version: int | None = None,
        priority: int | None = None,
    ) -> Handle:
        """Return a handle with what is given in the place of its own; arguments as for `handle`."""
        told = {
            "slo_ns": slo_nanoseconds(slo_ms, slo),
            "outputs": _names(outputs),
            "version": version,
            "priority": priority,
        }
        return msgspec.structs.replace(self, **{key: each for key, each in told.items() if each is not None})

    def remote(self, inputs: Mapping[str, ArrayLike], *, deadline: AnyDeadline = None) -> Response:
        """Send a request and return its result to come; its SLO counts from this call.

        The earliest holds of that, of ``deadline`` and of the blocks of `Client.deadline` that the call is in.
        ``inputs`` are arrays by name, with rows along the axis that the model has them on, or Python lists.
        Large arrays are not copied: leave them alone until the result is there. Raises TypeError for
        arguments of the wrong kind.
        """
        client = _client(gateway_address(self.address), self.token, self.curve_key)
        slo_ms = None if self.slo_ns is None else self.slo_ns / 1e6
        told = (self.model, inputs, slo_ms, self.outputs, self.version, self.priority)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return Response(client.submit(*told, deadline=deadline))
        return Response(loop.create_task(client.infer(*told, deadline=deadline)))


def handle(
    model: str,
    *,
    slo_ms: float | None = None,
    slo: str | timedelta | None = None,
    outputs: Sequence[str] | None = None,
    version: int | None = None,
    priority: int = 0,
    address: str | None = None,
    token: str | None = None,
    curve_key: str | None = None,
) -> Handle:
    """Return a handle for a model that Mainspring serves.

    Each request has ``slo_ms`` milliseconds from its call to its deadline, or ``slo`` as text such as
    ``100ms``; without either it is best effort. ``outputs``, ``version`` and ``priority`` are those of
    `Client.infer`. ``address``, ``token`` and ``curve_key`` say which gateway, as for `Client`; where they
    are None, the environment of the process that calls the handle says so. A process has one connection to
    each gateway. Raises TypeError for arguments of the wrong kind, `InvalidSlo` for what is not a duration.
    """
    if not isinstance(model, str):
        raise TypeError(f"model is {kind_of(model)}; pass its name as a str")
    return Handle(
        model=model,
        slo_ns=slo_nanoseconds(slo_ms, slo),
        outputs=_names(outputs),
        version=version,
        priority=priority,
        address=address,
        token=token,
        curve_key=curve_key,
    )


def _names(outputs: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(outputs, str):
        raise TypeError(f"outputs is a str; pass a list of names, like [{outputs!r}]")
    return None if outputs is None else tuple(outputs)


@cache
def _client(address: str, token: str | None, curve_key: str | None) -> AsyncClient:
    """Return this process's connection to a gateway, which lasts as long as the process."""
    return AsyncClient(address, name="ray", token=token, curve_key=curve_key)
