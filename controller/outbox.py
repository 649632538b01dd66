"""The messages that leave the controller: actions for workers, dispatches and rejections for gateways,
notices for all.

A session to which a message can't be sent is marked as broken and ends later (`PeerLifecycle.end_broken`):
the end of a session feeds the scheduler and sends further messages, and its cause is a message that is just
being sent.

What a turn of the scheduler has to say to one peer is gathered and leaves in one write.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from mainspring.controller.clock import PeerClock
from mainspring.controller.sessions import Session, SessionTable, WorkerSession
from mainspring.messages.actions import Action, Infer, Open, Reject, Timed
from mainspring.messages.codec import encode
from mainspring.messages.ids import gateway_of
from mainspring.messages.peers import Dispatch, Refused, Rejected
from mainspring.messages.queries import Chosen
from mainspring.transport.bounds import Delivery
from mainspring.transport.certificate import Certificate

ANSWER_INTERVAL_NS: Final = 50_000_000
"""A peer is sent the same code at most once in this time."""
PEERS_REMEMBERED: Final = 4096
"""(peer, code) pairs whose last answer is remembered; beyond it the oldest is forgotten."""


class Dropped:
    """Messages that could not be used or sent, by reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, why: str, messages: int = 1) -> None:
        """Count messages dropped for this reason."""
        self._counts[why] += messages

    def __getitem__(self, why: str) -> int:
        """Return how many messages were dropped for this reason."""
        return self._counts[why]

    def snapshot(self) -> dict[str, int]:
        """Return every count above zero, sorted by reason."""
        return {why: count for why, count in sorted(self._counts.items()) if count}


class AnswerLimit:
    """The limit on answers `Refused` of one code to a peer: at most one each `ANSWER_INTERVAL_NS`."""

    def __init__(self) -> None:
        self._last_ns: OrderedDict[tuple[bytes, str], int] = OrderedDict()

    def allows(self, now_ns: int, peer: bytes, code: str) -> bool:
        """Say whether an answer may be sent now; if so, note that it is sent."""
        key = (peer, code)
        last_ns = self._last_ns.get(key)
        if last_ns is not None and now_ns - last_ns < ANSWER_INTERVAL_NS:
            return False
        self._last_ns[key] = now_ns
        self._last_ns.move_to_end(key)
        if len(self._last_ns) > PEERS_REMEMBERED:
            self._last_ns.popitem(last=False)
        return True


class Wire(Protocol):
    """The controller's connections, as far as it needs them; `transport.listener.Listener` provides it."""

    def send(self, peer: bytes, parts: Sequence[bytes]) -> Delivery:
        """Send one message, without waiting and without raising."""

    def send_all(self, peer: bytes, messages: Sequence[bytes]) -> Delivery:
        """Send messages of one part each in one write, likewise; all of them share one fate."""

    def backlog_bytes(self, peer: bytes) -> int:
        """Return how many bytes wait for a peer."""

    def host_of(self, peer: bytes) -> str:
        """Return the numeric address of a peer's host; empty if it is this one."""

    def certificate(self, peer: bytes) -> Certificate | None:
        """Return the certificate that a peer has shown over TLS."""

    def disconnect(self, peer: bytes, why: str) -> None:
        """End the connection to a peer; what waits for the peer is discarded."""


def on_worker_clock(action: Action, clock: PeerClock) -> Action:
    """Return an action with its instants on its worker's clock, which the controller knows but roughly.

    Its window ends earlier by as much as ``clock`` may be wrong, so that nothing begins after the window.
    Nothing can begin before it either: an action leaves at its earliest instant. It has no evidence: that is
    for the log.
    """
    if not isinstance(action, Timed):
        return action
    latest_ns = action.latest_ns
    offset_ns = clock.offset_ns(action.earliest_ns)
    earliest_ns = action.earliest_ns + offset_ns
    begin_ns = action.predicted_begin_ns + offset_ns
    # An empty window would be an error; one that ends where it begins is only missed.
    latest_ns = max(clock.to_peer(latest_ns) - clock.error_ns(latest_ns), earliest_ns)
    replace = msgspec.structs.replace
    if isinstance(action, Open):
        return replace(action, earliest_ns=earliest_ns, latest_ns=latest_ns, predicted_begin_ns=begin_ns)
    # One copy: this is done for every INFER.
    return replace(
        action, earliest_ns=earliest_ns, latest_ns=latest_ns, predicted_begin_ns=begin_ns, evidence=None
    )


def dispatches(action: Infer) -> dict[int, Dispatch]:
    """Return the `Dispatch` for each gateway, by its number, of an INFER of at least one request."""
    numbers = [gateway_of(request_id) for request_id in action.request_ids]
    if numbers.count(numbers[0]) == len(numbers):
        whole = Dispatch(action.action_id, action.worker, action.request_ids, action.cold, action.batch_size)
        return {numbers[0]: whole}
    found = {}
    for number in dict.fromkeys(numbers):
        mine = [index for index, other in enumerate(numbers) if other == number]
        found[number] = Dispatch(
            action_id=action.action_id,
            worker=action.worker,
            request_ids=tuple([action.request_ids[index] for index in mine]),
            cold=tuple([action.cold[index] for index in mine]),
            batch_size=action.batch_size,
        )
    return found


