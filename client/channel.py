"""Many calls in flight on one connection, from any thread, each with a future; the thread behind `Client`.

One background thread owns the `Connection`. Callers hand it their calls through a queue and get a `Call`,
which is a `concurrent.futures.Future`. Every call ends: with its reply, when the connection breaks, or by
its guard if the gateway never answers.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import socket as sockets
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any

import zmq

from mainspring.client.arrays import from_reply
from mainspring.client.connection import Connection, refused
from mainspring.client.errors import GatewayUnreachable, MainspringError, Overloaded, TimedOut, error_of
from mainspring.messages import clients

MAX_CALLS = 65_536
"""Calls without a reply in all; one more is refused here as overloaded."""
_IDLE_S = 60.0
_SPARE_GUARDS = 1_024


class Call(Future[Any]):
    """One call's reply to come.

    ``cancel`` really cancels: the gateway is told to give the request up, and the future is cancelled at
    once. ``result`` raises a `MainspringError` if the call failed.
    """

    def __init__(self, channel: Channel, message: Any, frames: Sequence[Any], guard_s: float) -> None:
        super().__init__()
        self._channel = channel
        self.message = message
        self.frames = frames
        self.guard_s = guard_s
        self.give_up_at = 0.0
        self.sent = False
        self.ended = False

    def cancel(self) -> bool:
        """Cancel the call unless it is done; return whether it is cancelled."""
        if not super().cancel():
            return False
        self._channel.cancel(self)
        return True


class Channel:
    """The background thread and its connection."""

    def __init__(self, address: str, name: str, connect_timeout_s: float, token: str | None = None) -> None:
        self.address = address
        self._connect_timeout_s = connect_timeout_s
        self._connection = Connection(address, name, token=token)
        self._keys = itertools.count(1)
        self._commands: deque[Call] = deque()
        self._unsent: deque[Call] = deque()
        self._calls: dict[int, Call] = {}
        self._guards: list[tuple[float, int]] = []
        self._links_lost = 0
        self._closing = False
        self._lock = threading.Lock()
        self._woken = False
        self._wake_read, self._wake_write = sockets.socketpair()
        self._wake_read.setblocking(False)
        self._poller = zmq.Poller()
        for each in (self._connection.socket, self._connection.monitor, self._wake_read):
            self._poller.register(each, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name=f"mainspring {address}", daemon=True)
        self._thread.start()

    # --- callers' threads ---

    def next_key(self) -> int:
        """Return a key for a message to `call`."""
        return next(self._keys)

    def call(self, message: Any, frames: Sequence[Any] = (), guard_s: float = 10.0) -> Call:
        """Send a message when the gateway has welcomed this client; return the reply to come.

        ``guard_s`` is how long after sending it the call is given up. Raises `Overloaded`.
        """
        if len(self._calls) + len(self._commands) >= MAX_CALLS:
            raise Overloaded(f"{MAX_CALLS} calls to {self.address} wait for their replies")
        call = Call(self, message, frames, guard_s)
        self._command(call)
        return call

    def cancel(self, call: Call) -> None:
        """Tell the gateway to give the call up."""
        with contextlib.suppress(GatewayUnreachable):
            self._command(call)

    def close(self) -> None:
        """End the thread and the connection; calls without a reply fail."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _command(self, call: Call) -> None:
        """Hand a call over: a new one to be sent, a cancelled one to be given up."""
        with self._lock:
            if self._closing:
                raise GatewayUnreachable(f"the client of {self.address} is closed; make a new one")
            self._commands.append(call)
            self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake_write.send(b"w")

    # --- the background thread ---

    def _run(self) -> None:
        try:
            while not self._closing:
                self._poller.poll(self._wait_ms())
                self._take_commands()
                self._receive()
                self._send_unsent()
                self._expire()
        finally:
            with self._lock:
                self._closing = True
            # Before the connection is closed: a cancelled call still tells the gateway.
            self._take_commands()
            self._fail_all("the client was closed before the reply came")
            self._connection.close()
            self._wake_read.close()
            self._wake_write.close()

    def _wait_ms(self) -> int:
        wait_s = self._guards[0][0] - monotonic() if self._guards else _IDLE_S
        if self._connection.hello_at is not None:
            wait_s = min(wait_s, self._connection.hello_at - monotonic())
        return max(0, min(int(wait_s * 1e3) + 1, int(_IDLE_S * 1e3)))

    def _take_commands(self) -> None:
        with self._lock:
            if self._woken:
                self._woken = False
                self._wake_read.recv(16)
        while self._commands:
            call = self._commands.popleft()
            if call.cancelled():
                self._give_up(call)
            else:
                self._calls[call.message.key] = call
                self._guard(call, self._connect_timeout_s)
                self._unsent.append(call)

    def _give_up(self, call: Call) -> None:
        """Tell the gateway of a cancelled call, which may not have been sent yet, or have ended."""
        if call.ended:
            return
        if call.sent:
            with contextlib.suppress(MainspringError):
                self._connection.send(clients.CancelRequest(call.message.key))
        self._end(call, None)

    def _send_unsent(self) -> None:
        """Send what waits, if the gateway has welcomed this client on the present link."""
        while self._unsent and self._connection.welcome is not None:
            call = self._unsent.popleft()
            if self._calls.get(call.message.key) is not call:
                continue
            try:
                self._connection.send(call.message, call.frames)
            except MainspringError as error:
                self._end(call, error)
                continue
            call.sent = True
            self._guard(call, call.guard_s)

    def _receive(self) -> None:
        while (received := self._connection.receive()) is not None:
            message, frames = received
            call = self._calls.get(getattr(message, "key", -1))
            if call is not None:
                self._end(call, _outcome(message, frames))
        if self._connection.link_lost != self._links_lost:
            self._links_lost = self._connection.link_lost
            broke = f"the connection to the gateway at {self.address} broke before the reply came"
            for call in [each for each in self._calls.values() if each.sent]:
                self._end(call, GatewayUnreachable(f"{broke}; send it again once the gateway is back"))
        if self._connection.refusal is not None:
            for call in list(self._calls.values()):
                self._end(call, refused(self.address, self._connection.refusal))

    def _guard(self, call: Call, guard_s: float) -> None:
        call.give_up_at = monotonic() + guard_s
        heapq.heappush(self._guards, (call.give_up_at, call.message.key))
        if len(self._guards) > 2 * len(self._calls) + _SPARE_GUARDS:
            self._guards = [(each.give_up_at, key) for key, each in self._calls.items()]
            heapq.heapify(self._guards)

    def _expire(self) -> None:
        now = monotonic()
        while self._guards and self._guards[0][0] <= now:
            at, key = heapq.heappop(self._guards)
            call = self._calls.get(key)
            if call is None or call.give_up_at != at:
                continue
            if call.sent:
                self._end(
                    call, TimedOut(f"the gateway at {self.address} did not answer in {call.guard_s:g} s")
                )
            else:
                self._end(call, self._connection.unreachable(self._connect_timeout_s))

    def _fail_all(self, why: str) -> None:
        for call in list(self._calls.values()):
            self._end(call, GatewayUnreachable(f"{why} ({self.address})"))

    def _end(self, call: Call, outcome: object) -> None:
        """Set a call's outcome: an exception is raised by its `result`, anything else returned."""
        self._calls.pop(call.message.key, None)
        call.ended = True
        call.frames = ()
        if not call.set_running_or_notify_cancel():
            return
        if isinstance(outcome, BaseException):
            call.set_exception(outcome)
        else:
            call.set_result(outcome)


def _outcome(message: object, frames: list[zmq.Frame]) -> object:
    """Return what a reply means to the caller."""
    match message:
        case clients.InferReply():
            try:
                return from_reply(message, frames)
            except MainspringError as error:
                return error
        case clients.ErrorReply():
            return error_of(message)
        case clients.ModelList():
            return message.models
        case clients.StatusReply():
            return message.status
        case _:
            return None
