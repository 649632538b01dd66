"""One call's reply to come."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from mainspring.messages import clients

if TYPE_CHECKING:
    from mainspring.client.channel import Channel


class Call(Future[Any]):
    """One call's reply to come.

    ``cancel`` really cancels: the gateway is told to give the request up, and the future is cancelled at
    once. ``result`` raises a `MainspringError` if the call failed.
    """

    def __init__(self, channel: Channel, message: Any, called_ns: int, patience_s: float) -> None:
        super().__init__()
        self._channel = channel
        self.message = message
        self.called_ns = called_ns
        """When it was called, on this process's monotonic clock."""
        self.patience_s = patience_s
        """How long after the call it is given up without a reply."""
        self.wake_ns = 0
        """Its one timer."""
        self.sent = False
        self.ended = False

    def cancel(self) -> bool:
        """Cancel the call unless it is done; return whether it is cancelled."""
        if not super().cancel():
            return False
        self._channel.cancel(self)
        return True


class InferCall(Call):
    """A request for outputs."""

    message: clients.InferRequest

    def __init__(
        self,
        channel: Channel,
        message: clients.InferRequest,
        frames: Sequence[memoryview],
        called_ns: int,
        patience_s: float,
        *,
        awaited: bool = False,
    ) -> None:
        """``message.slo_ns`` is the caller's; ``awaited``: whether the caller says when it has its result."""
        super().__init__(channel, message, called_ns, patience_s)
        self.frames = frames
        self.size_bytes = sum([frame.nbytes for frame in frames])
        # An SLO of nothing is the gateway's to refuse, in its words.
        slo_ns = message.slo_ns or 0
        self.deadline_ns = called_ns + slo_ns if slo_ns > 0 else None
        self.awaited = awaited
        self.left_gateway_ns: int | None = None
        """When its reply left, on the gateway's clock."""
        self.reply_bytes = 0
        self.succeeded = False

    def landed(self, now_ns: int) -> None:
        """The caller has its result or error now."""
        self._channel.landed(self, now_ns)
