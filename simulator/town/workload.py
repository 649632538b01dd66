"""The requests of a town's clients, and the rules that hold beside those of every town.

A class of one's own is given to `mainspring simulate --town SEED --town-workload package.module:Class`.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING

import msgspec

from mainspring.messages.model import ModelSpec
from mainspring.simulator.town.device import ROW_BYTES, model

if TYPE_CHECKING:
    from mainspring.simulator.town.town import Town


class Request(msgspec.Struct, frozen=True):
    """A request that a client is to send."""

    at_ns: int
    """True instant at which it is sent."""
    model: str
    rows: int = 1
    slo_ns: int | None = 1_000_000_000
    """Time to its deadline; None for best effort."""
    cancel_ns: int | None = None
    """Time after which the client gives it up; None if it does not."""
    client: int = 0
    """Number of the client that sends it."""


class Sent:
    """A request that a client was to send, and what became of it."""

    __slots__ = ("inputs", "key", "lost", "outcome", "outputs", "replied_ns", "replies", "request", "sent_ns")

    def __init__(self, key: int, request: Request) -> None:
        self.key, self.request = key, request
        self.inputs = b"".join(
            [key.to_bytes(8, "little") + row.to_bytes(8, "little") for row in range(request.rows)]
        )
        assert len(self.inputs) == request.rows * ROW_BYTES
        self.sent_ns = -1
        """True instant at which it left; negative if it could not."""
        self.replies = 0
        self.outcome = ""
        """``ok``, or the reason of its refusal; empty without a reply."""
        self.outputs = b""
        self.replied_ns = 0
        self.lost = False
        """True if its connection ended before its reply."""


class Workload:
    """The workload of `make chaos-sim`, and the base of others."""

    def models(self, draws: Random) -> list[ModelSpec]:
        """Return the models that are served."""
        count = draws.randint(2, 5)
        return [
            model(f"m{number}", draws.randint(1, 3), draws.uniform(1, 8), draws.choice((3, 10, 60)))
            for number in range(count)
        ]

    def requests(self, draws: Random, models: list[ModelSpec], end_ns: int) -> list[Request]:
        """Return what is asked for until an instant, in the order of time."""
        found, at_ns = [], 1_000_000_000
        rate = draws.uniform(8, 25)
        while at_ns < end_ns:
            at_ns += round(draws.expovariate(rate) * 1e9)
            found.append(
                Request(
                    at_ns,
                    draws.choice(models).name,
                    rows=draws.choice((1, 1, 1, 2, 4)),
                    slo_ns=None if draws.random() < 0.1 else round(draws.uniform(0.1, 1.5) * 1e9),
                    cancel_ns=round(draws.uniform(0, 0.05) * 1e9) if draws.random() < 0.03 else None,
                    client=draws.randint(0, 1),
                )
            )
        return found

    def replied(self, sent: Sent) -> Iterable[str]:  # noqa: ARG002
        """Return what is wrong with a request's reply, beside what is checked of every one."""
        return ()

    def ended(self, town: Town) -> Iterable[str]:  # noqa: ARG002
        """Return what is wrong with the town after its last fault has been over for long."""
        return ()
