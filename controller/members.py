"""Peers come and go: hellos, heartbeats, the first pongs, and what the others are told of it.

A worker is welcomed at once, but the scheduler only hears of it when its clock is known: pings follow one
another, each on the heels of the last pong, until ``join_pongs`` have come back.
"""

from __future__ import annotations

import logging
import re

from mainspring.controller.catalogue import Catalogue
from mainspring.controller.config import ControllerConfig
from mainspring.controller.counters import Dropped
from mainspring.controller.feed import LoggedScheduler
from mainspring.controller.post import Post
from mainspring.controller.returning import Returning
from mainspring.controller.sessions import GatewaySession, Session, SessionTable, WorkerSession
from mainspring.controller.specs import MAX_NAME_CHARACTERS, MAX_PAGES
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.events import GatewayLeft, WorkerJoined, WorkerLeft
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.peers import (
    GatewayHello,
    Goodbye,
    Pong,
    Welcome,
    WorkerDown,
    WorkerHello,
    WorkerUp,
)

_LOGGER = logging.getLogger(__name__)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]*")
MAX_REASONS = 64
"""Reasons for which a worker may count messages; a longer list is taken for nonsense."""


def name_fault(name: str) -> str | None:
    """Return what is wrong with a process's name, or None: it goes into logs, terminals and file names."""
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        return f"its name has {len(name)} characters; it must have 1 to {MAX_NAME_CHARACTERS}"
    if NAME.fullmatch(name) is None:
        return (
            f"its name is {name!a}; it must begin with a letter or digit and have only letters, digits "
            "and . _ - : @ + of ASCII"
        )
    return None


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


