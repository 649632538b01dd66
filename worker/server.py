"""A worker from start to end: memory, engine, threads and sockets; serving until it is stopped; draining."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import cpu_targets
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.roles import Role, may_connect
from mainspring.transport import addresses
from mainspring.transport.addresses import Address
from mainspring.transport.bounds import Limits
from mainspring.transport.greeting import Pass, present
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.keys import client_context
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener
from mainspring.transport.local import PREFIX as LOCAL
from mainspring.transport.stopping import WhenSet
from mainspring.transport.tokens import read_token
from mainspring.worker.batches import Outbox
from mainspring.worker.config import WorkerConfig
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engine import Engine, Monitored, Noted, OwnMemory, Targeted
from mainspring.worker.engines.artifacts import StoreWatch
from mainspring.worker.engines.registry import make_engine
from mainspring.worker.executors import Executors
from mainspring.worker.fetching import Fetcher
from mainspring.worker.inputs import Inputs
from mainspring.worker.limits import LimitWatch, read_limits
from mainspring.worker.network import Network, Sockets
from mainspring.worker.realtime import Rights
from mainspring.worker.sources import source_of

LOG = logging.getLogger(__name__)

STEP_NS = 50_000_000
"""Longest sleep of the network thread while it drains."""
LINGER_NS = 500_000_000
"""Time that messages which wait to be sent have to leave at the end."""
SEND_LIMIT = 10_000
"""Messages that may wait for a peer that reads slowly; further ones are dropped and counted."""
CONTROLLER_BACKLOG_BYTES = 64 << 20
WAITING_DESCRIPTORS = 4
"""Descriptors of a gateway that may have come with messages that are not worked off."""

OnReady = Callable[[str], None]
"""Called once, with the address of the data socket, when the worker can be reached."""


class WorkerFailed(RuntimeError):
    """The worker can't go on; the text says why."""


def run(config: WorkerConfig, stop: threading.Event, on_ready: OnReady | None = None) -> None:
    """Serve until ``stop`` is set, then drain and return; the calling thread is the network thread.

    Raises `ValueError` for an unknown engine, `MemoryError` if the pages don't fit into memory, `OSError`
    that names the address if one can't be used, `WorkerFailed` if an executor broke.
    """
    rights = Rights(
        config.realtime, config.exec_core, computes=config.computes, shared=config.exec_core_shared
    )
    rights.claim_libraries()
    engine = make_engine(config)
    if isinstance(engine, OwnMemory):
        config = msgspec.structs.replace(config, pages=engine.pages, device_kind=engine.device_kind)
    if isinstance(engine, Noted):
        rights.notes.extend(engine.notes)
    rights.claim_process()
    rights.claim_network()
    outbox = Outbox()
    try:
        hub = Hub()
        try:
            sockets = _open_sockets(hub, config)
        except BaseException:
            hub.close()
            raise
        hub.watch(outbox.bell, outbox)
        try:
            _serve(config, rights, engine, outbox, sockets, stop, on_ready)
        finally:
            hub.close(LINGER_NS)
    finally:
        outbox.close()
        rights.release_process()


def _monitored(engine: Engine) -> Monitored | None:
    """Return what watches the engine's device, and the host's limits if there are any."""
    monitor = engine if isinstance(engine, Monitored) else None
    return LimitWatch(monitor) if read_limits().sentences() else monitor


def _targets(config: WorkerConfig, engine: Engine) -> tuple[str, ...]:
    """Return which artifacts the device runs; raise `ValueError` for an instruction set that it lacks."""
    if isinstance(engine, Targeted):
        return engine.targets
    return cpu_targets(config.engine, config.instruction_set) if config.computes else ()


def _serve(
    config: WorkerConfig,
    rights: Rights,
    engine: Engine,
    outbox: Outbox,
    sockets: Sockets,
    stop: threading.Event,
    on_ready: OnReady | None,
) -> None:
    core = WorkerCore(config.name, config.pages, PAGE_BYTES, config.io_bytes)
    fetcher = _fetcher(config, stop)
    watch, targets, monitored = _watch(config, fetcher), _targets(config, engine), _monitored(engine)
    executors = Executors(
        core,
        engine,
        rights,
        outbox,
        config.spin_us * 1000,
        watch,
        round(config.heartbeat_ms * 1e6),
        round(config.overrun_ms * 1e6),
        fetcher,
        targets,
    )
    inputs = Inputs(
        engine.io,
        config.early_inputs,
        config.early_input_bytes,
        config.early_input_age_ms * 1_000_000,
        engine.transfers if isinstance(engine, OwnMemory) else None,
    )
    executors.start()
    for note in rights.notes:
        LOG.warning("%s", note)
    network = Network(config, sockets, executors, inputs, outbox, rights.notes, watch, monitored, targets)
    if on_ready is not None:
        on_ready(sockets.data_address)
    try:
        with WhenSet(stop, outbox.call):
            while not stop.is_set() and not executors.broken:
                network.step(executors.expire(network.longest_wait_ns(time.monotonic_ns())))
        _drain(config, executors, network)
    finally:
        rights.release_network()
        if executors.stop(config.drain_timeout_ms / 1000):
            engine.close()
    if executors.broken:
        raise WorkerFailed(executors.broken)
    if network.dropped:
        LOG.info("dropped messages: %s", dict(network.dropped))


