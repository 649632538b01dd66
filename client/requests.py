"""The calls of one connection: requests that wait until they may be sent, and those on their way.

What waits in a socket's buffers can neither be reordered nor taken back, and its time runs unseen. So no
more bytes are on their way than keep the gateway busy; the rest waits here, the nearest deadline first, best
effort last. The gateway acknowledges what it has read (`messages.clients.Received`).

`Surplus` finds the requests that will not be sent in time as things go. A thousand calls at once with one
deadline would otherwise all be refused at one moment, just before it: as late as possible, and too many to
hand over in time. The number of requests sent in the last moments says how many more can be sent until a
deadline; the number of each model's answers says how many more will be answered, those on their way first. A
request that stands behind twice as many is refused now.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from os import getpid
from time import monotonic_ns
from typing import Any, Protocol

from mainspring.client.errors import GatewayUnreachable
from mainspring.messages import clients
from mainspring.messages.delays import Delays, Smoothed

_SPARE_S = 30.0
"""Time beyond a call's own patience to connect and to hand its outcome over."""


class Calls(Protocol):
    """The owner of the calls: the channel."""

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
        self.calls = calls
        self.message = message
        self.called_ns = self.since_ns = called_ns
        """Instant of the call, on this process's monotonic clock, and since when its gateway has had it."""
        self.patience_s = patience_s
        """Time after the call at which it is given up without a reply."""
        self.wake_ns = 0
        """Its one timer."""
        self.sent = False
        self.sendings = 0
        """Number of times that it was sent and had no reply from its gateway."""
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
        self.calls.cancel(self)
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
        self.calls.landed(self, now_ns)


MAX_UNREAD_BYTES = 4 << 20
"""Bytes on their way to the gateway by default; a larger message goes alone."""
_ACKNOWLEDGED_PARTS = 8
"""An acknowledgement is requested after this part of the bound."""
ACKNOWLEDGE_EVERY_NS = 1_000_000_000
"""The longest time between two requests for an acknowledgement, which also measures a round trip."""
_REFUSAL_NS = 200_000
"""Approximate time to hand one refusal to its caller: a thousand of one deadline take longer than one."""
_LEAST_SHARE = 64
_LARGEST_SHARE = 4
"""Bounds, as divisors of its SLO, of the time before its deadline at which a waiting request is refused."""
_NEVER_NS = 1 << 62

_SPAN_NS = 500_000_000
"""The pace is measured over this span."""
_LEAST_SPAN_NS = 100_000_000
"""The pace is unknown until requests have waited for this long."""
_LEAST_COUNT = 8
"""The pace is unknown until this number of requests was sent in the span, or answered."""
_PERIOD_NS = 20_000_000
_EACH_NS = 5_000
"""The time between two checks of the waiting requests: `_PERIOD_NS`, or this for each of them if longer."""
_MOST_AT_ONCE = 32
"""Requests refused at one check, so that answers pass between refusals."""
_DOUBT = 2
"""The factor by which the pace may still rise."""


