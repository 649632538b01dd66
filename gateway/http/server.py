"""The gateway's HTTP server: the listening socket, its connections, and who may ask for what."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping
from time import monotonic_ns
from typing import Any, Final, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from mainspring.gateway.config import AGES, ANY, GatewayConfig, Group, Restrictions
from mainspring.gateway.core.effects import Connection
from mainspring.gateway.descriptors import share
from mainspring.gateway.http.admission_queue import TurnClock
from mainspring.gateway.http.applications import ApplicationRoutes
from mainspring.gateway.http.connection import NEVER_NS, HttpConnection, Limits
from mainspring.gateway.http.control import Control
from mainspring.gateway.http.exchange import Exchange, Handler
from mainspring.gateway.http.infer import Inference
from mainspring.gateway.http.receiver import READ_BYTES, Heads
from mainspring.gateway.http.routes import Routes, routes
from mainspring.gateway.http.shared_memory import SharedMemory
from mainspring.gateway.http.texts import Texts
from mainspring.gateway.memory import Budget, Memory
from mainspring.gateway.services import Services
from mainspring.transport import accepting
from mainspring.transport.keys import ServerKeys
from mainspring.transport.origins import KnownNames
from mainspring.transport.tokens import Gate, Refusal

EXPOSED: Final = b"inference-header-content-length, retry-after, server-timing, www-authenticate"
"""Headers of replies that a page may read beside those that it always may."""
_KEPT_S: Final = 600
"""Seconds that a browser may remember what a preflight said."""
_NAMES = re.compile(rb"[a-zA-Z0-9_, -]{1,1024}")
_KEEP_OFF = (
    "a page of another site may not call this: it changes something, or its origin is not among "
    "http_cors_origins of [gateway]"
)


class Cors:
    """The pages of other sites that may call the gateway: CORS, as WHATWG's Fetch has it.

    Off unless origins are named. What changes something is never among what such a page may call.
    """

    def __init__(self, origins: Iterable[str]) -> None:
        named = {each.lower().encode() for each in origins}
        self._any = ANY.encode() in named
        self._origins = named

    def headers(self, headers: Mapping[bytes, bytes]) -> bytes:
        """Return what the reply to a request with these headers says; empty where a page may not read it."""
        origin = headers.get(b"origin")
        if origin is None:
            return b""
        if self._any:
            return _allowed(ANY.encode(), b"")
        return _allowed(origin, b"vary: origin\r\n") if origin.lower() in self._origins else b""


@functools.lru_cache(64)
def _allowed(origin: bytes, vary: bytes) -> bytes:
    return (
        b"access-control-allow-origin: %s\r\naccess-control-expose-headers: %s\r\n"
        b"timing-allow-origin: %s\r\n%s" % (origin, EXPOSED, origin, vary)
    )


def is_preflight(exchange: Exchange) -> bool:
    """Say whether a browser asks what a page may do."""
    return exchange.method == b"OPTIONS" and b"access-control-request-method" in exchange.headers


def preflight(methods: Iterable[bytes]) -> Handler:
    """Return the handler that answers a preflight for a path that takes these methods."""
    return functools.partial(_preflight, b", ".join(sorted(methods)))


def _preflight(methods: bytes, exchange: Exchange) -> None:
    if not exchange.extra:
        exchange.fail(403, _KEEP_OFF)
        return
    more = b"access-control-allow-methods: %s\r\naccess-control-max-age: %d\r\n" % (methods, _KEPT_S)
    asked = exchange.headers.get(b"access-control-request-headers", b"")
    if _NAMES.fullmatch(asked):
        more += b"access-control-allow-headers: %s\r\n" % asked
    if exchange.headers.get(b"access-control-request-private-network") == b"true":
        more += b"access-control-allow-private-network: true\r\n"
    exchange.reply(200, (), b"text/plain", more)


_NOWHERE: Final = preflight((b"GET", b"POST"))
"""Lets a page ask for what is not there, so that it can read that."""

SLOTS: Final = 50
"""Into which a period is divided."""
_LEAST_PERIOD_NS = 100_000_000
_LONGEST_PERIOD_NS = 5_000_000_000
_PARTS = 4
"""A time-out may be noticed late by one part in this many of itself."""


_ROUNDING = 1e-3


class Watched(Protocol):
    """Something that `Watch` looks after."""

    def check(self, now_ns: int) -> bool:
        """Do what is due; return whether to look again."""


class Watch:
    """See the module's docstring; of one event loop, the one that runs when it is made."""

    def __init__(self, shortest_timeout_ns: int) -> None:
        period_ns = min(max(shortest_timeout_ns // _PARTS, _LEAST_PERIOD_NS), _LONGEST_PERIOD_NS)
        self.period_s = period_ns / 1e9
        self._interval_s = self.period_s / SLOTS
        self._slots: list[list[Watched]] = [[] for _ in range(SLOTS)]
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._done = 0
        """Number of intervals that have been worked off since then; a slot's turn comes every `SLOTS` of
        them."""
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        """The interval that the timer is set for."""
        self._closed = False

    def add(self, watched: Watched) -> None:
        """Look after this one from now on, for the first time within a period, or a little later."""
        passed = max(self._done, self._passed())
        if self._timer is None or passed < self._next:
            # Nothing was to be done since.
            self._done = passed
        self._slots[passed % SLOTS].append(watched)
        if self._timer is None:
            self._set()

    def close(self) -> None:
        """Look after nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        for slot in self._slots:
            slot.clear()

    def _passed(self) -> int:
        # A timer that is on time may come out a little less than its number.
        return int((self._loop.time() - self._began_s) / self._interval_s + _ROUNDING)

    def _turn(self) -> None:
        now_ns, passed = monotonic_ns(), self._passed()
        for number in range(self._done + 1, min(passed, self._done + SLOTS) + 1):
            slot = self._slots[number % SLOTS]
            looked_at = slot[:]
            # A check may add others.
            slot.clear()
            slot += [each for each in looked_at if each.check(now_ns) and not self._closed]
        self._done = max(self._done, passed)
        self._timer = None
        self._set()

    def _set(self) -> None:
        """Set the timer for the next slot that holds something."""
        if self._closed:
            return
        for number in range(self._done + 1, self._done + SLOTS + 1):
            if self._slots[number % SLOTS]:
                self._next = number
                at_s = self._began_s + number * self._interval_s
                self._timer = self._loop.call_at(at_s, self._turn)
                return


SCHEMES = ("http", "https")
_BACKLOG = 1_024
_LEAST_HANDSHAKES = 8
_MOST_REFUSED = 16
"""Connections beyond the bound that are told so; a further one ends the oldest of them at once."""
_IDLE_SEARCH = 64
"""Number of the oldest connections that are looked at for one that can be closed."""
_EVICTED_IDLE_NS = 1_000_000_000
"""Least nanoseconds without a byte from a connection before it has to make room."""


class Address(NamedTuple):
    """The address to listen at."""

    host: str
    port: int
    encrypted: bool = False
    """True if clients speak TLS."""


class HttpServer:
    """The server that `serve_http` returns; its connections' host."""

    def __init__(
        self,
        services: Services,
        config: GatewayConfig,
        table: Routes,
        end: Callable[[], None],
        most: int = 0,
        clock: TurnClock | None = None,
    ) -> None:
        """``end`` is called once nobody can ask for anything more; 0: as ``most`` the share of HTTP.

        ``clock`` is the loop's, if somebody else asks it already.
        """
        self._services = services
        # Of no class here: compiled code would take no other one.
        self._driver: Any = cast("Any", services).driver
        self._gate: Gate = self._driver.gate
        self.limits = Limits(config)
        self.shared = bytearray(READ_BYTES)
        self.heads = Heads()
        self._config = config
        self.budget = Budget(config.max_in_flight_bytes)
        self.memory: Memory = self._driver.memory
        self.uploads = services.uploads
        self.answers = services.answers
        self._guard = PageGuard(config.http_hosts)
        self._cors = Cors(config.http_cors_origins) if config.http_cors_origins else None
        """The pages of other sites that may call; None: none."""
        self._restrictions = Restrictions("http_restricted_api", config.http_restricted_api)
        self._max_connections = most or share(config, config.http_max_connections)
        self._connections: dict[HttpConnection, None] = {}
        """The longest here first, but for those that were found busy."""
        self._strangers: dict[HttpConnection, None] = {}
        """Those that have asked for nothing yet, or for nothing that they may have; the oldest first."""
        self._refused: dict[HttpConnection, None] = {}
        """Those beyond the bound, which are told so and counted apart; the oldest first."""
        self._watch = Watch(self.limits.shortest_ns)
        self._routes = table
        self._end = end
        self._leaving = False
        self._server: accepting.Server | None = None
        self._clock = clock or TurnClock()
        self.address = ""
        """The address, with the real port."""

    async def listen(self, address: Address) -> None:
        """Serve from now on; raise OSError if the address can't be had, or the certificate not be shown."""
        protocol = cast("Callable[[], asyncio.BaseProtocol]", functools.partial(HttpConnection, self))
        keys = None
        if address.encrypted:
            keys = ServerKeys(self._config.tls, clients=self._config.client_certificates)
        self._server = server = accepting.Server(
            accepting.listen(address.host, address.port, _BACKLOG),
            protocol,
            keys,
            self._config.http_header_timeout_ms / 1e3,
            self._flooded,
            max(_LEAST_HANDSHAKES, min(accepting.MAX_HANDSHAKES, self._max_connections // 4)),
        )
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.address = f"{SCHEMES[address.encrypted]}://{host}:{server.sockets[0].getsockname()[1]}"

    def leave(self) -> None:
        """Tell clients to go, those that are connected and those that come yet; they are served as before."""
        self._leaving = True
        for connection in self._connections:
            connection.tell_to_go()

    async def close(self, grace_s: float) -> None:
        """Take nothing new, let what is in flight be answered within ``grace_s``, then close all."""
        if self._server is not None:
            self._server.close()
        for connection in (*self._connections, *self._refused):
            connection.shut_down()
        until_ns = monotonic_ns() + round(grace_s * 1e9)
        while self._connections and monotonic_ns() < until_ns:
            await asyncio.sleep(0.005)
        for connection in (*self._connections, *self._refused):
            connection.abort()
        await asyncio.sleep(0)
        self._watch.close()
        self._end()

    def _flooded(self) -> None:
        """Count a connection that was closed because its host begins too many handshakes of TLS."""
        self._driver.counts["handshakes_refused"] += 1

    # --- called by connections ---

    def goes_ns(self) -> int:
        """Return the instant at which a connection that begins now is told to go."""
        if self._leaving or not self.limits.age_ns:
            return 0 if self._leaving else NEVER_NS
        return monotonic_ns() + round(self.limits.age_ns * random.uniform(*AGES))

    def read_at_ns(self) -> int:
        """Return the instant since which what is being read now may have been there to be read."""
        return self._clock.read_at_ns()

    def admit(self, connection: HttpConnection) -> bool:
        """Count a new connection; return whether there is room, if need be by closing one that is idle."""
        self._watch.add(connection)
        if len(self._connections) >= self._max_connections and not self._make_room():
            self._refused[connection] = None
            if len(self._refused) > _MOST_REFUSED:
                oldest = next(iter(self._refused))
                oldest.abort()
                self.gone(oldest)
            return False
        self._connections[connection] = self._strangers[connection] = None
        return True

    def gone(self, connection: HttpConnection) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)
        self._strangers.pop(connection, None)
        self._refused.pop(connection, None)

    def forget(self, peer: Connection) -> None:
        """Give up the requests of a client that is gone."""
        self._services.forget(peer)

    def route(self, exchange: Exchange) -> bool:
        """Set the handler of a request whose head is there; return whether its body is wanted."""
        match = self._routes.find(exchange.target)
        if self._cors is not None and (match is None or not (match.route.administers or match.route.guarded)):
            exchange.extra = self._cors.headers(exchange.headers)
        if match is None:
            exchange.handler = _NOWHERE if is_preflight(exchange) and exchange.extra else _nothing_here
            return False
        route, exchange.arguments, model = match
        if self._cors is not None and is_preflight(exchange):
            exchange.handler = preflight(route.handlers)
            return False
        method = b"GET" if exchange.method == b"HEAD" else exchange.method
        exchange.handler = route.handlers.get(method)
        if exchange.handler is None:
            exchange.handler = functools.partial(_not_allowed, b", ".join(route.handlers))
            return False
        changes = method not in (b"GET", b"OPTIONS")
        if (route.administers or route.guarded) and changes:
            problem = self._guard.problem(exchange.headers)
            if problem:
                exchange.handler = functools.partial(_keep_off, problem)
                return False
        if self._gate.closed and not route.open:
            refusal = self._gate.authorise(
                exchange.header(b"authorization"),
                model,
                monotonic_ns(),
                administers=route.administers and changes,
            )
            if refusal is not None:
                exchange.handler = functools.partial(_turn_away, refusal)
                if model is not None and route.group == Group.INFERENCE:
                    self._services.turned_away(model, refusal[0])
                return False
        if not (self._gate.closed and route.open):
            self._strangers.pop(cast("HttpConnection", exchange.sender), None)
        if route.group in self._restrictions.needed:
            missing = self._restrictions.missing(route.group, lambda name: exchange.header(name.encode()))
            if missing is not None:
                exchange.handler = functools.partial(_keep_off, _restricted(missing))
                return False
        return True

    # --- inside ---

    def _make_room(self) -> bool:
        """Close one that has asked for nothing, or has long been silent; return whether there was one.

        Whatever the former sends: else some hundred that send a byte now and then would keep everybody out.
        """
        now_ns = monotonic_ns()
        stranger = next(iter(self._strangers), None)
        if stranger is not None:
            stranger.abort()
            self.gone(stranger)
            return True
        for connection in list(itertools.islice(self._connections, _IDLE_SEARCH)):
            if now_ns - connection.silent_since_ns > _EVICTED_IDLE_NS:
                connection.abort()
                self.gone(connection)
                return True
            del self._connections[connection]
            self._connections[connection] = None
        return False


async def serve_http(services: Services, config: GatewayConfig) -> HttpServer:
    """Serve HTTP at the configuration's ``http_address``; raise OSError if that can't be had."""
    clock = TurnClock()
    shared = SharedMemory(services, PageGuard(config.http_hosts).problem)
    inference = Inference(services, config, shared, clock)
    texts = Texts(services, config, clock)
    control, applications = Control(services, shared), ApplicationRoutes(services)
    table = routes(control, inference, shared, texts, applications, docs=config.http_docs)
    server = HttpServer(services, config, table, inference.close, clock=clock)
    return await listening(server, "HTTP", config.http_address)


async def listening(server: HttpServer, what: str, text: str) -> HttpServer:
    """Return the server once it listens at an address; raise OSError, with it closed, if it can't."""
    try:
        await server.listen(parse_address(text))
    except OSError as error:
        await server.close(0)
        if error.errno is None:
            raise
        raise OSError(
            f"the gateway can't serve {what} at {text}: {error.strerror or error}; is another server running "
            "there? Choose another address, or port 0 for a free one"
        ) from None
    return server


def parse_address(text: str) -> Address:
    """Return host and port of an address; raise OSError if it is none."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme not in SCHEMES or parts.path not in ("", "/"):
        raise OSError(
            f"{text!r} is not an address to serve HTTP at; it is http://HOST:PORT, such as "
            "http://127.0.0.1:8000, or https://HOST:PORT, with port 0 for any free one"
        )
    return Address(host, port, parts.scheme == SCHEMES[True])


def _nothing_here(exchange: Exchange) -> None:
    if exchange.headers.get(b"content-type", b"").startswith(b"application/grpc"):
        exchange.fail(
            415,
            "gRPC is not spoken at this address, nor gRPC-Web: clients of gRPC call the gateway's "
            "grpc_address, over HTTP/2; for gRPC-Web put a proxy before that, such as Envoy",
        )
        return
    exchange.fail(404, "there is nothing here; /openapi.json describes what there is")


def _not_allowed(allowed: bytes, exchange: Exchange) -> None:
    method = exchange.method.decode("latin-1")
    exchange.fail(
        405, f"{method} is not what this path takes; it takes {allowed.decode()}", b"allow: %s\r\n" % allowed
    )


def _keep_off(problem: str, exchange: Exchange) -> None:
    exchange.fail(403, problem)


def _restricted(header: str) -> str:
    """Return what a call is told that lacks a header, in Triton's words."""
    return f"This API is restricted, expecting header '{header}'"


def _turn_away(refusal: Refusal, exchange: Exchange) -> None:
    exchange.refuse(*refusal)


_OF_BROWSERS: Final = (b"origin", b"referer", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest")
_OWN_SITE: Final = (b"same-origin", b"none")


class PageGuard:
    """See the module's docstring."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """``hosts``: names of the gateway beside ``localhost`` and numeric addresses."""
        self._names = KnownNames(hosts)

    def problem(self, headers: Mapping[bytes, bytes]) -> str:
        """Return why a request with these headers may change nothing; empty if it may."""
        if not any(name in headers for name in _OF_BROWSERS):
            return ""
        called = headers.get(b"host", b"").decode("latin-1")
        if not self._names.known(called):
            return (
                f"the gateway is not known to browsers as {called[:200]!r}: call it by its address or as "
                "localhost, or add the name to http_hosts in the table [gateway]"
            )
        origin = headers.get(b"origin")
        if origin is not None:
            own = self._names.own(origin.decode("latin-1"), called)
        else:
            own = headers.get(b"sec-fetch-site") in _OWN_SITE
        return "" if own else "a page of another site may change nothing here; use a program, or an own page"
