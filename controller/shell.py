"""The shell around the scheduler: messages from peers become events, and commands become messages to peers.

It has no socket and no clock: ``now_ns``, on the controller's monotonic clock, is an argument.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from mainspring.controller.administration import Administration
from mainspring.controller.clock import PeerClock
from mainspring.controller.config import ControllerConfig
from mainspring.controller.followers import Followers
from mainspring.controller.learning import Learnings
from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.memory import Learning, Memory
from mainspring.controller.observers import Observer, Observers
from mainspring.controller.outbox import AnswerLimit, Dropped, Outbox, Wire
from mainspring.controller.peer_lifecycle import PeerLifecycle, protocol_detail
from mainspring.controller.providers import Provider, Providers
from mainspring.controller.recovery import Awaited, ModelRecovery
from mainspring.controller.registry import ModelRegistry
from mainspring.controller.sessions import GatewaySession, Session, SessionTable, WorkerSession
from mainspring.controller.shards import Moves, Shards
from mainspring.controller.start_grace import StartGrace
from mainspring.messages import PROTOCOL_VERSION, served
from mainspring.messages.actions import DropWorker, Infer, Reject, Result, Sent
from mainspring.messages.codec import TO_CONTROLLER, BadMessage
from mainspring.messages.codes import Reason
from mainspring.messages.events import QueryArrived, RequestArrived, RequestCancelled, pieces_of
from mainspring.messages.following import FromFollower
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.ids import gateway_of
from mainspring.messages.learning import FeedbackCounted, GatewayLearning, RelayFeedback
from mainspring.messages.limits import TokensUsed
from mainspring.messages.observing import FromObserver, ObserverHello
from mainspring.messages.operating import Operate
from mainspring.messages.peers import (
    AdminRequest,
    AnyHello,
    Arrival,
    Cancel,
    Deposed,
    Described,
    Drained,
    GatewayHello,
    Goodbye,
    Pong,
    QueryArrival,
    Rejected,
    Restored,
    ToController,
    WorkerHello,
)
from mainspring.messages.queries import Chosen, Piece, StepsKnown, shape_fault
from mainspring.messages.roles import MAY_SAY, Role, fault
from mainspring.messages.scaling import Provide, ProviderHello, Running
from mainspring.messages.sharding import ShardMap
from mainspring.transport.channel import Message

_LOGGER = logging.getLogger(__name__)
Received = ToController | FromObserver | FromFollower | Result
"""Messages that a peer may send."""
FAR_NS: Final = 1 << 60
"""Durations and instants beyond this (36 years) are taken for errors or for "any time"."""


COUNTED_ON: Final = 0.7
"""Part of ``heartbeat_timeout_ms`` after which nobody counts on a worker that gives no sign of life."""
HELD_ARRIVALS: Final = 100_000
"""Requests held after the start until the first worker joins; further ones go to the scheduler at once."""
RETURNING = "the controller has just started and no worker is back yet: send the request again"
_MAY_SAY: Final = {
    sender.encode(): (sender, says) for (sender, to), says in MAY_SAY.items() if to is Role.CONTROLLER
}
"""Roles and their messages, by the bytes of the role with which a peer's ``ROLE/NAME`` begins."""
_HELLOS: Final = (WorkerHello, GatewayHello)
_HELLO = msgspec.msgpack.Decoder(AnyHello)


