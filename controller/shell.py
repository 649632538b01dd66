"""What arrives from peers, made into events: the shell around the scheduler, without socket or clock."""

from __future__ import annotations

import logging

import msgspec

from mainspring.controller.carrier import Carrier
from mainspring.controller.catalogue import Catalogue
from mainspring.controller.config import ControllerConfig
from mainspring.controller.counters import Dropped
from mainspring.controller.feed import LoggedScheduler
from mainspring.controller.grace import StartGrace
from mainspring.controller.journal import Journal
from mainspring.controller.members import Members, protocol_detail
from mainspring.controller.observers import Observer, Observers, Wire
from mainspring.controller.operators import Operators
from mainspring.controller.post import Post
from mainspring.controller.returning import Awaited, Returning
from mainspring.controller.sessions import GatewaySession, Session, SessionTable, WorkerSession
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.actions import Result
from mainspring.messages.codec import TO_CONTROLLER, BadMessage
from mainspring.messages.codes import Reason
from mainspring.messages.events import RequestArrived, RequestCancelled
from mainspring.messages.ids import gateway_of
from mainspring.messages.observing import FromObserver, ObserverHello
from mainspring.messages.operating import Operate
from mainspring.messages.peers import (
    AdminRequest,
    Arrival,
    Cancel,
    Described,
    Drained,
    GatewayHello,
    Goodbye,
    Pong,
    Rejected,
    Restored,
    ToController,
    WorkerHello,
)
from mainspring.messages.roles import MAY_SAY, Role, fault

_LOGGER = logging.getLogger(__name__)
Received = ToController | FromObserver | Result
"""What a peer may send."""
FAR_NS = 1 << 60
"""Durations and instants beyond this (36 years) are taken for nonsense or for "any time"."""


class _Hello(msgspec.Struct):
    """What any version's hello has."""

    type: str
    protocol: int


HELD_ARRIVALS = 100_000
"""Requests that are held, after the start, for the first worker to join; more go straight on."""
RETURNING = "the controller has just started and no worker is back yet: send the request again"
_MAY_SAY = {
    sender.encode(): (sender, says) for (sender, to), says in MAY_SAY.items() if to is Role.CONTROLLER
}
"""By the role with which a routing id begins."""
_HELLOS = (WorkerHello, GatewayHello)
_HELLO = msgspec.msgpack.Decoder(_Hello)