class Members:
    """Begins and ends sessions, and keeps them alive."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler: LoggedScheduler,
        sessions: SessionTable,
        post: Post,
        catalogue: Catalogue,
        returning: Returning,
        dropped: Dropped,
    ) -> None:
        self._config = config
        self._interval_ns = round(config.heartbeat_interval_ms * 1e6)
        self._timeout_ns = round(config.heartbeat_timeout_ms * 1e6)
        self._scheduler = scheduler
        self._sessions = sessions
        self._post = post
        self._catalogue = catalogue
        self._returning = returning
        self._dropped = dropped
        self._last_beat_ns: int | None = None

    def hello(self, now_ns: int, routing_id: bytes, hello: WorkerHello | GatewayHello) -> None:
        """Begin a session, or refuse it; the sessions in whose place it comes end."""
        refusal = self._refusal(routing_id, hello)
        if refusal is not None:
            self._post.refuse(now_ns, routing_id, *refusal)
            return
        for former in self._sessions.replaced_by(routing_id, hello):
            if former.routing_id == routing_id:
                self.end(now_ns, former, "it said hello again")
                continue
            self._post.refuse(
                now_ns,
                former.routing_id,
                "name_taken",
                f"a newer process is {former.kind} {former.name!r} now",
            )
            self.end(now_ns, former, "a newer process took its name", name_lost=True)
        if isinstance(hello, WorkerHello):
            self._welcome_worker(now_ns, self._sessions.open_worker(now_ns, routing_id, hello))
        else:
            self._welcome_gateway(now_ns, self._sessions.open_gateway(now_ns, routing_id, hello))

    def pong(self, now_ns: int, session: Session, pong: Pong) -> None:
        """Take a pong in; ping again at once, or let the worker join, while its session is new."""
        try:
            session.pong(now_ns, pong)
        except ValueError as error:
            self._dropped.count("bad_pong")
            _LOGGER.info("%s: %s", session, error)
            return
        if isinstance(session, WorkerSession) and len(pong.dropped) <= MAX_REASONS:
            session.dropped = pong.dropped
        if session.clock.samples < self._config.join_pongs:
            self._post.to(session, session.ping(now_ns))
        elif isinstance(session, WorkerSession) and not session.joined:
            session.joined = True
            session.actions_after = self._scheduler.last_action_id
            hello = session.hello
            self._scheduler.handle(
                now_ns,
                WorkerJoined(hello.worker, hello.device_kind, hello.pages, hello.prepared, hello.resident),
            )
            _LOGGER.info("%s joined; clock offset %d ns", session, session.clock.offset_ns)

    def end(
        self, now_ns: int, session: Session, reason: str, *, name_lost: bool = False, known: bool = False
    ) -> None:
        """End a session. ``known``: the scheduler knows already that the worker is gone."""
        if not self._sessions.is_open(session):
            return
        _LOGGER.info("%s ends: %s", session, reason)
        if isinstance(session, WorkerSession):
            self._sessions.close(session, name_lost)
            if session.joined and not known:
                self._scheduler.handle(now_ns, WorkerLeft(session.name, reason))
            self._post.to_gateways(WorkerDown(session.name))
        elif isinstance(session, GatewaySession):
            self._sessions.close(session, name_lost)
            self._scheduler.handle(now_ns, GatewayLeft(session.number))
            self._catalogue.gateway_left(now_ns, session)

    def drop(self, now_ns: int, worker: str, reason: str) -> None:
        """Break with a worker, as the scheduler has done; it may say hello again."""
        session = self._sessions.workers.get(worker)
        if session is not None:
            self._post.refuse(now_ns, session.routing_id, "unknown_session", f"dropped: {reason}")
            self.end(now_ns, session, f"dropped: {reason}", known=True)

    def settle(self, now_ns: int) -> None:
        """End the sessions to which nothing could be sent."""
        while broken := self._post.take_broken():
            for session, why in broken.items():
                self._post.refuse(now_ns, session.routing_id, "unknown_session", f"a message was lost: {why}")
                self.end(now_ns, session, f"a message to it was lost: {why}")

    @property
    def next_beat_ns(self) -> int:
        """When `beat` is to be called next."""
        return 0 if self._last_beat_ns is None else self._last_beat_ns + self._interval_ns

    def beat(self, now_ns: int) -> None:
        """End the sessions of peers that are silent for too long, and ping the others."""
        last_ns, self._last_beat_ns = self._last_beat_ns, now_ns
        if last_ns is not None and now_ns - last_ns > self._timeout_ns // 2:
            _LOGGER.warning("the controller itself stood still for %.0f ms", (now_ns - last_ns) / 1e6)
            for session in self._sessions.all():
                session.heard_ns = now_ns
        for session in self._sessions.silent_since(now_ns - self._timeout_ns):
            self._dropped.count("peer_silent")
            silent_ms = (now_ns - session.heard_ns) / 1e6
            self._post.refuse(now_ns, session.routing_id, "unknown_session", f"silent for {silent_ms:.0f} ms")
            self.end(now_ns, session, f"silent for {silent_ms:.0f} ms")
        for session in self._sessions.all():
            self._post.to(session, session.ping(now_ns))
        self.settle(now_ns)

    def goodbye(self, detail: str) -> None:
        """Tell every peer that the controller leaves."""
        for session in self._sessions.all():
            self._post.to(session, Goodbye(detail))

    def _refusal(self, routing_id: bytes, hello: WorkerHello | GatewayHello) -> tuple[str, str] | None:
        if hello.protocol != PROTOCOL_VERSION:
            return "protocol_mismatch", protocol_detail(hello.protocol)
        if isinstance(hello, WorkerHello):
            if hello.page_bytes != PAGE_BYTES:
                return (
                    "bad_page_size",
                    f"pages are {PAGE_BYTES} bytes here; the worker's are {hello.page_bytes}",
                )
            fault = name_fault(hello.worker) or memory_fault(hello)
        else:
            fault = name_fault(hello.gateway)
        if fault is not None:
            return "bad_message", f"the hello is of no use: {fault}"
        if self._sessions.name_is_lost(routing_id, hello):
            return "name_taken", "a newer process has this name; stop this one, or give it a name of its own"
        if len(self._sessions) >= self._config.max_peers and not self._sessions.replaced_by(
            routing_id, hello
        ):
            return (
                "too_many_peers",
                f"{self._config.max_peers} peers are connected, which is the bound (max_peers)",
            )
        return None

    def _welcome_worker(self, now_ns: int, session: WorkerSession) -> None:
        self._post.to(session, Welcome(PROTOCOL_VERSION, session.number))
        self._returning.ask(session)
        self._post.to(session, session.ping(now_ns))
        self._post.to_gateways(WorkerUp(session.name, session.hello.data_address))

    def _welcome_gateway(self, now_ns: int, session: GatewaySession) -> None:
        self._post.to(session, Welcome(PROTOCOL_VERSION, session.number))
        self._catalogue.welcome(session)
        for worker in self._sessions.workers.values():
            self._post.to(session, WorkerUp(worker.name, worker.hello.data_address))
        self._post.to(session, session.ping(now_ns))


def protocol_detail(theirs: int) -> str:
    """Return the words for a peer of another protocol version."""
    return (
        f"the controller speaks protocol {PROTOCOL_VERSION}, the peer protocol {theirs}; "
        "install the same release of Mainspring on both"
    )
