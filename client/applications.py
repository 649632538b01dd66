"""Calls of a client about applications, which learn."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from typing import TYPE_CHECKING, Any

from mainspring.client.errors import InvalidRequest
from mainspring.messages import clients, learning
from mainspring.messages.applications import ApplicationReport
from mainspring.messages.codes import Reason

if TYPE_CHECKING:
    from mainspring.client.channel import Channel
    from mainspring.client.failover import Gateways

_BEHIND_ALL_MS = 3_600_000.0
"""Time that a request gets which nobody waits for. An application may give one without a deadline its own."""


class ApplicationCalls:
    """The part of a `Client` that is about applications."""

    @property
    def _channel(self) -> Channel | Gateways:
        raise NotImplementedError

    def infer(self, *arguments: Any, **named: Any) -> Any:
        """Ask; see `Client.infer`."""
        raise NotImplementedError

    def _exchange(self, message: clients.FromClient) -> Any:
        raise NotImplementedError

    def observe(
        self,
        application: str,
        query_id: int | None,
        truth: Ordered[int | float | str] = (),
        *,
        rewards: Ordered[float] = (),
        rows: Ordered[int] = (),
        inputs: Mapping[str, Any] | None = None,
        context: str = "",
    ) -> learning.Observed:
        """Tell an application what came true of an answer, by the ``query_id`` of its ``timing.learnt``.

        ``truth`` has the class, label or value of each of ``rows``, by default the first ones on; or
        ``rewards`` how good the answer was, from 0 to 1. Without an answer, ``query_id`` None, the members
        are asked for one to ``inputs``, behind all others, and a ``context`` learns from it. Returns what
        became of the rows. Raises `InvalidRequest`, which names what is wrong.
        """
        if (query_id is None) == (inputs is None):
            raise InvalidRequest("give either query_id or inputs", Reason.BAD_INPUT)
        if query_id is None:
            answer = self.infer(application, inputs, slo_ms=_BEHIND_ALL_MS, context=context)
            query_id = answer.timing.learnt.query_id if answer.timing.learnt else 0
        told = tuple(truth), tuple(rewards), tuple(rows)
        message = learning.Observe(self._channel.next_key(), application, query_id, *told)
        found: learning.Observed = self._exchange(message)
        return found

    def top_k(
        self, application: str, items: Ordered[int] | None, k: int, *, context: str = ""
    ) -> clients.BestItems:
        """Return the k best of some items, by number, or of all (None), for a user, with their scores.

        `observe` takes its ``query_id``, with their places as ``rows``. Raises `InvalidRequest`, which names
        what is wrong.
        """
        asked = None if items is None else tuple(items)
        message = clients.TopK(self._channel.next_key(), application, k, asked, context)
        return self._exchange(message)  # type: ignore[no-any-return]

    def forget(self, application: str, context: str) -> None:
        """Erase what an application has learnt of a context. Raises `InvalidRequest` if it has none."""
        self._exchange(clients.ForgetContext(self._channel.next_key(), application, context))

    def applications(self) -> tuple[ApplicationReport, ...]:
        """Return the applications by name, with what this client's gateway has learnt and counted of them."""
        return self._exchange(clients.ListApplications(self._channel.next_key()))  # type: ignore[no-any-return]
