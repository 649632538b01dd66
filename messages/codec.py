"""Bytes to messages and back: one `Codec` for each direction of each conversation.

On bytes from outside a codec raises nothing but `BadMessage`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from mainspring.messages import actions, clients, following, observing, peers

Message = TypeVar("Message")

_ENCODER = msgspec.msgpack.Encoder()


class BadMessage(ValueError):
    """Bytes that do not hold a message of the vocabulary; the text says why."""


def encode(message: msgspec.Struct) -> bytes:
    """Return the message's bytes."""
    return _ENCODER.encode(message)


class Codec(Generic[Message]):
    """Decoder of one closed vocabulary."""

    def __init__(self, vocabulary: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(vocabulary)

    def decode(self, data: bytes | bytearray | memoryview) -> Message:
        """Return the message in ``data``; raise `BadMessage` if they do not hold one."""
        try:
            return self._decoder.decode(data)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
            raise BadMessage(str(error)) from error


TO_CONTROLLER: Codec[
    peers.ToController | observing.FromObserver | following.FromFollower | actions.Result
] = Codec(peers.ToController | observing.FromObserver | following.FromFollower | actions.Result)
"""Messages that workers, gateways, observers and controllers that stand by send to the controller."""

TO_FOLLOWER: Codec[following.ToFollower] = Codec(following.ToFollower)
"""Messages that the controller sends to one that stands by."""

TO_WORKER: Codec[peers.ToWorker | actions.Action] = Codec(peers.ToWorker | actions.Action)
"""Messages that the controller sends to a worker."""

TO_OBSERVER: Codec[peers.ToWorker | observing.ToObserver] = Codec(peers.ToWorker | observing.ToObserver)
"""Messages that the controller sends to an observer."""

TO_PROVIDER: Codec[peers.ToProvider] = Codec(peers.ToProvider)
"""Messages that the controller sends to a provider of workers."""

TO_GATEWAY: Codec[peers.ToGateway] = Codec(peers.ToGateway)
"""Messages that the controller sends to a gateway."""

FROM_GATEWAY: Codec[peers.FromGateway] = Codec(peers.FromGateway)
"""Messages that a gateway sends to a worker's data socket."""

FROM_WORKER: Codec[peers.FromWorker] = Codec(peers.FromWorker)
"""Messages that a worker's data socket sends to a gateway."""

FROM_CLIENT: Codec[clients.FromClient] = Codec(clients.FromClient)
"""Messages that a client sends to its gateway."""

TO_CLIENT: Codec[clients.ToClient] = Codec(clients.ToClient)
"""Messages that a gateway sends to its client."""