class Shell:
    """Takes messages in and carries commands out; its parts hold the state."""

    draining = False
    told_epoch = 0
    """The highest epoch that a peer has named: above the controller's own, another one leads."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler: LoggedScheduler,
        wire: Wire,
        dropped: Dropped,
        awaited: Awaited | None = None,
        graphs: Sequence[GraphSpec] = (),
        memory: Memory | None = None,
        clocks: dict[bytes, PeerClock] | None = None,
    ) -> None:
        """``awaited``: what the start could not read; ``graphs``: the configured ones; ``memory``: what a
        former controller left, else that of the state file, of which OSError is raised if it can't be used;
        ``clocks``: those of peers that are known."""
        awaited = awaited or Awaited()
        self.sessions = SessionTable(config.clock_window_samples, config.shard, clocks)
        self._scheduler, self._dropped, self._error_limit = scheduler, dropped, AnswerLimit()
        self._outbox = outbox = Outbox(wire, self.sessions, dropped)
        self.memory = memory = memory or Memory(config.state_file, config.forget)
        self.learning = Learning(memory, scheduler.cluster.estimates.states)
        self.followers = Followers(outbox, memory)
        self.registry = registry = ModelRegistry(
            *(config.max_models, scheduler, self.sessions, outbox, awaited.left_out),
            round(config.heartbeat_timeout_ms * COUNTED_ON * 1e6),
            memory.shares,
        )
        self.shards = shards = Shards(config, outbox)
        self.moves = moves = Moves(self.sessions, outbox, memory, shards.addresses)
        self.recovery = ModelRecovery(scheduler, registry, outbox, memory, awaited, shards.has)
        self.peers = PeerLifecycle(
            *(config, scheduler, self.sessions, outbox, registry, self.recovery, dropped),
            *(wire.certificate, shards, moves),
            tell=self._tell_operators,
        )
        self.administration = Administration(
            *(scheduler, registry, self.sessions, outbox, dropped, memory),
            shards=shards,
            moves=moves,
            graphs=graphs,
        )
        self.learnings = Learnings(self.sessions, outbox)
        self.observers = Observers(
            *(config, scheduler, wire, outbox, dropped, self.sessions.devices),
            clocks=self.sessions.clocks,
            unready=registry.readiness.unready,
            learnt=self.learnings.told,
        )
        restore = self.administration.restore
        self.providers = Providers(config, scheduler, wire, outbox, dropped, restore, memory.places)
        self._grace = StartGrace(round(config.start_grace_ms * 1e6), HELD_ARRIVALS)

    def _tell_operators(self, text: str) -> None:
        self.providers.notify(text)

    def drain(self) -> None:
        """Reject new requests and changes from now on; accepted requests are finished."""
        self.draining = True
        self.administration.refuses = "the controller is stopping"

    def drained(self) -> bool:
        """Say whether every accepted request is answered, as far as the controller can know."""
        return len(self._grace) + self._scheduler.core.queued == 0 and self.sessions.infers_out() == 0

    def settle_start(self, now_ns: int) -> None:
        """Hold requests after the start; release them once a worker has joined or the time is over."""
        if self._grace.over:
            return
        self._grace.began(now_ns)
        joined = self.draining or any(worker.joined for worker in self.sessions.workers.values())
        for request_id in self._grace.given_up(now_ns):
            gateway = self.sessions.gateway(gateway_of(request_id))
            if gateway is not None:
                self._outbox.send(gateway, Rejected(request_id, Reason.NO_WORKER, RETURNING))
        for request_id, held in self._grace.release(now_ns, joined):
            if self.sessions.gateway(gateway_of(request_id)) is not None:
                self._came(now_ns, *held)

    def start_due_ns(self) -> int | None:
        """Return when `settle_start` is to be called even if no message arrives; None for never."""
        return self._grace.next_ns()

    def carry_out(self, now_ns: int, commands: list[Sent]) -> None:
        """Send what each command asks for, in order; then end the sessions that broke meanwhile.

        A command that raises is a bug of Mainspring: it is counted and logged, and the other commands leave
        all the same. Its worker is dropped when its result is overdue.
        """
        for command in commands:
            try:
                self._carry_out(now_ns, command)
            except Exception:
                self._dropped.count("internal_error")
                if self._error_limit.allows(now_ns, b"", type(command).__name__):
                    _LOGGER.exception("could not carry out %.2000r", command)
        self._outbox.deliver()
        self.peers.end_broken(now_ns)

    def receive(self, now_ns: int, peer: bytes, parts: Message) -> None:
        """Take one message in: its sender as ``ROLE/NAME``, and its parts."""
        session = self.sessions.find(peer)
        if session is not None:
            session.heard_ns = now_ns
        try:
            if len(parts) != 1:
                raise BadMessage(f"a message to the controller has one frame, not {len(parts)}")
            message = TO_CONTROLLER.decode(parts[0])
        except BadMessage as error:
            self._undecodable(now_ns, peer, session, parts, error)
            return
        role, says = _MAY_SAY[peer[: peer.index(b"/")]]
        if type(message) not in says:
            detail = fault(role, Role.CONTROLLER, message) or ""
            self._outbox.refuse(now_ns, peer, "bad_message", detail)
            return
        if isinstance(message, _HELLOS):
            self.told_epoch = max(self.told_epoch, message.epoch)
            self.observers.forget(peer)
            self.peers.hello(now_ns, peer, message)
        elif isinstance(message, Deposed):
            self.told_epoch = max(self.told_epoch, message.epoch)
        elif role is Role.CONTROLLER:
            self.followers.receive(now_ns, peer, message)
        elif isinstance(session, GatewaySession):
            self._from_gateway(now_ns, session, message)
        elif isinstance(session, WorkerSession):
            self._from_worker(now_ns, session, message)
        elif isinstance(message, ObserverHello):
            self.observers.hello(now_ns, peer, message)
        elif (observer := self.observers.find(peer)) is not None:
            self._from_observer(now_ns, observer, message)
        elif isinstance(message, ProviderHello):
            self.providers.hello(now_ns, peer, message)
        elif (provider := self.providers.find(peer)) is not None:
            self._from_provider(now_ns, provider, message)
        elif not isinstance(message, Goodbye):
            self._outbox.refuse(now_ns, peer, "unknown_session", "say hello first")
        self.peers.end_broken(now_ns)
        self.settle_start(now_ns)

    def _carry_out(self, now_ns: int, command: Sent) -> None:
        match command:
            case Infer():
                self._outbox.dispatch(command)
            case Reject():
                self._outbox.reject(now_ns, command)
            case Chosen():
                self._outbox.chosen(command)
            case Provide():
                if command.moved:
                    self.administration.recounted(command.kind)
                self.providers.provide(now_ns, command)
            case DropWorker(worker=worker, reason=reason, to=to):
                # Its session ends at once, behind what was to be sent before.
                self._outbox.deliver()
                if to:
                    self.peers.moved(now_ns, worker, to)
                else:
                    self.peers.drop(now_ns, worker, reason)
            case _:
                self._outbox.act(command)

    def _from_gateway(self, now_ns: int, session: GatewaySession, message: Received) -> None:
        match message:
            case Arrival():
                self._arrival(now_ns, session, message)
            case QueryArrival():
                self._query(now_ns, session, message)
            case StepsKnown():
                self._steps_known(now_ns, session, message)
            case Cancel(request_id=request_id):
                if gateway_of(request_id) == session.number:
                    self._grace.cancel(request_id)
                    self._scheduler.handle(now_ns, RequestCancelled(request_id))
                else:
                    self._dropped.count("foreign_request")
            case AdminRequest():
                self.administration.answer(now_ns, session, message)
            case TokensUsed():
                self.peers.tokens_used(session, message)
            case ShardMap():
                self.shards.told(message)
            case served.Awaited():
                self.registry.readiness.await_(message)
            case Drained(name=name):
                self.registry.drained(now_ns, session, name)
            case GatewayLearning() | RelayFeedback() | FeedbackCounted():
                self.learnings.take(session, message)
            case _:
                self._from_any(now_ns, session, message)

    def _from_worker(self, now_ns: int, session: WorkerSession, message: Received) -> None:
        match message:
            case Result():
                self._result(now_ns, session, message)
            case Restored(model=spec):
                self.recovery.restored(now_ns, session, spec)
            case Described(models=models):
                self.recovery.described(now_ns, session, models)
            case _:
                joined = session.joined
                self._from_any(now_ns, session, message)
                if session.joined and not joined:
                    self.administration.restore(now_ns)

    def _from_observer(self, now_ns: int, observer: Observer, message: Received) -> None:
        observer.heard_ns = now_ns
        match message:
            case Pong():
                pass
            case Goodbye(detail=detail):
                self.observers.end(observer, f"it left: {detail}")
            case Operate():
                self.observers.answer(observer, self.administration.operate(now_ns, message))
            case _:
                detail = f"an observer may not send {type(message).__name__}"
                self._outbox.refuse(now_ns, observer.peer, "bad_message", detail)

    def _from_provider(self, now_ns: int, provider: Provider, message: Received) -> None:
        provider.heard_ns = now_ns
        match message:
            case Running(offers=offers):
                self.providers.running(now_ns, provider, offers)
                for each in offers:
                    if each.moved:
                        self.administration.recounted(each.kind)
            case Goodbye(detail=detail):
                self.providers.end(now_ns, provider, f"it left: {detail}")

    def _from_any(self, now_ns: int, session: Session, message: Received) -> None:
        match message:
            case Pong():
                self.peers.pong(now_ns, session, message)
            case Goodbye(detail=detail):
                self.peers.end(now_ns, session, f"it left: {detail}", wanted=True)
            case _:
                detail = f"a {session.kind} may not send {type(message).__name__}"
                self._outbox.refuse(now_ns, session.peer, "bad_message", detail)

    def _arrival(self, now_ns: int, session: GatewaySession, arrival: Arrival) -> None:
        request_id = arrival.request_id
        if gateway_of(request_id) != session.number:
            self._foreign(session, request_id)
            return
        if self.draining:
            self._stopping(session, request_id)
            return
        deadline_ns = _deadline_ns(now_ns, session, arrival.left_ns)
        event = RequestArrived(
            *(request_id, arrival.model, arrival.rows, deadline_ns, arrival.priority, arrival.sizes),
            *(arrival.query, arrival.step, arrival.tenant),
        )
        if self._grace.over or not self._grace.hold(now_ns, request_id, (event, ())):
            self._scheduler.handle(now_ns, event)

    def _query(self, now_ns: int, session: GatewaySession, arrival: QueryArrival) -> None:
        query_id, pieces = arrival.query_id, arrival.pieces
        named = (query_id, *[piece.request_id for piece in pieces])
        if [each for each in named if gateway_of(each) != session.number]:
            self._foreign(session, query_id)
            return
        if self.draining:
            self._stopping(session, query_id)
            return
        fault = shape_fault(arrival.steps, pieces)
        if fault is not None:
            self._dropped.count("bad_query")
            self._outbox.send(session, Rejected(query_id, Reason.BAD_MESSAGE, fault))
            return
        deadline_ns = _deadline_ns(now_ns, session, arrival.left_ns)
        event = QueryArrived(
            query_id, deadline_ns, arrival.steps, arrival.priority, arrival.graph, arrival.tenant
        )
        if not self._grace.hold(now_ns, query_id, (event, pieces)):
            self._came(now_ns, event, pieces)

    def _steps_known(self, now_ns: int, session: GatewaySession, known: StepsKnown) -> None:
        if gateway_of(known.query_id) == session.number and shape_fault(known.steps, ()) is None:
            self._scheduler.handle(now_ns, known)
        else:
            self._dropped.count("bad_query")

    def _came(self, now_ns: int, event: RequestArrived | QueryArrived, pieces: tuple[Piece, ...]) -> None:
        """Hand a request to the scheduler, or a query and, once it is admitted, its pieces."""
        self._scheduler.handle(now_ns, event)
        if isinstance(event, QueryArrived) and event.graph in self._scheduler.cluster.graph_shares:
            self.memory.learnt(event.graph, self._scheduler.cluster.graph_shares[event.graph])
        for arrived in pieces_of(event, pieces) if isinstance(event, QueryArrived) else ():
            if arrived.query not in self._scheduler.cluster.queries:
                return
            self._scheduler.handle(now_ns, arrived)

    def _foreign(self, session: GatewaySession, request_id: int) -> None:
        """Refuse what comes under an id of another session."""
        self._dropped.count("foreign_request")
        detail = f"the request's id is of an earlier session; this gateway's number is {session.number}"
        self._outbox.send(session, Rejected(request_id, Reason.CONTROLLER_UNREACHABLE, detail))

    def _stopping(self, session: GatewaySession, request_id: int) -> None:
        """Refuse what comes while the controller stops."""
        detail = "the controller is stopping"
        self._outbox.send(session, Rejected(request_id, Reason.SHUTTING_DOWN, detail))

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
        ahead_ns = session.clock.ahead_ns(now_ns, result.end_ns)
        if ahead_ns:
            # Before the next pong says so.
            self.peers.clock_stepped(now_ns, session, ahead_ns)
            if not self.sessions.is_open(session):
                return
        session.infers_out.discard(result.action_id)
        result = msgspec.structs.replace(result, begin_ns=begin_ns, end_ns=end_ns, inputs_ns=inputs_ns)
        self._scheduler.handle(now_ns, result)

    def _undecodable(
        self, now_ns: int, peer: bytes, session: Session | None, parts: Message, error: BadMessage
    ) -> None:
        """Answer what can't be decoded: a hello of another version, or garbage of a known or unknown peer."""
        try:
            hello = _HELLO.decode(parts[0]) if len(parts) == 1 else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
            hello = None
        if hello is not None and hello.type.endswith("_hello") and hello.protocol != PROTOCOL_VERSION:
            self.observers.forget(peer)
            self.providers.refused(now_ns, peer)
            self.peers.refuse(now_ns, peer, "protocol_mismatch", protocol_detail(hello.protocol))
        elif session is not None:
            self._outbox.refuse(now_ns, peer, "bad_message", str(error))
        else:
            self._dropped.count("bad_message")


def _deadline_ns(now_ns: int, session: GatewaySession, left_ns: int | None) -> int | None:
    """Return the deadline of what comes from a gateway with this time left, less its way here."""
    if left_ns is None:
        return None
    return now_ns + max(-FAR_NS, min(left_ns, FAR_NS)) - session.clock.round_ns // 2
