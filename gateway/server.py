"""The gateway's process: one thread, one event loop for all sockets, each served a burst at a time.

The connections to the controller and to the workers have a `Hub` of their own, whose descriptor the loop
watches; ZeroMQ's clients are in it too. Other protocols run as the loop's tasks:
`STARTERS` has those that the configuration may give an address.

Once no request has come for a while, `Reclaiming` gives the memory that a peak needed back to the system: the
heap keeps what was freed in it, and memory that is shared with workers each page that was ever written.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import re
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic_ns
from types import ModuleType
from typing import Final, NamedTuple, Protocol

import uvloop

from mainspring.gateway.aside import place
from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.descriptors import shortage
from mainspring.gateway.driver import GatewayDriver
from mainspring.gateway.local_clients import serve_local
from mainspring.gateway.memory import Uploads
from mainspring.gateway.services import Services
from mainspring.gateway.stores.opening import open_store
from mainspring.gateway.zeromq import ZeroMqFrontEnd
from mainspring.transport.hub import Hub
from mainspring.transport.stopping import WhenSet


class Addresses(NamedTuple):
    """The addresses at which a gateway's clients connect, with real ports; empty for what is not served."""

    zeromq: str
    http: str = ""
    grpc: str = ""
    metrics: str = ""
    trace: str = ""
    """The address that traces go to."""
    access_log: str = ""
    """The file with a line for each request."""


class Served(Protocol):
    """A protocol that is being served."""

    address: str
    """The address, with the real port."""

    def leave(self) -> None:
        """Tell clients to go, and serve them as before."""

    async def close(self, grace_s: float) -> None:
        """Take nothing new; let what is in flight be answered within ``grace_s``; then close all."""


Starter = Callable[[Services, GatewayConfig], Awaitable[Served]]


async def start_front_ends(services: Services, config: GatewayConfig) -> dict[str, Served]:
    """Serve every protocol that has an address, by name; raise OSError, with none served, if one can't be."""
    served: dict[str, Served] = {}
    try:
        for name, starter in STARTERS.items():
            if getattr(config, _KEYS.get(name, f"{name}_address")):
                served[name] = await starter(services, config)
    except BaseException:
        for each in served.values():
            with contextlib.suppress(OSError):
                await each.close(0)
        raise
    return served


async def _serve_http(services: Services, config: GatewayConfig) -> Served:
    from mainspring.gateway.http.server import serve_http

    return await serve_http(services, config)


async def _serve_grpc(services: Services, config: GatewayConfig) -> Served:
    from mainspring.gateway.grpc.server import serve_grpc

    return await serve_grpc(services, config)


async def _serve_metrics(services: Services, config: GatewayConfig) -> Served:
    from mainspring.gateway.metrics.server import serve_metrics

    return await serve_metrics(services, config)


async def _start_tracing(services: Services, config: GatewayConfig) -> Served:
    from mainspring.gateway.otlp import start_tracing

    return start_tracing(services, config)


async def _start_access_log(services: Services, config: GatewayConfig) -> Served:
    from mainspring.gateway.access_log import start_access_log

    return start_access_log(services, config)


_KEYS = {"access_log": "access_log"}
STARTERS: dict[str, Starter] = {
    "http": _serve_http,
    "grpc": _serve_grpc,
    "metrics": _serve_metrics,
    "trace": _start_tracing,
    "access_log": _start_access_log,
}
"""By the name of the protocol; ``NAME_address`` of `GatewayConfig` says where, or the key in `_KEYS`. Each
imports what it needs when it is called, so that a gateway for ZeroMQ alone starts at once."""


log = logging.getLogger("mainspring.gateway")

_LOOK_S = 0.25
"""Seconds between two looks whether garbage can be collected."""
_FOREVER_NS = 1 << 62
_ROUNDED_NS = 500_000
"""The loop's timers are rounded to milliseconds: never to one before."""


def run(
    config: GatewayConfig, stop: threading.Event, on_ready: Callable[[Addresses], None] | None = None
) -> None:
    """Serve until ``stop`` is set, then let what is in flight end, and return.

    ``on_ready`` is called with the addresses once clients can connect. Raises OSError if an address can't
    be had.
    """
    loop = uvloop.new_event_loop()
    try:
        with _signals_as_before() as restore:
            loop.call_soon(restore)
            loop.run_until_complete(_serve(config, stop, on_ready))
    finally:
        loop.close()


