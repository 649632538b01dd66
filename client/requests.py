"""The calls of one connection: when each request is sent, or refused in the client, and what it teaches."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from os import getpid
from time import monotonic_ns
from typing import Any, Protocol

import msgspec

from mainspring.client.connection import Connection
from mainspring.client.durations import format_duration
from mainspring.client.errors import (
    DeadlinePassed,
    DeadlineUnreachable,
    GatewayUnreachable,
    MainspringError,
)
from mainspring.client.requests import Outbox, Paths
from mainspring.messages import clients
from mainspring.messages.codes import Reason

_BURST = 16
"""Most requests that are sent before replies are read again."""


_SPARE_S = 30.0
"""Time beyond a call's own patience to connect and to hand its outcome over."""


class Calls(Protocol):
    """The owner of the calls: the channel."""

    def end(self, call: Call, outcome: object) -> None:
        """Set a call's outcome."""

    def wake_at(self, call: Call, at_ns: int) -> None:
        """Set a call's timer."""

    def cancel(self, call: Call) -> None:
        """Tell the gateway to give a cancelled call up; from any thread."""

    def landed(self, call: InferCall, now_ns: int) -> None:
        """Note that the caller has the outcome of a request; from any thread."""


class Call(Future[Any]):
    """One call's reply to come.

    ``cancel`` really cancels: the gateway gives the request up, and the future is cancelled at
    once. ``result`` raises a `MainspringError` if the call failed; in a child of a fork, also if the call had
    not ended before that: its outcome comes to the parent.
    """

    def __init__(self, calls: Calls, message: Any, called_ns: int, patience_s: float) -> None:
        super().__init__()
        self._calls = calls
        self.message = message
        self.called_ns = called_ns
        """Instant of the call, on this process's monotonic clock."""
        self.patience_s = patience_s
        """Time after the call at which it is given up without a reply."""
        self.wake_ns = 0
        """Its one timer."""
        self.sent = False
        self.ended = False
        self._pid = getpid()

    def result(self, timeout: float | None = None) -> Any:
        """Return the reply; wait for ``timeout`` seconds, or until it must have ended if None."""
        self._check()
        return super().result(self._wait_s() if timeout is None else timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return why it failed, None if it did not; waits as `result` does."""
        self._check()
        return super().exception(self._wait_s() if timeout is None else timeout)

    def _check(self) -> None:
        # `done` would take a lock that may have been another thread's at the fork.
        if self._pid != getpid() and not self.ended:
            raise GatewayUnreachable(
                f"process {self._pid}, which forked, sent this request and gets its answer: send it again"
            )

    def _wait_s(self) -> float:
        """Return the longest wait: the channel's thread ends every call before, while there is one."""
        left_s = self.patience_s + (self.called_ns - monotonic_ns()) / 1e9
        return max(0.0, left_s) + _SPARE_S

    def cancel(self) -> bool:
        """Cancel the call unless it is done; return whether it is cancelled."""
        if not super().cancel():
            return False
        self._calls.cancel(self)
        return True


class InferCall(Call):
    """A request for outputs."""

    message: clients.InferRequest

    def __init__(
        self,
        calls: Calls,
        message: clients.InferRequest,
        frames: Sequence[memoryview],
        called_ns: int,
        patience_s: float,
        *,
        awaited: bool = False,
    ) -> None:
        """``message.slo_ns`` is the caller's; ``awaited``: whether the caller says when it has its result."""
        super().__init__(calls, message, called_ns, patience_s)
        self.frames = frames
        self.size_bytes = sum([frame.nbytes for frame in frames])
        # An SLO of nothing is the gateway's to refuse, in its words.
        slo_ns = message.slo_ns or 0
        self.deadline_ns = called_ns + slo_ns if slo_ns > 0 else None
        self.awaited = awaited
        self.left_gateway_ns: int | None = None
        """Instant at which its reply left, on the gateway's clock."""
        self.reply_bytes = 0
        self.succeeded = False

    def landed(self, now_ns: int) -> None:
        """Note that the caller has its result or error."""
        self._calls.landed(self, now_ns)


class Requests:
    """The requests of one connection; all but `landed` is for the background thread."""

    def __init__(self, connection: Connection, outbox: Outbox, calls: Calls) -> None:
        self._connection = connection
        self._outbox = outbox
        self._calls = calls
        self._paths = Paths()
        self._landed: deque[tuple[InferCall, int]] = deque()
        self._more = False
        """True if requests that were held back may be sent at once."""

    def landed(self, call: InferCall, now_ns: int) -> None:
        """A caller has its outcome now; from any thread."""
        if call.left_gateway_ns is not None:
            self._landed.append((call, now_ns))

    def learn(self) -> None:
        """Learn from what has landed."""
        while self._landed:
            self._learn(*self._landed.popleft())

    def add(self, call: InferCall) -> None:
        """Have a request wait for its turn."""
        self._outbox.add(call)

    def ended(self, call: InferCall) -> None:
        """A request has its outcome."""
        self._outbox.ended(call.message.key)

    def link_lost(self) -> None:
        """Forget the requests on their way, which are lost."""
        self._outbox.link_lost()

    def next_wakeup_ns(self, now_ns: int) -> int | None:
        """Return when there is something to do next, if nothing else happens."""
        if self._more:
            return now_ns
        hopeless_ns = self._outbox.next_wakeup_ns(self._paths.slowest_ns(now_ns))
        found = [each for each in (hopeless_ns, self._outbox.next_look_ns()) if each is not None]
        return min(found, default=None)

    def send(self) -> None:
        """Send waiting requests: at most a burst, and at most as many as may be on their way."""
        self._more = False
        for _ in range(_BURST):
            welcome = self._connection.welcome
            if welcome is None:
                return
            call = self._outbox.next(welcome.max_in_flight, acknowledged=welcome.acknowledges)
            if call is None:
                return
            self._send_request(call, acknowledges=welcome.acknowledges)
        self._more = True

    def _send_request(self, call: InferCall, *, acknowledges: bool) -> None:
        now_ns = monotonic_ns()
        message, left_ns, back_ns = call.message, call.message.slo_ns, 0
        if message.slo_ns is not None and call.deadline_ns is not None:
            back_ns = self._paths.back_ns(now_ns, message.model, message.slo_ns)
            left_ns = call.deadline_ns - now_ns - self._paths.one_way_ns
            if left_ns <= back_ns:
                self._calls.end(call, _passed(call, now_ns))
                return
        acknowledge = acknowledges and self._outbox.acknowledgement_due(now_ns, call)
        message = msgspec.structs.replace(
            message, slo_ns=left_ns, sent_ns=now_ns, back_ns=back_ns, acknowledge=acknowledge
        )
        try:
            self._connection.send(message, call.frames)
        except MainspringError as error:
            self._calls.end(call, error)
            return
        call.sent = True
        self._outbox.sent(now_ns, call, acknowledge=acknowledge)
        self._calls.wake_at(call, call.called_ns + round(call.patience_s * 1e9))

    def refuse_hopeless(self) -> None:
        """Refuse what waits here and has no time left, before its deadline."""
        now_ns = monotonic_ns()
        back_ns = self._paths.slowest_ns(now_ns)
        while (call := self._outbox.hopeless(now_ns, back_ns)) is not None:
            self._calls.end(call, self.unsent_outcome(call, now_ns))
            now_ns = monotonic_ns()
        if self._connection.welcome is not None:
            for call in self._outbox.surplus(now_ns):
                self._calls.end(call, _too_many(call, len(self._outbox), now_ns))

    def unsent_outcome(self, call: Call, now_ns: int) -> MainspringError:
        """Return why a call ends that was never sent."""
        if self._connection.welcome is None:
            return self._connection.unreachable(float(f"{(now_ns - call.called_ns) / 1e9:.2g}"))
        return _passed(call, now_ns)

    def read(self, key: int, message: object, now_ns: int) -> None:
        """Note from a message of the gateway's that it has read a request."""
        if (sent_ns := self._outbox.read(key)) is not None and isinstance(message, clients.Received):
            self._paths.round_trip(now_ns - sent_ns)

    def replied(
        self, call: InferCall, message: clients.InferReply | clients.ErrorReply, frames: list[Any]
    ) -> None:
        """Note a reply; it is learnt from once its caller has it."""
        call.left_gateway_ns = message.sent_ns
        call.reply_bytes = sum([len(frame) for frame in frames])
        call.succeeded = isinstance(message, clients.InferReply)
        if call.succeeded:
            self._outbox.answered(call)
        if not call.awaited:
            self._landed.append((call, monotonic_ns()))

    def _learn(self, call: InferCall, at_ns: int) -> None:
        """Learn from what an answer took from the gateway to its caller."""
        if call.left_gateway_ns is not None:
            model = call.message.model if call.succeeded else None
            self._paths.came_back(call.left_gateway_ns, at_ns, call.reply_bytes, model)


def _too_many(call: Call, waiting: int, now_ns: int) -> DeadlineUnreachable:
    """Return the refusal of a request that others stand before for longer than it has."""
    waited_ms = (now_ns - call.called_ns) / 1e6
    return DeadlineUnreachable(
        f"waited {waited_ms:.1f} ms in this client, where {waiting} requests wait for their turn: more than "
        "can be sent and answered by its deadline",
        Reason.DEADLINE_UNREACHABLE,
    )


def _passed(call: Call, now_ns: int) -> DeadlinePassed:
    """Return the refusal of a request whose time ran out in this client."""
    slo = format_duration(call.message.slo_ns)
    return DeadlinePassed(
        f"waited {format_duration(now_ns - call.called_ns)} in this client to be sent, and what is left of "
        f"its {slo} is too short for the way to the gateway and back",
        Reason.DEADLINE_PASSED,
    )
