"""Requests of a token in flight, and their bounds: a request of it carries its account. Pure."""

from __future__ import annotations

from mainspring.messages.codes import Reason


class Account:
    """One token's requests without an answer."""

    __slots__ = ("in_flight", "in_flight_bytes", "most", "most_bytes", "name", "tenant")

    def __init__(self, tenant: str, name: str = "") -> None:
        """``tenant``: whose requests they are, for the scheduler; ``name``: the token's."""
        self.tenant, self.name = tenant, name
        self.in_flight = self.in_flight_bytes = 0
        self.most: int | None = None
        """The most requests that may be in flight here; None for any number."""
        self.most_bytes: int | None = None
        """The most bytes of inputs that these may have."""

    @property
    def is_over(self) -> bool:
        """True if more is in flight than may be: its bounds were lowered."""
        over = self.most is not None and self.in_flight > self.most
        return over or (self.most_bytes is not None and self.in_flight_bytes > self.most_bytes)

    def take(self, input_bytes: int) -> tuple[Reason, str] | None:
        """Enter a request with so many bytes of inputs; or return why it may not be, and enter nothing."""
        if self.most is not None and self.in_flight >= self.most:
            detail = f"token {self.name!r} has {self.in_flight} requests in flight here, of {self.most}"
            return Reason.RATE_LIMITED, f"{detail} that it may have: wait for an answer"
        if self.most_bytes is not None and self.in_flight_bytes + input_bytes > self.most_bytes:
            detail = f"token {self.name!r} has {self.in_flight_bytes:,} bytes of inputs in flight here"
            return Reason.RATE_LIMITED, f"{detail}, and may have {self.most_bytes:,}"
        self.in_flight += 1
        self.in_flight_bytes += input_bytes
        return None
