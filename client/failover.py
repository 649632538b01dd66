"""Several gateways of one cluster as one: a call goes to one of them, and to another when that is lost.

Each gateway has a `Channel` of its own, which stays connected. Calls go to the first that answers, and stay
with it while it does. What was sent to a gateway and has no reply when its connection breaks is sent again
through another one, with the time that is left: requests, and questions that change nothing. A request may
so be executed twice; its caller gets one reply, since a broken connection brings none. Not sent again are

* changes, which may have been made: the error says so;
* requests that go on with a sequence, whose state was in the lost gateway: `UnknownSequence`;
* feedback, which may have been learnt from. It goes to the gateway that gave the answer, and to no other.

A gateway that drains is left for another one at once; one that says nothing at all after 1.5 s. Where that
is too late for a request, `silence` finds out sooner: then requests of its gateway are sent elsewhere while
the connection stands. They are cancelled there, and a reply that comes all the same is nobody's.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic_ns
from typing import Any, Final

import msgspec

from mainspring.client.channel import Channel
from mainspring.client.connection import refused
from mainspring.client.errors import (
    GatewayUnreachable,
    MainspringError,
    ShuttingDown,
    Unauthenticated,
    UnknownSequence,
)
from mainspring.client.memory import ClientMemory
from mainspring.client.requests import Call, InferCall, Outbox
from mainspring.client.result import InferResult
from mainspring.client.silence import Silence
from mainspring.messages import clients
from mainspring.messages.codes import Reason
from mainspring.messages.learning import Observe

VIGILANCE: Final = 4
"""A gateway that says nothing for 0.5 s is asked for a sign of life, and has 1 s to answer."""
MOST_SENDINGS: Final = 5
"""A call is sent no more often: it may be what breaks the gateways."""
MOST_PLACES: Final = 65_536
"""Sequences, and answers that feedback may come for, whose gateway is remembered."""
_QUERIES: Final = "?"
"""Beginning of a key whose number is a query's, not a sequence's; an application's name follows."""
_SENT_AGAIN: Final = (
    *(clients.InferRequest, clients.ListModels, clients.ListGraphs, clients.ListApplications),
    *(clients.GetStatus, clients.TopK),
)
"""Requests, and questions that change nothing."""


class Gateways:
    """The gateways of one client, with the methods of `Channel`; used from any thread."""

    def __init__(
        self,
        addresses: Sequence[str],
        name: str,
        connect_timeout_s: float,
        token: str | None,
        outbox: Callable[[], Outbox],
        memory: ClientMemory,
        curve_key: str | None,
    ) -> None:
        """Begin to connect to each; ``outbox`` makes what bounds the requests at one of them."""
        self.address = ", ".join(addresses)
        self._keys = itertools.count(1)
        self._at = 0
        """Number of the one that calls go to."""
        self._members: list[Member] = []
        self._lock = threading.Lock()
        self._places: dict[tuple[str, int | str], Member] = {}
        """The gateway of sequences, by model and id, and of answers, by application and query."""
        try:
            for address in addresses:
                told = (name, connect_timeout_s, token, outbox(), memory, curve_key, VIGILANCE)
                self._members.append(Member(self, address, *told))
        except BaseException:
            self.close()
            raise

    def next_key(self) -> int:
        """Return a key for a message to `call`."""
        return next(self._keys)

    @property
    def shares_memory(self) -> bool:
        """Return whether the gateway that calls go to reads large inputs in this client's memory."""
        return self._present().shares_memory

    @property
    def welcome(self) -> clients.ClientWelcome | None:
        """The welcome of the gateway that calls go to; None while there is none."""
        return self._present().welcome

    def call(self, message: Any, patience_s: float = 10.0) -> Call:
        """Send a question or change; as `Channel.call`."""
        return self._member_for(message).call(message, patience_s)

    def infer(
        self,
        message: clients.InferRequest,
        frames: Sequence[memoryview],
        called_ns: int,
        patience_s: float,
        *,
        awaited: bool = False,
    ) -> InferCall:
        """Have a request wait for its turn; as `Channel.infer`."""
        member = self._member_for(message)
        return member.infer(message, frames, called_ns, patience_s, awaited=awaited)

    def close(self) -> None:
        """End all connections; calls without a reply fail."""
        for member in self._members:
            member.close()

    # --- for the members, each from its thread ---

    def other_than(self, member: Member) -> Member | None:
        """Return another gateway that is there, None if there is none."""
        chosen = self._present()
        return chosen if chosen is not member and chosen.answers else self._first_but(member)

    def arrived(self, member: Member) -> None:
        """A gateway is there now: the others give it what waits for them in vain."""
        for other in self._members:
            if other is not member and other.welcome is None:
                other.look()

    def settle(self, message: Any, member: Member) -> None:
        """Remember where a sequence begins."""
        if isinstance(message, clients.InferRequest) and message.sequence_start:
            self._remember(message.model, message.sequence_id, member)

    def answered(self, application: str, query_id: int, member: Member) -> None:
        """Remember who gave an answer that feedback may come for."""
        self._remember(_QUERIES + application, query_id, member)

    def forget_sequences(self, member: Member) -> None:
        """A gateway is lost, and the states of its sequences with it."""
        with self._lock:
            held = [key for key, place in self._places.items() if place is member]
            for key in (each for each in held if not each[0].startswith(_QUERIES)):
                del self._places[key]

    def place_of(self, message: Any) -> Member | None:
        """Return the one gateway that a message has to go to; None if it may go to any."""
        match message:
            case clients.InferRequest(sequence_id=name, model=model) if name and not message.sequence_start:
                return self._places.get((model, name))
            case clients.EndSequence(model=model, sequence_id=name):
                return self._places.get((model, name))
            case Observe(application=application, query_id=query_id):
                return self._places.get((_QUERIES + application, query_id))
        return None

    def unreachable(self, waited_s: float) -> MainspringError:
        """Return the error of a call that no gateway takes: it names each, and what is wrong there."""
        troubles = [member.trouble() for member in self._members]
        said = "; ".join(each.detail for each in troubles)
        if all(isinstance(each, Unauthenticated) for each in troubles):
            return Unauthenticated(said, Reason.UNAUTHENTICATED)
        return GatewayUnreachable(f"none of {len(troubles)} gateways answers within {waited_s:.2g} s: {said}")

    def all_refuse(self) -> bool:
        """Return whether no gateway will have this client."""
        return all(member.refusal is not None for member in self._members)

    def _present(self) -> Member:
        """Return the gateway that calls go to: the one before while it is there, else the first that is."""
        member = self._members[self._at]
        if not member.answers and (other := self._first_but(member)) is not None:
            self._at = self._members.index(other)
            return other
        return member

    def _first_but(self, member: Member) -> Member | None:
        there = (each for each in self._members if each is not member and each.answers)
        return next(there, None)

    def _member_for(self, message: Any) -> Member:
        member = self.place_of(message) or self._present()
        self.settle(message, member)
        return member

    def _remember(self, name: str, number: int | str, member: Member) -> None:
        with self._lock:
            self._places.pop((name, number), None)
            self._places[name, number] = member
            if len(self._places) > MOST_PLACES:
                del self._places[next(iter(self._places))]