def _watch(config: WorkerConfig, fetcher: Fetcher | None) -> StoreWatch | None:
    """Return what looks at the files of models that failed; None without a store."""
    if config.engine == "emulated":
        return None
    store = Store(config.store)
    return StoreWatch(store) if fetcher is None else StoreWatch(store, fetcher.worth_trying)


def _fetcher(config: WorkerConfig, stop: threading.Event) -> Fetcher | None:
    """Return what fetches models for the worker; raise `OSError` if its configuration can't be used."""
    if not config.store_from or config.engine == "emulated":
        return None
    token = read_token(config.store_token_file)
    try:
        secure = config.keys and config.store_from.startswith("https://")
        source = source_of(config.store_from, token, client_context(config.keys) if secure else None)
    except ValueError as error:
        raise OSError(errno.EINVAL, f"store_from: {error}") from None
    return Fetcher(
        Store(config.store),
        source,
        stop,
        most_bytes=config.store_max_bytes,
        bytes_per_s=config.store_bytes_per_s,
    )


def _drain(config: WorkerConfig, executors: Executors, network: Network) -> None:
    """Reject waiting actions, let running ones finish, send every result, say goodbye.

    A running PREPARE is not awaited: it may take minutes, and the controller would go on sending requests to
    a worker that rejects them.
    """
    with executors.driving() as core:
        executors.withdraw()
        for result in core.stop(time.monotonic_ns()):
            executors.report(result)
    deadline_s = time.monotonic() + config.drain_timeout_ms / 1000
    while not core.quiet and not executors.broken and time.monotonic() < deadline_s:
        network.step(STEP_NS)
    with executors.driving():
        pass  # What a thread has just ended is in the outbox.
    network.flush()
    network.goodbye(executors.broken or "the worker stops")


def _open_sockets(hub: Hub, config: WorkerConfig) -> Sockets:
    """Listen for gateways, connect to the controller; raise `OSError` that names an unusable address."""
    shows = present(Role.WORKER, config.keys)
    limits = Limits(
        config.max_message_bytes,
        config.output_backlog_bytes,
        SEND_LIMIT,
        descriptors=WAITING_DESCRIPTORS,
        more_descriptors=True,
    )
    data = _data_listener(hub, config, limits, shows)
    # The link keeps nothing without a connection: what is sent belongs to the session that ends.
    greet = partial(_link, hub, config, shows)
    where = _reachable(data.address, config.data_host, config.controller)
    return Sockets(hub, greet(config.controller), data, where, greet)


def _data_listener(hub: Hub, config: WorkerConfig, limits: Limits, shows: Pass) -> Listener:
    name = config.name
    if config.data_address:
        return _listener(hub, config.data_address, limits, shows, name)
    if not config.controller.startswith(LOCAL):
        return _listener(hub, "tcp://127.0.0.1:*", limits, shows, name)
    folder = config.controller.rpartition("/")[0]
    try:
        return _listener(hub, f"{folder}/{name}.sock", limits, shows, name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        # A process of the same name is still there; the controller decides which of the two keeps the name.
        return _listener(hub, f"{folder}/{name}-{os.getpid()}.sock", limits, shows, name)


def _link(hub: Hub, config: WorkerConfig, shows: Pass, address: str) -> Link:
    """Begin to connect to a controller; raise `OSError` if it is not an address."""
    identity = f"worker:{config.name}:{secrets.token_hex(4)}".encode()
    limits = Limits(config.max_message_bytes, CONTROLLER_BACKLOG_BYTES, SEND_LIMIT)
    expects = Identity(Role.CONTROLLER)
    try:
        return Link(hub, address, limits, name=identity, shows=shows, expects=expects)
    except ValueError as error:
        raise OSError(errno.EINVAL, f"controller {address}: {error}") from error


def _listener(hub: Hub, address: str, limits: Limits, shows: Pass, name: str) -> Listener:
    accepted = {str(role): limits for role in may_connect(Role.WORKER) if role is not Role.CONTROLLER}
    try:
        return Listener(hub, address, accepted, shows, name.encode())
    except ValueError as error:
        raise OSError(errno.EINVAL, f"data_address {address}: {error}") from error
    except OSError as error:
        what = "is taken by another process" if error.errno == errno.EADDRINUSE else str(error.strerror)
        raise OSError(error.errno, f"data_address {address}: {what}") from error


def _reachable(address: str, host: str, controller: str) -> str:
    """Return the address that gateways connect to, for the one that was bound.

    A wildcard is replaced by ``host``, else by this host's address on the way to the controller, which is
    likely to be on the way to the gateways too, else by this host's name.
    """
    bound = addresses.parse(address, listens=True)
    if not isinstance(bound, Address) or not (host or addresses.is_unspecified(bound.host)):
        return address
    return str(Address(host.strip("[]") or _towards(controller) or socket.gethostname(), bound.port))


def _towards(controller: str) -> str:
    """Return this host's numeric address on the way to a controller on another one, else an empty text."""
    try:
        where = addresses.parse(controller)
        source = addresses.source_of(addresses.resolve(where)) if isinstance(where, Address) else ""
    except (OSError, ValueError):
        return ""
    return "" if not source or addresses.is_loopback(source) else source
