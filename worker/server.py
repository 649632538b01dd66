"""A worker from start to end: memory, engine, threads and sockets; serving until it is stopped; draining."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable

import msgspec

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import cpu_targets
from mainspring.messages.model import PAGE_BYTES
from mainspring.transport.hub import Hub
from mainspring.transport.keys import client_context
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
from mainspring.worker.network import Network
from mainspring.worker.realtime import Rights
from mainspring.worker.sockets import Sockets, open_sockets
from mainspring.worker.sources import source_of

LOG = logging.getLogger(__name__)

STEP_NS = 50_000_000
"""Longest sleep of the network thread while it drains."""
LINGER_NS = 500_000_000
"""Time that messages which wait to be sent have to leave at the end."""

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
            sockets = open_sockets(hub, config)
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