class Member(Channel):
    """The channel to one gateway of several; what is protected runs in its own thread."""

    def __init__(self, gateways: Gateways, *told: Any) -> None:
        self._gateways = gateways
        self._there = False
        self._silence = Silence(monotonic_ns())
        self._trial: InferCall | None = None
        """The copy at another gateway of the request that is tried there."""
        self._tried: deque[InferCall] = deque()
        """Such copies that have ended."""
        super().__init__(*told)

    @property
    def refusal(self) -> clients.ClientRefused | None:
        """The reason why the gateway refuses this client, None if it does not."""
        return self._connection.refusal

    @property
    def answers(self) -> bool:
        """Return whether it is there, and gives replies as far as is known."""
        return self.welcome is not None and not self._silence.doubted(monotonic_ns())

    def trouble(self) -> MainspringError:
        """Return why it takes no calls."""
        refusal = self._connection.refusal or self._connection.turned_away
        if refusal is not None:
            return refused(self.address, refusal)
        return GatewayUnreachable(self._connection.unknown_host or f"nobody answers at {self.address}")

    def look(self) -> None:
        """Have its thread look whether another gateway is there; from any thread."""
        with self._lock:
            if not self._closing:
                self._wake()

    def take_over(self, call: Call) -> None:
        """Take a call that another gateway has given no reply; from any thread."""
        call.calls = self
        self._gateways.settle(call.message, self)
        self._command(call)

    def _cancelled(self, call: Call) -> None:
        if call.calls is self or call.ended:
            super()._cancelled(call)
        else:
            # It was handed over meanwhile.
            call.calls.cancel(call)

    def _receive(self) -> None:
        super()._receive()
        there = self.welcome is not None
        if there and not self._there:
            self._gateways.arrived(self)
        self._there = there
        if not there and self._calls and self._gateways.other_than(self) is not None:
            self._give_away()
        while self._tried:
            self._judge(self._tried.popleft())
        self._listen()

    # --- what has no reply while the connection stands ---

    def _requests_due_ns(self, now_ns: int) -> int | None:
        found = (super()._requests_due_ns(now_ns), self._silence.next_look_ns())
        return min((each for each in found if each is not None), default=None)

    def _replied(self, call: InferCall, *reply: Any) -> None:
        super()._replied(call, *reply)
        self._silence.heard(monotonic_ns())
        self._drop_trial()

    def _listen(self) -> None:
        """Try a request at another gateway that has had no reply here for too long."""
        sent = (call for call in self._outbox.in_flight() if _may_move(call))
        call = self._silence.look(monotonic_ns(), sent)
        if call is None:
            return
        other = self._gateways.other_than(self)
        if other is None:
            self._silence.undecided(monotonic_ns())
            return
        message = msgspec.structs.replace(call.message, key=self._gateways.next_key())
        trial = InferCall(other, message, call.frames, call.called_ns, call.patience_s)
        self._trial = trial
        trial.add_done_callback(partial(_ended, self))
        with suppress(GatewayUnreachable):
            other.take_over(trial)

    def tried(self, trial: InferCall) -> None:
        """Take in that a request has ended at another gateway; from any thread."""
        self._tried.append(trial)
        self.look()

    def _judge(self, trial: InferCall) -> None:
        """Leave this gateway if another one has answered what it has not."""
        call = self._silence.tried
        if trial is not self._trial or call is None:
            return
        self._trial = None
        if trial.cancelled() or trial.exception(0) is not None or call.ended or not call.sent:
            self._silence.undecided(monotonic_ns())
            return
        self._silence.confirmed(monotonic_ns())
        self._send_cancel(call)
        self.end(call, trial.result(0))
        for each in [each for each in self._outbox.in_flight() if _may_move(each)]:
            if self._may_go_on(each):
                each.sendings += 1
                self._send_cancel(each)
                self._again(each, renamed=True)
        if self._gateways.other_than(self) is not None:
            self._give_away()

    def _drop_trial(self) -> None:
        trial, self._trial = self._trial, None
        if trial is not None:
            trial.cancel()

    # --- what goes to another gateway ---

    def _give_away(self) -> None:
        """Give what waits here, and need not, to a gateway that is there."""
        questions = [call for call in self._unsent if not call.ended]
        self._unsent.clear()
        for call in (*self._outbox.take_all(), *questions):
            if self._gateways.place_of(call.message) is self:
                self._enter(call)
            else:
                self._again(call)

    def _refused(self) -> None:
        if self._gateways.all_refuse():
            for call in list(self._calls.values()):
                self.end(call, self._gateways.unreachable(0.0))

    def _link_lost(self) -> None:
        self._silence = Silence(monotonic_ns())
        self._drop_trial()
        self._outbox.link_lost()
        self._outbox.take_all()
        self._unsent.clear()
        self._gateways.forget_sequences(self)
        for call in list(self._calls.values()):
            error = self._lost(call) if call.sent else None
            if error is None:
                self._again(call)
            else:
                self.end(call, error)

    def _lost(self, call: Call) -> MainspringError | None:
        """Return the error of a call that was sent on the broken connection; None if it is sent again."""
        call.sendings += 1
        broke = f"the connection to the gateway at {self.address} broke before the reply came"
        match call.message:
            case clients.InferRequest(sequence_id=name, sequence_start=False) if name:
                return UnknownSequence(f"{broke}, and the state of the sequence was there")
            case message if isinstance(message, _SENT_AGAIN):
                if call.sendings < MOST_SENDINGS:
                    return None
                return GatewayUnreachable(f"it was sent {call.sendings} times, and each time {broke}")
            case Observe():
                return GatewayUnreachable(f"{broke}: it may have learnt of this feedback")
        return GatewayUnreachable(f"{broke}: the change may have been made; look before you try it again")

    def _again(self, call: Call, *, renamed: bool = False) -> None:
        """Have a call wait at a gateway that is there, or here if none is.

        ``renamed``: with another key, as it may come back to a connection over which it was cancelled.
        """
        call.sent, call.since_ns = False, monotonic_ns()
        del self._calls[call.message.key]
        if isinstance(call, InferCall):
            self._outbox.ended(call.message.key)
        if renamed:
            call.message = msgspec.structs.replace(call.message, key=self._gateways.next_key())
        other = self._gateways.place_of(call.message) or self._gateways.other_than(self) or self
        if other is self:
            self._enter(call)
            return
        try:
            other.take_over(call)
        except GatewayUnreachable as error:
            self.end(call, error)

    def _unsent_outcome(self, call: Call, now_ns: int) -> MainspringError:
        if self.welcome is None and self._gateways.place_of(call.message) is None:
            return self._gateways.unreachable((now_ns - call.called_ns) / 1e9)
        return super()._unsent_outcome(call, now_ns)

    def end(self, call: Call, outcome: object) -> None:
        """Set a call's outcome, unless its gateway refuses it because it stops and another one is there."""
        match outcome:
            case ShuttingDown() if self._may_go_on(call):
                call.sendings += 1
                self._again(call)
                return
            case InferResult() if outcome.timing.learnt is not None:
                self._gateways.answered(call.message.model, outcome.timing.learnt.query_id, self)
            case clients.BestItems():
                self._gateways.answered(call.message.application, outcome.query_id, self)
        super().end(call, outcome)

    def _may_go_on(self, call: Call) -> bool:
        goes_elsewhere = not call.cancelled() and self._gateways.place_of(call.message) is None
        return (
            goes_elsewhere and call.sendings < MOST_SENDINGS and self._gateways.other_than(self) is not None
        )


def _may_move(call: InferCall) -> bool:
    """Return whether another gateway may have a request that this one may yet answer."""
    return not call.message.sequence_id and not call.cancelled()


def _ended(member: Member, trial: Any) -> None:
    member.tried(trial)
