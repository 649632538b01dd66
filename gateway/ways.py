"""What messages of clients were held on their way here, taken off their SLOs."""

from __future__ import annotations

import msgspec

from mainspring.messages.clients import ClientHello, InferRequest
from mainspring.messages.delays import Delays


class Ways:
    """The way of each client that stamps what it sends, by its connection."""

    def __init__(self) -> None:
        self._delays: dict[bytes, Delays] = {}

    def hello(self, now_ns: int, peer: bytes, message: ClientHello) -> None:
        """Begin with a client's hello: it was most likely held by nothing."""
        self._delays.pop(peer, None)
        if message.sent_ns is not None:
            delays = self._delays[peer] = Delays()
            delays.held_ns(message.sent_ns, now_ns)

    def forget(self, peer: bytes) -> None:
        """A client is gone."""
        self._delays.pop(peer, None)

    def arrived(self, now_ns: int, peer: bytes, request: InferRequest) -> InferRequest:
        """Return a request with what is left of its SLO now that it is here; at least a nanosecond.

        What is too late already is refused by the controller, which knows what would have been possible.
        """
        if request.sent_ns is None:
            return request
        delays = self._delays.get(peer)
        if delays is None:
            delays = self._delays[peer] = Delays()
        held_ns = delays.held_ns(request.sent_ns, now_ns)
        if request.slo_ns is None or request.slo_ns <= 0 or not held_ns:
            return request
        return msgspec.structs.replace(request, slo_ns=max(1, request.slo_ns - held_ns))
