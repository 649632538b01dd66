"""Calls of a client about applications, which learn."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

from mainspring.client.channel import Channel
from mainspring.messages import clients
from mainspring.messages.applications import ApplicationReport


class ApplicationCalls:
    """The part of a `Client` that is about applications."""

    @property
    def _channel(self) -> Channel:
        raise NotImplementedError

    def _exchange(self, message: clients.FromClient) -> Any:
        raise NotImplementedError

    def observe(
        self,
        application: str,
        query_id: int,
        truth: Ordered[int | float | str] = (),
        *,
        rewards: Ordered[float] = (),
        rows: Ordered[int] = (),
    ) -> clients.Observed:
        """Tell an application what came true of an answer, by the ``query_id`` of its ``timing.learnt``.

        ``truth`` has the class, label or value of each of ``rows``, by default the first ones on; or
        ``rewards`` how good the answer was, from 0 to 1. Returns what became of the rows. Raises
        `InvalidRequest`, which names what is wrong.
        """
        told = tuple(truth), tuple(rewards), tuple(rows)
        message = clients.Observe(self._channel.next_key(), application, query_id, *told)
        found: clients.Observed = self._exchange(message)
        return found

    def applications(self) -> tuple[ApplicationReport, ...]:
        """Return the applications by name, with what this client's gateway has learnt and counted of them."""
        return self._exchange(clients.ListApplications(self._channel.next_key()))  # type: ignore[no-any-return]