class Outbox:
    """See the module's docstring."""

    def __init__(self, max_in_flight: int | None = None, max_unread_bytes: int = MAX_UNREAD_BYTES) -> None:
        """``max_in_flight`` bounds the requests without an answer; None for what the gateway allows.

        ``max_unread_bytes`` bounds what was sent and may not have been read. Raises ValueError below 1.
        """
        if max_in_flight is not None and max_in_flight < 1:
            raise ValueError(f"max_in_flight is {max_in_flight}; it is a number of requests, at least 1")
        if max_unread_bytes < 1:
            raise ValueError(f"max_unread_bytes is {max_unread_bytes}; it is a number of bytes, at least 1")
        self._most = max_in_flight
        self._max_unread_bytes = max_unread_bytes
        self._waiting: list[tuple[int, int, InferCall]] = []
        self._unread: dict[int, tuple[int, int]] = {}
        """Bytes and instant of what was sent and is not known to be read, by key, in order."""
        self._unread_bytes = 0
        self._since_request_bytes = 0
        """Bytes sent since an acknowledgement was last requested."""
        self._request_ns = -_NEVER_NS
        self._surplus = Surplus()
        self._best_effort: set[int] = set()
        """Keys of the best-effort requests in flight."""
        self._in_flight: dict[int, InferCall] = {}
        """Requests that were sent and have no answer, by key."""

    def __len__(self) -> int:
        return len(self._waiting)

    def in_flight(self) -> Iterable[InferCall]:
        """Return the requests that were sent and have no answer."""
        return self._in_flight.values()

    def add(self, call: InferCall) -> None:
        """Have a request wait for its turn."""
        due_ns = _NEVER_NS if call.deadline_ns is None else call.deadline_ns
        heapq.heappush(self._waiting, (due_ns, call.message.key, call))

    def next(self, allowed: int, *, acknowledged: bool) -> InferCall | None:
        """Take out the request that is to be sent now; None if there is none, or no room.

        ``allowed`` is what the gateway lets one connection have in flight; without ``acknowledged`` bytes are
        not bounded, for nothing would show when they are read.
        """
        self._forget_ended()
        if not self._waiting:
            return None
        most = allowed if self._most is None else min(allowed, self._most)
        call = self._waiting[0][2]
        # Best effort may wait at the gateway for idle time, and must not keep others from it meanwhile.
        held = self._best_effort if call.deadline_ns is None else self._in_flight
        if len(self._in_flight) >= most or (held is self._best_effort and len(held) >= max(1, most // 2)):
            return None
        if acknowledged and self._unread and self._unread_bytes + call.size_bytes > self._max_unread_bytes:
            return None
        heapq.heappop(self._waiting)
        return call

    def take_all(self) -> list[InferCall]:
        """Take out all requests that wait, in order."""
        waiting, self._waiting = sorted(self._waiting), []
        return [call for *_, call in waiting if not call.ended]

    def hopeless(self, now_ns: int, back_ns: int) -> InferCall | None:
        """Take out a request whose deadline is too near for its refusal to wait any longer; None if there is
        none.

        ``back_ns`` is what it takes to its caller; those that wait behind it take some time too.
        """
        at_ns = self.next_wakeup_ns(back_ns)
        return None if at_ns is None or now_ns < at_ns else heapq.heappop(self._waiting)[2]

    def next_wakeup_ns(self, back_ns: int) -> int | None:
        """Return when `hopeless` has something next if nothing else happens."""
        self._forget_ended()
        if not self._waiting or (deadline_ns := self._waiting[0][2].deadline_ns) is None:
            return None
        slo_ns = deadline_ns - self._waiting[0][2].called_ns
        needed_ns = back_ns + len(self._waiting) * _REFUSAL_NS
        return deadline_ns - max(slo_ns // _LEAST_SHARE, min(needed_ns, slo_ns // _LARGEST_SHARE))

    def next_look_ns(self) -> int | None:
        """Return when `surplus` is to be called next."""
        return self._surplus.next_look_ns() if self._waiting else None

    def _forget_ended(self) -> None:
        while self._waiting and self._waiting[0][2].ended:
            heapq.heappop(self._waiting)

    def surplus(self, now_ns: int) -> list[InferCall]:
        """Return requests that stand too far behind to be sent in time; they stay until they have ended."""
        self._forget_ended()
        if not self._waiting:
            self._surplus.idle()
            return []
        if now_ns < self._surplus.next_look_ns():
            return []
        self._waiting = sorted([each for each in self._waiting if not each[2].ended])
        waiting = [each[2] for each in self._waiting if each[0] != _NEVER_NS]
        sent = [each for each in self._in_flight.values() if each.deadline_ns is not None]
        return self._surplus.of(now_ns, waiting, sent)

    def acknowledgement_due(self, now_ns: int, call: InferCall) -> bool:
        """Return whether this request is to request an acknowledgement too."""
        part = self._max_unread_bytes // _ACKNOWLEDGED_PARTS
        return (
            self._since_request_bytes + call.size_bytes >= part
            or now_ns - self._request_ns > ACKNOWLEDGE_EVERY_NS
        )

    def sent(self, now_ns: int, call: InferCall, *, acknowledge: bool) -> None:
        """Count a request that went out."""
        key = call.message.key
        self._surplus.sent()
        self._in_flight[key] = call
        if call.deadline_ns is None:
            self._best_effort.add(key)
        self._unread[key] = (call.size_bytes, now_ns)
        self._unread_bytes += call.size_bytes
        if acknowledge:
            self._since_request_bytes, self._request_ns = 0, now_ns
        else:
            self._since_request_bytes += call.size_bytes

    def read(self, key: int) -> int | None:
        """Note that the gateway has read this request; return when it was sent, None if that was known."""
        if key not in self._unread:
            return None
        while True:
            # What was sent before it was read before it.
            found = next(iter(self._unread))
            size, sent_ns = self._unread.pop(found)
            self._unread_bytes -= size
            if found == key:
                return sent_ns

    def answered(self, call: InferCall) -> None:
        """Note that the outputs of a request have come."""
        if self._waiting:
            self._surplus.answered(call.message.model)

    def ended(self, key: int) -> None:
        """Note that a request is not in flight any more."""
        self._in_flight.pop(key, None)
        self._best_effort.discard(key)

    def link_lost(self) -> None:
        """Note that nothing is on its way any more."""
        self._unread.clear()
        self._in_flight.clear()
        self._best_effort.clear()
        self._unread_bytes = self._since_request_bytes = 0
        self._request_ns = -_NEVER_NS

    def validate(self) -> None:
        """Check that the counts say what the queues hold; raise AssertionError."""
        held = sum(size for size, _ in self._unread.values())
        assert held == self._unread_bytes, f"{held} bytes are unread, {self._unread_bytes} counted"
        stray = self._best_effort - self._in_flight.keys()
        assert not stray, f"{stray} not in flight"


class Surplus:
    """The pace at which requests are sent and answered while others wait, and the requests too far behind."""

    def __init__(self) -> None:
        self._sent = 0
        self._answered: Counter[str] = Counter()
        """Number of answered requests by model."""
        self._marks: deque[tuple[int, int, Counter[str]]] = deque()
        """Instants of checks, and the numbers sent and answered by then."""
        self._next_ns = 0

    def sent(self) -> None:
        """Count a request that was sent."""
        self._sent += 1

    def answered(self, model: str) -> None:
        """Count a request that was answered with outputs, while others wait."""
        self._answered[model] += 1

    def idle(self) -> None:
        """Note that nothing waits: what was sent until now says nothing of the pace."""
        if self._marks:
            self._marks.clear()
            self._answered.clear()

    def next_look_ns(self) -> int:
        """Return when `of` is to be called next, if anything waits."""
        return self._next_ns

    def of(self, now_ns: int, waiting: list[InferCall], sent: Iterable[InferCall]) -> list[InferCall]:
        """Return those that wait, nearest deadline first, and can hardly be sent, or answered, in time.

        ``sent`` are those that were sent and have no outcome; all have a deadline.
        """
        if now_ns < self._next_ns:
            return []
        if now_ns - self._next_ns > _LEAST_SPAN_NS:
            # Nothing waited for a while.
            self._marks.clear()
        self._next_ns = now_ns + max(_PERIOD_NS, _EACH_NS * len(waiting))
        self._marks.append((now_ns, self._sent, self._answered.copy()))
        while now_ns - self._marks[0][0] > _SPAN_NS:
            self._marks.popleft()
        since_ns, sent_before, answered_before = self._marks[0]
        count, span_ns = self._sent - sent_before, now_ns - since_ns
        if span_ns < _LEAST_SPAN_NS or count < _LEAST_COUNT:
            return []
        answered = self._answered - answered_before
        kept, surplus = 0, []
        before: Counter[str] = Counter()
        """Number of requests before this one, sent or waiting, by model."""
        for deadline_ns, waits, _, call in _by_deadline(waiting, sent):
            model, spans_left = call.message.model, _DOUBT * (deadline_ns - now_ns) / span_ns
            slow = answered[model] >= _LEAST_COUNT and before[model] > spans_left * answered[model]
            if waits and (slow or kept > spans_left * count):
                surplus.append(call)
            else:
                kept += waits
                before[model] += 1
        # The last ones first: of one deadline, those that were called last.
        return surplus[-_MOST_AT_ONCE:]


def _by_deadline(
    waiting: Iterable[InferCall], sent: Iterable[InferCall]
) -> list[tuple[int, bool, int, InferCall]]:
    """Return deadline, whether it waits, key and call of all, the nearest deadline first."""
    both = (
        (call.deadline_ns or 0, waits, call.message.key, call)
        for calls, waits in ((sent, False), (waiting, True))
        for call in calls
    )
    return sorted(both)


"""Divisor of an SLO: at most 1/4 is reserved for the way back, so that one bad moment can't end all
service."""
_MODELS = 4_096
"""Models whose answers' sizes are remembered."""


class Paths:
    """Both ways of one connection; instants are on the client's clock unless stated otherwise."""

    def __init__(self) -> None:
        self._back = Delays()
        self._least_round_ns: int | None = None
        self._estimates: dict[int, Smoothed] = {}
        self._bytes_of: dict[str, int] = {}

    @property
    def one_way_ns(self) -> int:
        """Half of the fastest round trip: what no comparison of clocks can show."""
        return 0 if self._least_round_ns is None else self._least_round_ns // 2

    def round_trip(self, took_ns: int) -> None:
        """Learn from a message and its acknowledgement."""
        if self._least_round_ns is None or took_ns < self._least_round_ns:
            self._least_round_ns = max(0, took_ns)

    def came_back(self, left_gateway_ns: int, now_ns: int, size_bytes: int, model: str | None = None) -> None:
        """Learn from an answer that is with its caller now.

        ``left_gateway_ns`` is on the gateway's clock; ``model`` is whose answers have this size, None for an
        answer without outputs.
        """
        sample_ns = self._back.held_ns(left_gateway_ns, now_ns) + self.one_way_ns
        size_class = size_bytes.bit_length()
        known = self._estimates.get(size_class)
        if known is None:
            self._estimates[size_class] = Smoothed(sample_ns, now_ns)
        else:
            known.learn(sample_ns, now_ns)
        if model is not None:
            if len(self._bytes_of) >= _MODELS:
                self._bytes_of.clear()
            self._bytes_of[model] = size_bytes

    def slowest_ns(self, now_ns: int) -> int:
        """Return what an answer of the slowest size is expected to take to its caller."""
        return max((each.expected_ns(now_ns) for each in self._estimates.values()), default=0)

    def back_ns(self, now_ns: int, model: str, slo_ns: int) -> int:
        """Return what an answer for ``model`` is expected to take to its caller, at most a share of its SLO.

        Before the model's first answer it is that of the slowest size known.
        """
        size_class = self._bytes_of.get(model, -1).bit_length()
        found = self._estimates.get(size_class) if model in self._bytes_of else None
        expected_ns = self.slowest_ns(now_ns) if found is None else found.expected_ns(now_ns)
        return min(expected_ns, max(0, slo_ns) // _LARGEST_SHARE)
