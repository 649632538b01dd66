"""A kind of worker that a provider starts and stops."""

from __future__ import annotations

from mainspring.messages.scaling import Offer


class Kind:
    """The known facts about one kind."""

    __slots__ = ("in_time", "late", "name", "offer", "provider", "workers")

    def __init__(self, offer: Offer) -> None:
        self.name = offer.kind
        self.provider = ""
        """Name of the provider that has it; empty while no such provider is connected."""
        self.offer = offer
        """Last offer of a provider."""
        self.in_time = self.late = 0
        """Requests that its workers answered in time, and late."""
        self.workers = offer.workers
        """Workers that the provider is to run, whether it does or not; among them those that are to leave."""
