"""The begin, life and end of sessions: hellos, heartbeats, first pongs, and the notices to the other peers.

A worker is welcomed at once, but joins the scheduler only when its clock is known: until ``join_pongs`` pongs
have come back, each pong is followed by the next ping at once. Of the next ones most are too, for the rate of
its clock.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final

from mainspring.controller.config import ControllerConfig
from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.outbox import Dropped, Outbox
from mainspring.controller.recovery import ModelRecovery
from mainspring.controller.registry import MAX_NAME_CHARACTERS, MAX_PAGES, ModelRegistry
from mainspring.controller.sessions import (
    Absences,
    GatewaySession,
    Session,
    SessionTable,
    WorkerSession,
    address_fault,
    cut_off,
    unreachable,
)
from mainspring.controller.shards import Moves, Shards
from mainspring.controller.token_limits import TokenLimits
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codes import Reason
from mainspring.messages.events import GatewayLeft, GatewayRefused, WorkerJoined, WorkerLeft
from mainspring.messages.limits import TokensUsed
from mainspring.messages.metrics import READINGS, DeviceHealth
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.peers import GatewayHello, Goodbye, Pong, Welcome, WorkerDown, WorkerHello, WorkerUp
from mainspring.messages.targets import SEPARATOR, check_targets
from mainspring.transport.certificate import Certificate

_LOGGER = logging.getLogger(__name__)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]*")
PRECISE_SAMPLES = 512
"""Exchanges after which a peer is pinged at heartbeats only: its clock's rate is known."""
EXCHANGES_A_BEAT = 5
"""Exchanges at each heartbeat until then."""
BEARABLE_STEP_NS = 1_000_000
"""A worker whose clock steps by more has to join again: its actions' windows mean other instants now."""
_GATEWAY: Final = b"gateway/"
MAX_REASONS = 64
"""Reasons for which a worker may count messages; a longer list is ignored."""
MAX_NOTE_CHARACTERS = 500
"""Longest note about a worker's GPU, in characters; the rest is cut off."""
REASON = re.compile("[a-z_]{0,40}")
"""A reason for which a GPU's clocks are held down."""


def name_fault(name: str) -> str | None:
    """Return what is wrong with a process's name, which logs, terminals and file names show, or None."""
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        return f"its name has {len(name)} characters; it must have 1 to {MAX_NAME_CHARACTERS}"
    if NAME.fullmatch(name) is None:
        return (
            f"its name is {name!a}; it must begin with a letter or digit and have only letters, digits "
            "and . _ - : @ + of ASCII"
        )
    return None


def kind_fault(kind: str) -> str | None:
    """Return what is wrong with what workers call their kind of device, or None."""
    if 0 < len(kind) <= MAX_NAME_CHARACTERS and kind.isprintable() and SEPARATOR not in kind:
        return None
    return (
        f"a kind of device has 1 to {MAX_NAME_CHARACTERS} characters, all printable and none of them "
        f"{SEPARATOR}"
    )


def memory_fault(hello: WorkerHello) -> str | None:
    """Return what is wrong with the memory that a worker describes, or None."""
    if not 0 <= hello.pages <= MAX_PAGES:
        return f"it has {hello.pages} pages; it must have 0 to {MAX_PAGES}"
    owner: dict[int, str] = {}
    models: set[str] = set()
    for resident in hello.resident:
        if resident.model in models:
            return f"model {resident.model!r} is resident twice"
        models.add(resident.model)
        for page in resident.pages:
            if not 0 <= page < hello.pages:
                return f"page {page} of model {resident.model!r} is out of range; it has {hello.pages} pages"
            if page in owner:
                return f"page {page} belongs to {owner[page]!r} and to {resident.model!r}"
            owner[page] = resident.model
    return None


def targets_fault(hello: WorkerHello) -> str | None:
    """Return what is wrong with the artifacts that a worker says it runs, or None."""
    try:
        check_targets(hello.targets)
    except ValueError as error:
        return str(error)
    return None