class Outbox:
    """Messages from the controller to its peers; a worker's session remembers the INFERs sent to it."""

    def __init__(self, wire: Wire, sessions: SessionTable, dropped: Dropped) -> None:
        self._wire = wire
        self._sessions = sessions
        self._dropped = dropped
        self._limit = AnswerLimit()
        self._broken: dict[Session, str] = {}
        self._gathered: dict[Session, list[bytes]] = {}
        """Messages that wait for `deliver`, in order."""

    def host_of(self, peer: bytes) -> str:
        """Return the numeric address of a peer's host; empty if it is this one."""
        return self._wire.host_of(peer)

    def send(self, session: Session, message: msgspec.Struct) -> bool:
        """Send a message behind what was gathered; return False, and mark the session as broken, if that is
        not possible."""
        if self._gathered:
            self.deliver()
        if self._is_broken(session):
            return False
        return self._sent(session, self._wire.send(session.peer, (encode(message),)), 1)

    def _gather(self, session: Session, message: msgspec.Struct) -> bool:
        """Keep a message for `deliver`; return False if the session is broken."""
        if self._is_broken(session):
            return False
        self._gathered.setdefault(session, []).append(encode(message))
        return True

    def _is_broken(self, session: Session) -> bool:
        why = self._broken.get(session)
        if why is not None:
            self._dropped.count(why)
        return why is not None

    def deliver(self) -> None:
        """Send what was gathered, peer by peer."""
        gathered, self._gathered = self._gathered, {}
        for session, messages in gathered.items():
            if len(messages) == 1:
                delivery = self._wire.send(session.peer, messages)
            else:
                delivery = self._wire.send_all(session.peer, messages)
            self._sent(session, delivery, len(messages))

    def _sent(self, session: Session, delivery: Delivery, messages: int) -> bool:
        if delivery is Delivery.SENT:
            return True
        self._dropped.count(delivery.value, messages)
        self._broken[session] = delivery.value
        return False

    def send_gateways(self, message: msgspec.Struct) -> None:
        """Send a message to every gateway."""
        for gateway in self._sessions.gateways.values():
            self.send(gateway, message)

    def refuse(self, now_ns: int, peer: bytes, code: str, detail: str) -> None:
        """Count a message that is not accepted, and tell its sender, known or not, at a bounded rate."""
        self._dropped.count(code)
        if self._limit.allows(now_ns, peer, code):
            self._wire.send(peer, (encode(Refused(code, detail)),))

    def tell(self, peer: bytes, message: msgspec.Struct) -> Delivery:
        """Send a message to a peer that has no session."""
        return self._wire.send(peer, (encode(message),))

    def disconnect(self, peer: bytes, why: str) -> None:
        """End a peer's connection."""
        self._wire.disconnect(peer, why)

    def take_broken(self) -> dict[Session, str]:
        """Return the sessions that broke since the last call, each with the reason."""
        broken, self._broken = self._broken, {}
        return broken

    def dispatch(self, action: Infer) -> None:
        """Gather an INFER for its gateways, then for its worker: the inputs have the longer way."""
        worker = self._worker_of(action)
        if worker is None:
            return
        for number, dispatch in dispatches(action).items():
            gateway = self._sessions.gateway(number)
            if gateway is None:
                self._dropped.count("gateway_gone", len(dispatch.request_ids))
            else:
                self._gather(gateway, dispatch)
        if self._gather(worker, on_worker_clock(action, worker.clock)):
            worker.infers_out.add(action.action_id)

    def reject(self, now_ns: int, reject: Reject) -> None:
        """Gather a rejection for the request's gateway, with its instant as a time from now."""
        gateway = self._sessions.gateway(gateway_of(reject.request_id))
        if gateway is None:
            self._dropped.count("gateway_gone")
            return
        finish_ns = reject.earliest_finish_ns
        left_ns = None if finish_ns is None else max(1, finish_ns - now_ns)
        self._gather(gateway, Rejected(reject.request_id, reject.reason, reject.detail, left_ns))

    def chosen(self, chosen: Chosen) -> None:
        """Gather for a query's gateway which member of a family a step is of."""
        gateway = self._sessions.gateway(gateway_of(chosen.query_id))
        if gateway is not None:
            self._gather(gateway, chosen)

    def act(self, action: Action) -> None:
        """Gather any other action for its worker."""
        worker = self._worker_of(action)
        if worker is not None:
            self._gather(worker, on_worker_clock(action, worker.clock))

    def _worker_of(self, action: Action) -> WorkerSession | None:
        session = self._sessions.workers.get(action.worker)
        if session is None or not session.joined:
            self._dropped.count("worker_gone")
            return None
        return session
