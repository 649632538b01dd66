"""The blocking client: one connection, any number of threads, many requests in flight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from numpy.typing import ArrayLike

from mainspring.client.arrays import InferResult, to_tensors
from mainspring.client.channel import Call, Channel
from mainspring.client.errors import InvalidSlo
from mainspring.messages import clients
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import ClusterStatus

DEFAULT_ADDRESS = "tcp://127.0.0.1:7400"
_ADMIN_GUARD_S = 15.0
_LONGEST_SLO_MS = 1e12


class Client:
    """A client of one gateway.

    ::

        with Client("tcp://127.0.0.1:7400") as client:
            result = client.infer("resnet50", {"data": x}, slo_ms=50)
            result["prob"], result.timing.total_ns

    Thread-safe. It connects in the background and again after a break; a call made meanwhile waits for up
    to ``connect_timeout_s``. Every call ends: the gateway answers each request by its deadline and a little
    grace, and should it not, the client gives up ``guard_s`` after the deadline (for a request without one,
    ``best_effort_timeout_s`` after sending) with `TimedOut`.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        name: str = "",
        token: str | None = None,
        connect_timeout_s: float = 5.0,
        guard_s: float = 2.0,
        best_effort_timeout_s: float = 75.0,
    ) -> None:
        """Begin to connect to ``address``; ``name`` is for the gateway's logs.

        ``token`` is for gateways that need one; None for the environment's ``MAINSPRING_TOKEN``.
        """
        self._guard_s = guard_s
        self._best_effort_timeout_s = best_effort_timeout_s
        self._channel = Channel(address, name, connect_timeout_s, token)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        slo_ms: float | None = None,
        outputs: Sequence[str] | None = None,
        version: int | None = None,
        priority: int = 0,
        traceparent: str = "",
    ) -> InferResult:
        """Run ``model`` on ``inputs`` and return its outputs by name, with ``timing`` beside them.

        ``inputs`` are arrays by name with rows along the first axis; ``slo_ms`` the time from the request's
        arrival at the gateway to its deadline, None for best effort; ``outputs`` the names wanted, None for
        all; ``version`` one of the model's, None for its default; ``priority`` its turn among requests of
        equal slack: 1 before 2 and so on, 0 behind all; ``traceparent`` the caller's span, for gateways that
        trace (W3C Trace Context). Raises a `MainspringError`: `DeadlineError`, `InvalidRequest`,
        `Unavailable`; TypeError for arguments of the wrong kind.
        """
        future = self.submit(model, inputs, slo_ms, outputs, version, priority, traceparent)
        try:
            return future.result()
        except BaseException:
            # Also when Ctrl-C ends the wait: nobody wants the outputs then.
            future.cancel()
            raise

    def submit(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        slo_ms: float | None = None,
        outputs: Sequence[str] | None = None,
        version: int | None = None,
        priority: int = 0,
        traceparent: str = "",
    ) -> Future[InferResult]:
        """Send a request and return its result to come; arguments as for `infer`.

        ``cancel`` of the future gives the request up at the gateway too. Large arrays are not copied: leave
        them alone until the future is done.
        """
        return self._call_infer(model, inputs, slo_ms, outputs, version, priority, traceparent)

    def models(self) -> tuple[ModelSpec, ...]:
        """Return the models that are served, by name."""
        return self._ask(clients.ListModels(self._channel.next_key()))  # type: ignore[no-any-return]

    def status(self) -> ClusterStatus:
        """Return the cluster as the controller sees it."""
        return self._ask(clients.GetStatus(self._channel.next_key()))  # type: ignore[no-any-return]

    def add_model(self, spec: ModelSpec) -> None:
        """Have a model served; its artifact must be in the workers' stores. Raises `ModelExists`."""
        self._ask(clients.AddModel(self._channel.next_key(), spec))

    def remove_model(self, name: str) -> None:
        """Have a model served no more; what is queued for it is rejected. Raises `UnknownModel`."""
        self._ask(clients.RemoveModel(self._channel.next_key(), name))

    def close(self) -> None:
        """Close the connection; requests without a reply fail."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, message: clients.FromClient) -> Any:
        return self._channel.call(message, guard_s=_ADMIN_GUARD_S).result()

    def _call_infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        slo_ms: float | None,
        outputs: Sequence[str] | None,
        version: int | None,
        priority: int,
        traceparent: str,
    ) -> Call:
        if not isinstance(model, str):
            raise TypeError(f"model is a {type(model).__name__}; pass its name as a str")
        if isinstance(outputs, str):
            raise TypeError(f"outputs is a str; pass a list of names, like [{outputs!r}]")
        slo_ns = slo_nanoseconds(slo_ms)
        headers, frames = to_tensors(inputs)
        request = clients.InferRequest(
            key=self._channel.next_key(),
            model=model,
            inputs=headers,
            slo_ns=slo_ns,
            outputs=None if outputs is None else tuple(outputs),
            version=version,
            traceparent=traceparent,
            priority=priority,
        )
        guard_s = self._best_effort_timeout_s if slo_ns is None else slo_ns / 1e9 + self._guard_s
        return self._channel.call(request, frames, guard_s)


def slo_nanoseconds(slo_ms: float | None) -> int | None:
    """Return an SLO in nanoseconds; raise TypeError or `InvalidSlo` for what is no duration at all."""
    if slo_ms is None:
        return None
    try:
        value = float(slo_ms)
    except (TypeError, ValueError):
        raise TypeError(f"slo_ms is a {type(slo_ms).__name__}; pass milliseconds as a number") from None
    if isinstance(slo_ms, str | bytes):
        raise TypeError(f"slo_ms is a {type(slo_ms).__name__}; pass milliseconds as a number")
    if not math.isfinite(value) or abs(value) > _LONGEST_SLO_MS:
        raise InvalidSlo(
            f"an SLO of {value} ms makes no sense; pass milliseconds, or None for best effort", Reason.BAD_SLO
        )
    return round(value * 1e6)
