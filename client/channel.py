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
from collections.abc import Callable, Sequence
from os import getpid
from time import monotonic_ns
from typing import Any, Generic, TypeVar

import msgspec

from mainspring.client.connection import Connection, refused
from mainspring.client.deadlines import format_duration
from mainspring.client.errors import (
    DeadlinePassed,
    DeadlineUnreachable,
    GatewayUnreachable,
    MainspringError,
    Overloaded,
    TimedOut,
    error_of,
)
from mainspring.client.memory import ClientMemory
from mainspring.client.requests import Call, InferCall, Outbox, Paths
from mainspring.client.result import from_reply
from mainspring.messages import clients, learning
from mainspring.messages.codes import Reason

MAX_CALLS = 65_536
"""Calls without a reply in all; one more is refused here as overloaded."""
_BURST = 16
"""Most requests that are sent before replies are read again."""
_IDLE_S = 60.0
_SPARE_TIMERS = 1_024


T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value for each process, made where it is first asked for.

    What other processes made is never touched: not even to be closed, as the sockets in it are shared.
    """

    def __init__(self, make: Callable[[], T], discard: Callable[[T], object] = lambda _: None) -> None:
        """``discard`` is given what a thread made at the same time as another one, and nobody uses."""
        self._make = make
        self._discard = discard
        self._made: dict[int, T] = {}

    def get(self) -> T:
        """Return this process's; raises what making it raises."""
        own = getpid()
        found = self._made.get(own)
        if found is None:
            made = self._make()
            # Without a lock, which might be another thread's at the instant of a fork.
            found = self._made.setdefault(own, made)
            if found is not made:
                self._discard(made)
        return found

    def made(self) -> T | None:
        """Return this process's, None if it has none."""
        return self._made.get(getpid())


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
        vigilance: int = 1,
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
            vigilance=vigilance,
        )
        self._outbox = Outbox() if outbox is None else outbox
        self._paths = Paths()
        self._landed: deque[tuple[InferCall, int]] = deque()
        self._more = False
        """True if requests may be sent at once that were not."""
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
        if call.left_gateway_ns is not None:
            self._landed.append((call, now_ns))

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
                self._refuse_hopeless()
                self._send_questions()
                self._send_requests()
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
        requests_ns = self._requests_due_ns(now_ns)
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
            self._enter(call)
        self._learn_landed()

    def _enter(self, call: Call) -> None:
        """Have a call wait for its turn, and for a gateway as long as it takes to connect."""
        self._calls[call.message.key] = call
        self.wake_at(call, call.since_ns + self._connect_timeout_ns)
        if isinstance(call, InferCall):
            self._outbox.add(call)
        else:
            self._unsent.append(call)

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
            self._read(key, message, now_ns)
            call = self._calls.get(key)
            if call is None or isinstance(message, clients.Received):
                continue
            outcome = _outcome(message, frames, call, now_ns)
            if isinstance(call, InferCall) and isinstance(message, clients.InferReply | clients.ErrorReply):
                self._replied(call, message, frames)
            self.end(call, outcome)
        if self._connection.link_lost != self._links_lost:
            self._links_lost = self._connection.link_lost
            self._link_lost()
        if self._connection.refusal is not None:
            self._refused()

    def _refused(self) -> None:
        for call in list(self._calls.values()):
            if self._connection.refusal is not None:
                self.end(call, refused(self.address, self._connection.refusal))

    def _link_lost(self) -> None:
        """Fail the calls that were sent; those that wait may be sent on the next link, if one comes soon."""
        self._outbox.link_lost()
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
            return self._unsent_outcome(call, now_ns)
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
            self._outbox.ended(call.message.key)
        if not call.set_running_or_notify_cancel():
            return
        if isinstance(outcome, BaseException):
            call.set_exception(outcome)
        else:
            call.set_result(outcome)

    def _learn_landed(self) -> None:
        """Learn from what has landed."""
        while self._landed:
            self._learn(*self._landed.popleft())

    def _requests_due_ns(self, now_ns: int) -> int | None:
        """Return when there is something to do next, if nothing else happens."""
        if self._more:
            return now_ns
        hopeless_ns = self._outbox.next_wakeup_ns(self._paths.slowest_ns(now_ns))
        found = [each for each in (hopeless_ns, self._outbox.next_look_ns()) if each is not None]
        return min(found, default=None)

    def _send_requests(self) -> None:
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
                self.end(call, _passed(call, now_ns))
                return
        acknowledge = acknowledges and self._outbox.acknowledgement_due(now_ns, call)
        message = msgspec.structs.replace(
            message, slo_ns=left_ns, sent_ns=now_ns, back_ns=back_ns, acknowledge=acknowledge
        )
        try:
            self._connection.send(message, call.frames)
        except MainspringError as error:
            self.end(call, error)
            return
        call.sent = True
        self._outbox.sent(now_ns, call, acknowledge=acknowledge)
        self.wake_at(call, call.called_ns + round(call.patience_s * 1e9))

    def _refuse_hopeless(self) -> None:
        """Refuse what waits here and has no time left, before its deadline."""
        now_ns = monotonic_ns()
        back_ns = self._paths.slowest_ns(now_ns)
        while (call := self._outbox.hopeless(now_ns, back_ns)) is not None:
            self.end(call, self._unsent_outcome(call, now_ns))
            now_ns = monotonic_ns()
        if self._connection.welcome is not None:
            for call in self._outbox.surplus(now_ns):
                self.end(call, _too_many(call, len(self._outbox), now_ns))

    def _unsent_outcome(self, call: Call, now_ns: int) -> MainspringError:
        """Return why a call ends that was never sent."""
        if self._connection.welcome is None:
            return self._connection.unreachable(float(f"{(now_ns - call.called_ns) / 1e9:.2g}"))
        return _passed(call, now_ns)

    def _read(self, key: int, message: object, now_ns: int) -> None:
        """Note from a message of the gateway's that it has read a request."""
        if (sent_ns := self._outbox.read(key)) is not None and isinstance(message, clients.Received):
            self._paths.round_trip(now_ns - sent_ns)

    def _replied(
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
        case clients.GraphList():
            return message.graphs
        case clients.ApplicationList():
            return message.applications
        case clients.StatusReply():
            return message.status
        case learning.Observed() | clients.BestItems():
            return message
        case _:
            return None


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