class PeerLifecycle:
    """Begins sessions, keeps them alive and ends them."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler: LoggedScheduler,
        sessions: SessionTable,
        outbox: Outbox,
        registry: ModelRegistry,
        recovery: ModelRecovery,
        dropped: Dropped,
        certified: Callable[[bytes], Certificate | None] = lambda _: None,
        shards: Shards | None = None,
        moves: Moves | None = None,
        tell: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """``certified``: the certificate of a peer, of one that has shown one; ``tell`` is given lines for
        operators."""
        self._absences = Absences(tell)
        self.refusals = Refusals(scheduler, sessions)
        self._shards = shards
        self._moves = moves
        self._config = config
        self._certified = certified
        self._interval_ns = round(config.heartbeat_interval_ms * 1e6)
        self._timeout_ns = round(config.heartbeat_timeout_ms * 1e6)
        self._scheduler = scheduler
        self._sessions = sessions
        self._outbox = outbox
        self._registry = registry
        self._recovery = recovery
        self._dropped = dropped
        self._epoch = scheduler.core.config.epoch
        self._last_beat_ns: int | None = None
        self._limits = TokenLimits()

    def hello(self, now_ns: int, peer: bytes, hello: WorkerHello | GatewayHello) -> None:
        """Begin a session, or refuse it; the sessions that it replaces end."""
        refusal = self._refusal(peer, hello)
        if refusal is not None:
            self.refuse(now_ns, peer, *refusal)
            return
        if isinstance(hello, WorkerHello) and self._moves is not None:
            elsewhere = self._moves.elsewhere(hello)
            if elsewhere is not None:
                _LOGGER.info("worker %r was moved: it is sent to %s", hello.worker, elsewhere.controller)
                self._outbox.tell(peer, elsewhere)
                return
        for former in self._sessions.replaced_by(peer, hello):
            if former.peer == peer:
                self.end(now_ns, former, "it said hello again", wanted=True)
                continue
            self._outbox.refuse(
                now_ns,
                former.peer,
                "name_taken",
                f"a newer process is {former.kind} {former.name!r} now",
            )
            self.end(now_ns, former, "a newer process took its name", name_lost=True)
        host = self._outbox.host_of(peer)
        if isinstance(hello, WorkerHello):
            worker = self._sessions.open_worker(now_ns, peer, hello)
            worker.host = host
            self._welcome_worker(now_ns, worker)
        else:
            gateway = self._sessions.open_gateway(now_ns, peer, hello)
            gateway.host = host
            self._absences.here(now_ns, gateway)
            self._welcome_gateway(now_ns, gateway)

    def refuse(self, now_ns: int, peer: bytes, code: str, detail: str) -> None:
        """Refuse a peer's hello, and end the session that an earlier one began."""
        self._outbox.refuse(now_ns, peer, code, detail)
        session = self._sessions.find(peer)
        if session is not None:
            self.end(now_ns, session, "its next hello was refused")

    def pong(self, now_ns: int, session: Session, pong: Pong) -> None:
        """Take a pong in; while the session is new, ping again at once or let the worker join."""
        try:
            stepped_ns = session.pong(now_ns, pong)
        except ValueError as error:
            self._dropped.count("bad_pong")
            _LOGGER.info("%s: %s", session, error)
            return
        if stepped_ns:
            self.clock_stepped(now_ns, session, stepped_ns)
            if not self._sessions.is_open(session):
                return
        if isinstance(session, WorkerSession):
            if len(pong.dropped) <= MAX_REASONS:
                session.dropped = pong.dropped
            session.health = _bounded(pong.health) if pong.health is not None else DeviceHealth()
        elif isinstance(session, GatewaySession):
            self.refusals.heard(session, pong.refused)
        samples = session.clock.samples
        if samples < self._config.join_pongs or (samples < PRECISE_SAMPLES and samples % EXCHANGES_A_BEAT):
            self._outbox.send(session, session.ping(now_ns))
        if isinstance(session, WorkerSession) and not session.joined and samples >= self._config.join_pongs:
            session.joined = True
            session.actions_after = self._scheduler.last_action_id
            hello = session.hello
            self._scheduler.handle(
                now_ns,
                WorkerJoined(
                    *(hello.worker, hello.device_kind, hello.pages, hello.prepared, hello.resident),
                    *(hello.targets, hello.again),
                ),
            )
            self._absences.here(now_ns, session)
            clock = session.clock
            _LOGGER.info(
                "%s joined; its clock is %d ns ahead, known to %d ns",
                *(session, clock.offset_ns(now_ns), clock.error_ns(now_ns)),
            )

    def clock_stepped(self, now_ns: int, session: Session, stepped_ns: int) -> None:
        """Count a step of a peer's clock; a worker for which it is too large has to join again."""
        self._dropped.count("clock_stepped")
        why = f"its clock has stepped by {stepped_ns / 1e6:+,.3f} ms"
        _LOGGER.warning("%s: %s", session, why)
        if isinstance(session, WorkerSession) and abs(stepped_ns) > BEARABLE_STEP_NS:
            self._outbox.refuse(now_ns, session.peer, "unknown_session", why)
            self.end(now_ns, session, why)

    def end(
        self,
        now_ns: int,
        session: Session,
        reason: str,
        *,
        name_lost: bool = False,
        known: bool = False,
        wanted: bool = False,
    ) -> None:
        """End a session. ``known``: the scheduler already knows that the worker is gone; ``wanted``: the peer
        or an operator ends it, so that nothing is lost."""
        if not self._sessions.is_open(session):
            return
        _LOGGER.info("%s ends: %s", session, reason)
        if isinstance(session, WorkerSession):
            self._sessions.close(session, name_lost)
            if session.joined and not wanted:
                self._absences.lost(now_ns, session, reason)
            if session.joined and not known:
                self._scheduler.handle(now_ns, WorkerLeft(session.name, reason))
            self._outbox.send_gateways(WorkerDown(session.name))
        elif isinstance(session, GatewaySession):
            self._sessions.close(session, name_lost)
            if not wanted:
                self._absences.lost(now_ns, session, reason)
            self.refusals.enter(now_ns, session)
            self._scheduler.handle(now_ns, GatewayLeft(session.number))
            self._registry.gateway_left(now_ns, session)
            self._limits.left(session.number)
            self._share_limits()

    def tokens_used(self, session: GatewaySession, message: TokensUsed) -> None:
        """Take a gateway's report of its tokens; tell gateways which parts of their limits they have now."""
        self._limits.used(session.number, message)
        self._share_limits()

    def _share_limits(self) -> None:
        for number, parts in self._limits.news():
            gateway = self._sessions.gateway(number)
            if gateway is not None:
                self._outbox.send(gateway, parts)

    def drop(self, now_ns: int, worker: str, reason: str) -> None:
        """End the session of a worker that the scheduler has dropped; the worker may say hello again."""
        session = self._sessions.workers.get(worker)
        if session is not None:
            self._outbox.refuse(now_ns, session.peer, "unknown_session", f"dropped: {reason}")
            self.end(now_ns, session, f"dropped: {reason}", known=True)

    def moved(self, now_ns: int, worker: str, address: str) -> None:
        """Send a worker to another controller and end its session: the scheduler has let it go."""
        assert self._moves is not None, "a worker is sent away, and there is no other controller"
        self._moves.sent(worker, address)
        session = self._sessions.workers.get(worker)
        if session is not None:
            self.end(now_ns, session, f"it was moved to {address}", known=True, wanted=True)

    def end_broken(self, now_ns: int) -> None:
        """End the sessions to which a message could not be sent."""
        while broken := self._outbox.take_broken():
            for session, why in broken.items():
                self._outbox.refuse(now_ns, session.peer, "unknown_session", f"a message was lost: {why}")
                self.end(now_ns, session, f"a message to it was lost: {why}")

    @property
    def next_beat_ns(self) -> int:
        """The instant of the next `beat`."""
        return 0 if self._last_beat_ns is None else self._last_beat_ns + self._interval_ns

    def beat(self, now_ns: int) -> None:
        """End the sessions of peers that have been silent for too long, and ping the others."""
        last_ns, self._last_beat_ns = self._last_beat_ns, now_ns
        if last_ns is not None and now_ns - last_ns > self._timeout_ns // 2:
            _LOGGER.warning("the controller itself was suspended for %.0f ms", (now_ns - last_ns) / 1e6)
            for session in self._sessions.all():
                session.heard_ns = now_ns
        for session in self._sessions.silent_since(now_ns - self._timeout_ns):
            self._dropped.count("peer_silent")
            silent_ms = (now_ns - session.heard_ns) / 1e6
            self._outbox.refuse(now_ns, session.peer, "unknown_session", f"silent for {silent_ms:.0f} ms")
            self.end(now_ns, session, f"silent for {silent_ms:.0f} ms")
        for session in self._sessions.all():
            self._outbox.send(session, session.ping(now_ns))
        self.refusals.beat(now_ns)
        self.end_broken(now_ns)

    def goodbye(self, detail: str) -> None:
        """Tell every peer that the controller stops."""
        for session in self._sessions.all():
            self._outbox.send(session, Goodbye(detail))

    def _refusal(self, peer: bytes, hello: WorkerHello | GatewayHello) -> tuple[str, str] | None:
        if hello.protocol != PROTOCOL_VERSION:
            return "protocol_mismatch", protocol_detail(hello.protocol)
        if isinstance(hello, WorkerHello):
            if hello.page_bytes != PAGE_BYTES:
                return (
                    "bad_page_size",
                    f"pages are {PAGE_BYTES} bytes here; the worker's are {hello.page_bytes}",
                )
            fault = name_fault(hello.worker) or memory_fault(hello) or address_fault(hello.data_address)
            fault = fault or kind_fault(hello.device_kind) or targets_fault(hello)
        else:
            fault = name_fault(hello.gateway)
        if fault is not None:
            return "bad_message", f"the hello can't be used: {fault}"
        cut = self._cut_off(peer, hello)
        if cut is not None:
            return "unreachable", cut
        certificate = self._certified(peer)
        if certificate is not None:
            name = hello.worker if isinstance(hello, WorkerHello) else hello.gateway
            if fault := certificate.name_fault(peer.partition(b"/")[0].decode(), name.encode()):
                return "name_taken", fault
        if self._sessions.name_is_lost(peer, hello):
            return "name_taken", "a newer process has this name; stop this one, or give it a name of its own"
        if len(self._sessions) >= self._config.max_peers and not self._sessions.replaced_by(peer, hello):
            return (
                "too_many_peers",
                f"{self._config.max_peers} peers are connected, which is the bound (max_peers)",
            )
        return None

    def _cut_off(self, peer: bytes, hello: WorkerHello | GatewayHello) -> str | None:
        """Return which worker and gateway could not work together, of which the peer is one, and why."""
        host = self._outbox.host_of(peer)
        if isinstance(hello, WorkerHello):
            address = hello.data_address
            for gateway in self._sessions.gateways.values():
                if unreachable(address, host, gateway.host):
                    return cut_off(hello.worker, address, gateway.name)
            return None
        for worker in self._sessions.workers.values():
            if unreachable(worker.hello.data_address, worker.host, host):
                return cut_off(worker.name, worker.hello.data_address, hello.gateway)
        return None

    def _welcome_worker(self, now_ns: int, session: WorkerSession) -> None:
        self._outbox.send(session, Welcome(PROTOCOL_VERSION, session.number, self._epoch))
        self._recovery.ask(session)
        self._outbox.send(session, session.ping(now_ns))
        self._outbox.send_gateways(WorkerUp(session.name, session.hello.data_address))

    def _welcome_gateway(self, now_ns: int, session: GatewaySession) -> None:
        gateways = 1
        if not self._config.shard and session.peer.startswith(_GATEWAY):
            # The first controller shares out what holds over all gateways; a repository takes no requests.
            gateways = self._limits.joined(session.number)
        self._outbox.send(session, Welcome(PROTOCOL_VERSION, session.number, self._epoch, gateways))
        self._share_limits()
        if self._shards is not None:
            self._shards.welcome(session)
        self._registry.welcome(session)
        for worker in self._sessions.workers.values():
            self._outbox.send(session, WorkerUp(worker.name, worker.hello.data_address))
        self._outbox.send(session, session.ping(now_ns))