@contextmanager
def _signals_as_before() -> Iterator[Callable[[], object]]:
    """Leave signals to whom the process told of them: the loop takes their descriptor when it starts.

    Yields what gives it back, to be called in the loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    told = signal.set_wakeup_fd(-1)
    restore = partial(signal.set_wakeup_fd, told, warn_on_full_buffer=False)
    try:
        yield restore
    finally:
        restore()


async def _serve(
    config: GatewayConfig,
    stop: threading.Event,
    on_ready: Callable[[Addresses], None] | None,
) -> None:
    server = _Server(config)
    front_ends: dict[str, Served] = {}
    try:
        front_ends = await start_front_ends(server.services, config)
        if (few := shortage(config)) is not None:
            log.warning("%s", few)
        server.watch()
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        with Garbage() as garbage, WhenSet(stop, partial(loop.call_soon_threadsafe, stopped.set)):
            if on_ready is not None:
                addresses = {name: each.address for name, each in front_ends.items()}
                on_ready(Addresses(server.address, **addresses))
            while not stop.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), _LOOK_S)
                server.collect(garbage)
            await server.drain(front_ends)
    finally:
        server.close()


class _Server:
    """The hub and ZeroMQ's clients, served by callbacks of the loop."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._hub = Hub()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = _FOREVER_NS
        self._again = False
        """True if a turn follows at once."""
        uploads = Uploads()
        try:
            self._driver = GatewayDriver(self._hub, config)
            self._driver.catalog.graphs.applications.place = place
            self._clients = ZeroMqFrontEnd(config, self._driver, self._hub)
            self._local = serve_local(config, self._driver, self._hub, self.address)
        except BaseException:
            self._hub.close()
            raise
        self._learnt = open_store(config, self._driver.catalog.graphs.applications, self._loop)
        self.services = Services(self._driver, self._settle, uploads)
        self._reclaiming = of_this_process(self._driver.workers.renew_slab)

    @property
    def address(self) -> str:
        """Return the address at which ZeroMQ's clients connect."""
        return self._clients.address

    def watch(self) -> None:
        """Serve from now on."""
        self._loop.add_reader(self._hub.epoll.fileno(), self._turn)
        self._turn()

    def collect(self, garbage: Garbage) -> None:
        """Let garbage be collected and memory be given back, if this is a time for it."""
        catalog, core = self._driver.catalog, self._driver.core
        held = len(catalog.signatures) + len(catalog.served) + len(catalog.workers)
        asked = core.counts["submitted"]
        now_ns = monotonic_ns()
        if catalog.graphs.specs or self._driver.learning.busy:
            self._driver.learning.look(now_ns)
        garbage.consider(now_ns, asked=asked, in_flight=core.in_flight, held=held)
        self._reclaiming.consider(now_ns, asked=asked, in_flight=core.in_flight)

    def close(self) -> None:
        """Take leave of the controller and close the sockets."""
        self._loop.remove_reader(self._hub.epoll.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._driver.goodbye()
        if self._learnt is not None:
            self._learnt.close(self._config.goodbye_linger_ms / 1e3)
        self._hub.close(milliseconds(self._config.goodbye_linger_ms))

    async def drain(self, front_ends: dict[str, Served]) -> None:
        """Leave: serve on for a while as one that is about to stop, then refuse what comes, let what is in
        flight end while it may, and answer the rest."""
        core = self._driver.core
        await self._leave(front_ends)
        core.shut_down()
        give_up_ns = monotonic_ns() + milliseconds(self._config.drain_timeout_ms)
        while core.in_flight and monotonic_ns() < give_up_ns:
            await asyncio.sleep(1e-3)
        self._driver.abandon()
        grace_s = self._config.goodbye_linger_ms / 1e3
        await asyncio.gather(*(each.close(grace_s) for each in front_ends.values()))

    async def _leave(self, front_ends: dict[str, Served]) -> None:
        self._driver.readiness.leave()
        lame_duck_ms = self._config.lame_duck_ms
        if not lame_duck_ms:
            return
        log.warning("leaving: requests are answered for %g ms more", lame_duck_ms)
        for each in (*front_ends.values(), self._clients, self._local):
            if each is not None:
                each.leave()
        self._settle()
        await asyncio.sleep(lame_duck_ms / 1e3)

    def _turn(self) -> None:
        """Serve what has come, a burst of each."""
        self._again = False
        burst = self._config.burst_messages
        for port in self._hub.wait(0):
            self._driver.serve(port, burst)
        for clients in (self._clients, self._local):
            for _ in range(burst):
                if clients is None or not clients.readable():
                    break
                clients.serve(1)
        self._settle()

    def _tick(self) -> None:
        """Do what is due, if anything is: the loop counts whole milliseconds."""
        self._timer, self._timer_ns = None, _FOREVER_NS
        now_ns = monotonic_ns()
        self._driver.tick(now_ns)
        for clients in (self._clients, self._local):
            if clients is not None:
                clients.tick(now_ns)
        self._turn()

    def _settle(self) -> None:
        """See to it that the next turn comes in time."""
        if not self._again and (self._hub.pending() or self._clients.readable()):
            self._again = True
            self._loop.call_soon(self._turn)
        wakeup_ns = min(self._driver.next_wakeup_ns(), self._hub.due_ns)
        if wakeup_ns < self._timer_ns:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ns = wakeup_ns
            left_ns = max(0, wakeup_ns - monotonic_ns())
            self._timer = self._loop.call_later((left_ns + _ROUNDED_NS) / 1e9, self._tick)


COLLECT_NS: Final = 1_000_000_000
"""Least time between two collections while nothing is asked for."""
COLLECT_BUSY_NS: Final = 20_000_000_000
"""Longest time between two while something always is."""


class Garbage:
    """Collects in the loop's pauses; while it is entered, the collector does nothing of itself."""

    def __init__(self, collector: ModuleType = gc) -> None:
        """``collector`` has the functions of `gc`."""
        self._gc = collector
        self._was_enabled = collector.isenabled()
        self._collected_ns = 0
        self._asked = -1
        self._held = 0

    def __enter__(self) -> Garbage:
        self._collect(0)
        self._gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        self._gc.unfreeze()
        if self._was_enabled:
            self._gc.enable()

    def consider(self, now_ns: int, *, asked: int, in_flight: int, held: int) -> None:
        """Collect if nothing is going on, or if it has been too long; to be called now and then.

        ``asked`` counts requests, ``in_flight`` those without an answer, ``held`` the models and workers that
        are known.
        """
        idle = asked == self._asked and not in_flight
        self._asked = asked
        if now_ns - self._collected_ns > (COLLECT_NS if idle else COLLECT_BUSY_NS):
            self._collected_ns = now_ns
            self._collect(held, whole=idle)

    def _collect(self, held: int, *, whole: bool = True) -> None:
        if whole and held < self._held:
            self._gc.unfreeze()
        self._held = held if whole else max(held, self._held)
        self._gc.collect()
        self._gc.freeze()


IDLE_NS: Final = 10_000_000_000
"""Nanoseconds without a request before memory is given back."""
WORTH_BYTES: Final = 16 << 20
"""Less of shared memory is not given back: that would take new connections to the workers."""


class Reclaiming:
    """Gives memory that a peak needed back to the system, as the module's docstring says."""

    def __init__(
        self, shared_bytes: Callable[[], int], renew: Callable[[], object], trim: Callable[[], object]
    ) -> None:
        """``shared_bytes``: what of memory that is shared is this process's; ``renew`` gives it back.

        ``trim`` gives back what is free of the heap.
        """
        self._shared_bytes, self._renew, self._trim = shared_bytes, renew, trim
        self._asked = 0
        self._since_ns = 0
        """Instant since which no request has come."""
        self._done = True
        """True if memory was given back since then."""

    def consider(self, now_ns: int, *, asked: int, in_flight: int) -> None:
        """Give memory back if this is a time for it; to be called now and then.

        ``asked`` counts requests, ``in_flight`` those without an answer.
        """
        if asked != self._asked or in_flight:
            self._asked, self._since_ns, self._done = asked, now_ns, False
        elif not self._done and now_ns - self._since_ns >= IDLE_NS:
            self._done = True
            if self._shared_bytes() >= WORTH_BYTES:
                self._renew()
            self._trim()


def of_this_process(renew: Callable[[], object]) -> Reclaiming:
    """Return what gives this process's memory back; the heap's, if the C library can (malloc_trim(3))."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return Reclaiming(shared_bytes, renew, (lambda: trim(0)) if trim is not None else lambda: None)


def shared_bytes() -> int:
    """Return how many bytes of shared memory this process has touched; 0 where the system doesn't tell."""
    try:
        found = re.search(r"^RssShmem:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return 0 if found is None else int(found[1]) << 10