class Shell:
    """Takes messages in; its parts hold the state. ``now_ns`` is on the controller's monotonic clock."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler: LoggedScheduler,
        wire: Wire,
        dropped: Dropped,
        awaited: Awaited | None = None,
    ) -> None:
        """``awaited`` is what the start could not read. Raises OSError if the state file can't be used."""
        awaited = awaited or Awaited()
        self.draining = False
        self.sessions = SessionTable(config.clock_window_samples)
        self._scheduler = scheduler
        self._dropped = dropped
        self._post = Post(wire, self.sessions, dropped)
        journal = Journal(config.state_file)
        parts = scheduler, self.sessions, self._post, dropped
        self.catalogue = Catalogue(config.max_models, *parts, journal, awaited.left_out)
        self.returning = Returning(scheduler, self.catalogue, self._post, awaited)
        self.members = Members(
            config, scheduler, self.sessions, self._post, self.catalogue, self.returning, dropped
        )
        self.carrier = Carrier(self.sessions, self.members, self._post, dropped)
        self.operators = Operators(scheduler, self.catalogue)
        self.observers = Observers(config, scheduler, wire, self._post, dropped)
        self._grace = StartGrace(round(config.start_grace_ms * 1e6), HELD_ARRIVALS)

    def drain(self) -> None:
        """From now on turn requests and changes away; what was accepted is finished."""
        self.draining = self.catalogue.draining = True

    def drained(self) -> bool:
        """Say whether every accepted request is answered, as far as the controller can know."""
        return len(self._grace) + self._scheduler.queued == 0 and self.carrier.infers_out() == 0

    def settle_start(self, now_ns: int) -> None:
        """Begin the grace after the start, and end it once a worker has joined or its time is over."""
        if self._grace.over:
            return
        self._grace.began(now_ns)
        joined = self.draining or any(worker.joined for worker in self.sessions.workers.values())
        for arrival in self._grace.given_up(now_ns):
            gateway = self.sessions.gateway(gateway_of(arrival.request_id))
            if gateway is not None:
                self._post.to(gateway, Rejected(arrival.request_id, Reason.NO_WORKER, RETURNING))
        for arrival in self._grace.release(now_ns, joined):
            if self.sessions.gateway(gateway_of(arrival.request_id)) is not None:
                self._scheduler.handle(now_ns, arrival)

    def start_due_ns(self) -> int | None:
        """Return when `settle_start` is to be called even if nothing comes; None for never."""
        return self._grace.next_ns()

    def receive(self, now_ns: int, frames: list[bytes]) -> None:
        """Take one message in: its sender's routing id, which begins with ``ROLE/``, and its frames."""
        routing_id = frames[0]
        session = self.sessions.find(routing_id)
        if session is not None:
            session.heard_ns = now_ns
        try:
            if len(frames) != 2:
                raise BadMessage(f"a message to the controller has one frame, not {len(frames) - 1}")
            message = TO_CONTROLLER.decode(frames[1])
        except BadMessage as error:
            self._undecodable(now_ns, routing_id, session, frames, error)
            return
        role, says = _MAY_SAY[routing_id[: routing_id.index(b"/")]]
        if type(message) not in says:
            detail = fault(role, Role.CONTROLLER, message) or ""
            self._post.refuse(now_ns, routing_id, "bad_message", detail)
            return
        if isinstance(message, _HELLOS):
            self.observers.forget(routing_id)
            self.members.hello(now_ns, routing_id, message)
        elif isinstance(session, GatewaySession):
            self._from_gateway(now_ns, session, message)
        elif isinstance(session, WorkerSession):
            self._from_worker(now_ns, session, message)
        elif isinstance(message, ObserverHello):
            self.observers.hello(now_ns, routing_id, message)
        elif (observer := self.observers.find(routing_id)) is not None:
            self._from_observer(now_ns, observer, message)
        elif not isinstance(message, Goodbye):
            self._post.refuse(now_ns, routing_id, "unknown_session", "say hello first")
        self.members.settle(now_ns)
        self.settle_start(now_ns)

    def _from_gateway(self, now_ns: int, session: GatewaySession, message: Received) -> None:
        match message:
            case Arrival():
                self._arrival(now_ns, session, message)
            case Cancel(request_id=request_id):
                if gateway_of(request_id) == session.number:
                    self._grace.cancel(request_id)
                    self._scheduler.handle(now_ns, RequestCancelled(request_id))
                else:
                    self._dropped.count("foreign_request")
            case AdminRequest():
                self.catalogue.answer(now_ns, session, message)
            case Drained(name=name):
                self.catalogue.drained(now_ns, session, name)
            case _:
                self._from_any(now_ns, session, message)

    def _from_worker(self, now_ns: int, session: WorkerSession, message: Received) -> None:
        match message:
            case Result():
                self._result(now_ns, session, message)
            case Restored(model=spec):
                self.returning.restored(now_ns, session, spec)
            case Described(models=models):
                self.returning.described(now_ns, session, models)
            case _:
                joined = session.joined
                self._from_any(now_ns, session, message)
                if session.joined and not joined:
                    self.operators.restore(now_ns)

    def _from_observer(self, now_ns: int, observer: Observer, message: Received) -> None:
        observer.heard_ns = now_ns
        match message:
            case Pong():
                pass
            case Goodbye(detail=detail):
                self.observers.end(observer, f"it left: {detail}")
            case Operate():
                self.observers.answer(observer, self.operators.answer(now_ns, message))
            case _:
                detail = f"an observer may not send {type(message).__name__}"
                self._post.refuse(now_ns, observer.routing_id, "bad_message", detail)

    def _from_any(self, now_ns: int, session: Session, message: Received) -> None:
        match message:
            case Pong():
                self.members.pong(now_ns, session, message)
            case Goodbye(detail=detail):
                self.members.end(now_ns, session, f"it left: {detail}")
            case _:
                detail = f"a {session.kind} may not send {type(message).__name__}"
                self._post.refuse(now_ns, session.routing_id, "bad_message", detail)

    def _arrival(self, now_ns: int, session: GatewaySession, arrival: Arrival) -> None:
        request_id = arrival.request_id
        if gateway_of(request_id) != session.number:
            self._dropped.count("foreign_request")
            detail = f"the request's id is of an earlier session; this gateway's number is {session.number}"
            self._post.to(session, Rejected(request_id, Reason.CONTROLLER_UNREACHABLE, detail))
            return
        if self.draining:
            self._post.to(session, Rejected(request_id, Reason.SHUTTING_DOWN, "the controller is stopping"))
            return
        left_ns = arrival.left_ns
        deadline_ns = None
        if left_ns is not None:
            way_ns = session.clock.min_rtt_ns // 2
            deadline_ns = now_ns + max(-FAR_NS, min(left_ns, FAR_NS)) - way_ns
        event = RequestArrived(request_id, arrival.model, arrival.rows, deadline_ns, arrival.priority)
        if not self._grace.hold(now_ns, event):
            self._scheduler.handle(now_ns, event)

    def _result(self, now_ns: int, session: WorkerSession, result: Result) -> None:
        if not session.owns(result.action_id):
            self._dropped.count("stale_result")
            return
        begin_ns = session.clock.to_controller(result.begin_ns)
        end_ns = session.clock.to_controller(result.end_ns)
        inputs_ns = session.clock.to_controller(result.inputs_ns) if result.inputs_ns else 0
        sound = abs(begin_ns) < FAR_NS and begin_ns <= end_ns < FAR_NS and 0 <= result.device_ns < FAR_NS
        sound = sound and (not result.inputs_ns or -FAR_NS < inputs_ns <= end_ns)
        if not sound or result.worker != session.name:
            self._dropped.count("bad_result")
            _LOGGER.warning("%s sent a result that can't be true: %s", session, result)
            return
        session.infers_out.discard(result.action_id)
        result = msgspec.structs.replace(result, begin_ns=begin_ns, end_ns=end_ns, inputs_ns=inputs_ns)
        self._scheduler.handle(now_ns, result)

    def _undecodable(
        self, now_ns: int, routing_id: bytes, session: Session | None, frames: list[bytes], error: BadMessage
    ) -> None:
        """Answer what is no message: a hello of another version, garbage, or a stranger's garbage."""
        try:
            hello = _HELLO.decode(frames[1]) if len(frames) == 2 else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
            hello = None
        if hello is not None and hello.type.endswith("_hello") and hello.protocol != PROTOCOL_VERSION:
            self._post.refuse(now_ns, routing_id, "protocol_mismatch", protocol_detail(hello.protocol))
        elif session is not None:
            self._post.refuse(now_ns, routing_id, "bad_message", str(error))
        else:
            self._dropped.count("bad_message")