def protocol_detail(theirs: int, ours: int = PROTOCOL_VERSION) -> str:
    """Return the refusal for a peer of another protocol version."""
    return (
        f"the controller speaks protocol {ours}, the peer protocol {theirs}; "
        "install the same release of Mainspring on both"
    )


def _bounded(health: DeviceHealth) -> DeviceHealth:
    """Return what may be kept of a worker's words about its GPU: few notes, and readings that are known."""
    known = [each for each in health.readings if each.name in READINGS and REASON.fullmatch(each.reason)]
    notes = tuple(note[:MAX_NOTE_CHARACTERS] for note in health.notes[:MAX_REASONS])
    return DeviceHealth(notes, tuple(known[:MAX_REASONS]))


INTERVAL_NS: Final = 1_000_000_000
"""The least time between two looks."""
_REASONS: Final = frozenset([reason.value for reason in Reason])


class Refusals:
    """Takes what gateways count, and enters what is new."""

    def __init__(self, scheduler: LoggedScheduler, sessions: SessionTable) -> None:
        self._scheduler = scheduler
        self._sessions = sessions
        self._due_ns = 0

    def heard(self, session: GatewaySession, refused: dict[str, int]) -> None:
        """Take a gateway's counts in; reasons that are none are left out."""
        known = {reason: count for reason, count in refused.items() if reason in _REASONS and count > 0}
        if session.refused is None:
            session.refused_noted = known
        session.refused = known

    def beat(self, now_ns: int) -> None:
        """Enter what gateways have refused since the last look, if it is time for one."""
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + INTERVAL_NS
            for session in self._sessions.gateways.values():
                self.enter(now_ns, session)

    def enter(self, now_ns: int, session: GatewaySession) -> None:
        """Enter what one gateway has refused since it was entered last."""
        refused, noted = session.refused, session.refused_noted
        if refused is None or refused == noted:
            return
        session.refused_noted = refused
        news = {reason: count - noted.get(reason, 0) for reason, count in refused.items()}
        news = {reason: count for reason, count in news.items() if count > 0}
        if news:
            self._scheduler.handle(now_ns, GatewayRefused(session.name, news))
