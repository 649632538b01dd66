"""Many calls in flight on one connection, from any thread, each with a future; the thread behind `Client`.

One background thread owns the `Connection`. Callers hand it their calls through a queue and get a `Call`,
which is a `concurrent.futures.Future`. Requests wait in an `Outbox` until they may be sent, and are sent with
what is left of their SLO then. Every call ends: with its reply, when the connection breaks, by its deadline
while it waits here, or by its guard if the gateway never answers.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import socket as sockets
import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

from mainspring.client.connection import Connection, refused
from mainspring.client.errors import (
    GatewayUnreachable,
    MainspringError,
    Overloaded,
    TimedOut,
    error_of,
)
from mainspring.client.memory import ClientMemory
from mainspring.client.outbox import Outbox
from mainspring.client.requests import Call, InferCall, Requests
from mainspring.client.result import from_reply
from mainspring.messages import clients

MAX_CALLS = 65_536
"""Calls without a reply in all; one more is refused here as overloaded."""
_IDLE_S = 60.0
_SPARE_TIMERS = 1_024


class Channel:
    """The background thread and its connection."""

    def __init__(
        self,
        address: str,
        name: str,
        connect_timeout_s: float,
        token: str | None = None,
        outbox: Outbox | None = None,
        memory: ClientMemory | None = None,
        curve_key: str | None = None,
    ) -> None:
        self.address = address
        self._connect_timeout_ns = round(connect_timeout_s * 1e9)
        self._wake_read, self._wake_write = sockets.socketpair()
        self._wake_read.setblocking(False)
        self._connection = Connection(
            address,
            name,
            token=token,
            curve_key=curve_key,
            wakes=self._wake_read.fileno(),
            memory=memory,
        )
        self._requests = Requests(self._connection, Outbox() if outbox is None else outbox, self)
        self._keys = itertools.count(1)
        self._commands: deque[Call] = deque()
        self._unsent: deque[Call] = deque()
        """Questions and changes, which go before requests."""
        self._calls: dict[int, Call] = {}
        self._timers: list[tuple[int, int]] = []
        self._links_lost = 0
        self._closing = False
        self._lock = threading.Lock()
        self._woken = False
        self._thread = threading.Thread(target=self._run, name=f"mainspring {address}", daemon=True)
        self._thread.start()

    # --- callers' threads ---

    def next_key(self) -> int:
        """Return a key for a message to `call`."""
        return next(self._keys)

    @property
    def shares_memory(self) -> bool:
        """Return whether the gateway reads large inputs in this client's memory."""
        return self._connection.shares_memory

    @property
    def welcome(self) -> clients.ClientWelcome | None:
        """The gateway's welcome; None while there is no connection."""
        return self._connection.welcome

    def call(self, message: Any, patience_s: float = 10.0) -> Call:
        """Send a question or change when the gateway has welcomed this client; return the reply to come.

        ``patience_s`` is how long after sending it the call is given up. Raises `Overloaded`.
        """
        return self._begin(Call(self, message, monotonic_ns(), patience_s))

    def infer(
        self,
        message: clients.InferRequest,
        frames: Sequence[memoryview],
        called_ns: int,
        patience_s: float,
        *,
        awaited: bool = False,
    ) -> InferCall:
        """Have a request wait for its turn and return its result to come.

        ``patience_s`` is how long after the call it is given up; if it is ``awaited``, `InferCall.landed` is
        to be called once the caller has the result. Raises `Overloaded`.
        """
        call = InferCall(self, message, frames, called_ns, patience_s, awaited=awaited)
        self._begin(call)
        return call

    def landed(self, call: InferCall, now_ns: int) -> None:
        """The caller has the outcome of a call now."""
        self._requests.landed(call, now_ns)

    def _begin(self, call: Call) -> Call:
        if len(self._calls) + len(self._commands) >= MAX_CALLS:
            raise Overloaded(f"{MAX_CALLS} calls to {self.address} wait for their replies")
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
                self._connection.poll(self._wait_ms())
                self._take_commands()
                self._receive()
                self._requests.refuse_hopeless()
                self._send_questions()
                self._requests.send()
                self._expire()
        finally:
            with self._lock:
                self._closing = True
            # Before the connection is closed: the gateway still learns of a cancelled call.
            self._take_commands()
            self._fail_all("the client was closed before the reply came")
            self._connection.close()
            self._wake_read.close()
            self._wake_write.close()

    def _wait_ms(self) -> int:
        now_ns = monotonic_ns()
        wait_ns = round(_IDLE_S * 1e9)
        if self._timers:
            wait_ns = min(wait_ns, self._timers[0][0] - now_ns)
        requests_ns = self._requests.next_wakeup_ns(now_ns)
        if requests_ns is not None:
            wait_ns = min(wait_ns, requests_ns - now_ns)
        if self._connection.hello_at is not None:
            wait_ns = min(wait_ns, round(self._connection.hello_at * 1e9) - now_ns)
        return 0 if wait_ns <= 0 else wait_ns // 1_000_000 + 1

    def _take_commands(self) -> None:
        with self._lock:
            if self._woken:
                self._woken = False
                self._wake_read.recv(16)
        while self._commands:
            call = self._commands.popleft()
            if call.cancelled():
                self._cancelled(call)
                continue
            self._calls[call.message.key] = call
            self.wake_at(call, call.called_ns + self._connect_timeout_ns)
            if isinstance(call, InferCall):
                self._requests.add(call)
            else:
                self._unsent.append(call)
        self._requests.learn()

    def _cancelled(self, call: Call) -> None:
        """Tell the gateway of a cancelled call, which may not have been sent yet, or have ended."""
        if call.ended:
            return
        if call.sent:
            self._send_cancel(call)
        self.end(call, None)

    def _send_cancel(self, call: Call) -> None:
        with contextlib.suppress(MainspringError):
            self._connection.send(clients.CancelRequest(call.message.key))

    def _send_questions(self) -> None:
        """Send the questions and changes that wait, if the gateway has welcomed this client."""
        while self._unsent and self._connection.welcome is not None:
            call = self._unsent.popleft()
            if self._calls.get(call.message.key) is not call:
                continue
            try:
                self._connection.send(call.message)
            except MainspringError as error:
                self.end(call, error)
                continue
            call.sent = True
            self.wake_at(call, monotonic_ns() + round(call.patience_s * 1e9))

    def _receive(self) -> None:
        while (received := self._connection.receive()) is not None:
            message, frames = received
            now_ns = monotonic_ns()
            key = getattr(message, "key", -1)
            self._requests.read(key, message, now_ns)
            call = self._calls.get(key)
            if call is None or isinstance(message, clients.Received):
                continue
            outcome = _outcome(message, frames, call, now_ns)
            if isinstance(call, InferCall) and isinstance(message, clients.InferReply | clients.ErrorReply):
                self._requests.replied(call, message, frames)
            self.end(call, outcome)
        if self._connection.link_lost != self._links_lost:
            self._links_lost = self._connection.link_lost
            self._link_lost()
        if self._connection.refusal is not None:
            for call in list(self._calls.values()):
                self.end(call, refused(self.address, self._connection.refusal))

    def _link_lost(self) -> None:
        """Fail the calls that were sent; those that wait may be sent on the next link, if one comes soon."""
        self._requests.link_lost()
        again_ns = monotonic_ns() + self._connect_timeout_ns
        broke = f"the connection to the gateway at {self.address} broke before the reply came"
        for call in list(self._calls.values()):
            if call.sent:
                self.end(call, GatewayUnreachable(f"{broke}; send it again once the gateway is back"))
            else:
                self.wake_at(call, again_ns)

    def wake_at(self, call: Call, at_ns: int) -> None:
        """Set a call's one timer."""
        call.wake_ns = at_ns
        heapq.heappush(self._timers, (at_ns, call.message.key))
        if len(self._timers) > 2 * len(self._calls) + _SPARE_TIMERS:
            self._timers = [(each.wake_ns, key) for key, each in self._calls.items()]
            heapq.heapify(self._timers)

    def _expire(self) -> None:
        now_ns = monotonic_ns()
        while self._timers and self._timers[0][0] <= now_ns:
            at_ns, key = heapq.heappop(self._timers)
            call = self._calls.get(key)
            if call is None or call.wake_ns != at_ns:
                continue
            until_ns = call.called_ns + round(call.patience_s * 1e9)
            if not call.sent and self._connection.welcome is not None and now_ns < until_ns:
                # It waits for its turn.
                self.wake_at(call, until_ns)
                continue
            if call.sent and isinstance(call, InferCall):
                self._send_cancel(call)
            self.end(call, self._unanswered(call, now_ns))

    def _unanswered(self, call: Call, now_ns: int) -> MainspringError:
        if not call.sent:
            return self._requests.unsent_outcome(call, now_ns)
        return TimedOut(f"the gateway at {self.address} did not answer in {call.patience_s:g} s")

    def _fail_all(self, why: str) -> None:
        for call in list(self._calls.values()):
            self.end(call, GatewayUnreachable(f"{why} ({self.address})"))

    def end(self, call: Call, outcome: object) -> None:
        """Set a call's outcome: an exception is raised by its `result`, anything else returned."""
        self._calls.pop(call.message.key, None)
        call.ended = True
        if isinstance(call, InferCall):
            call.frames = ()
            self._requests.ended(call)
        if not call.set_running_or_notify_cancel():
            return
        if isinstance(outcome, BaseException):
            call.set_exception(outcome)
        else:
            call.set_result(outcome)


def _outcome(message: object, frames: list[Any], call: Call, now_ns: int) -> object:
    """Return what a reply means to the caller."""
    match message:
        case clients.InferReply():
            try:
                elapsed_ns = now_ns - call.called_ns
                return from_reply(message, frames, elapsed_ns, call.message.slo_ns)
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
