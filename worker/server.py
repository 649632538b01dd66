"""A worker from start to end: memory, engine, threads and sockets; serving until it is stopped; draining."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec

from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import PAGE_BYTES
from mainspring.transport.greeting import read_secret
from mainspring.worker.config import WorkerConfig
from mainspring.worker.core.state_machine import WorkerCore
from mainspring.worker.engine import Engine, Noted, OwnMemory
from mainspring.worker.engines.artifacts import StoreWatch
from mainspring.worker.engines.registry import make_engine
from mainspring.worker.executors import Executors, Outbox
from mainspring.worker.inputs import Inputs
from mainspring.worker.network import Network
from mainspring.worker.realtime import Rights
from mainspring.worker.sockets import Sockets

LOG = logging.getLogger(__name__)

STEP_MS = 50
"""Longest sleep of the network thread: how late it may notice that it has to stop, or to say hello."""

OnReady = Callable[[str], None]
"""Called once, with the address of the data socket, when the worker can be reached."""


class WorkerFailed(RuntimeError):
    """The worker can't go on; the text says why."""


def run(config: WorkerConfig, stop: threading.Event, on_ready: OnReady | None = None) -> None:
    """Serve until ``stop`` is set, then drain and return; the calling thread is the network thread.

    Raises `ValueError` for an unknown engine, `MemoryError` if the pages don't fit into memory, `OSError`
    that names the address if one can't be used, `WorkerFailed` if an executor broke.
    """
    rights = Rights(config.realtime, config.exec_core)
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
        sockets = Sockets(
            config.name,
            config.controller,
            config.data_address,
            data_host=config.data_host,
            max_bytes=config.max_message_bytes,
            backlog_bytes=config.output_backlog_bytes,
            bell=outbox.bell,
            secret=read_secret(config.secret_file),
        )
        try:
            _serve(config, rights, engine, outbox, sockets, stop, on_ready)
        finally:
            sockets.close()
    finally:
        outbox.close()
        rights.release_process()


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
    watch = StoreWatch(Store(config.store)) if config.engine != "emulated" else None
    executors = Executors(core, engine, rights, outbox, config.spin_us * 1000, watch)
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
    network = Network(config, sockets, executors, inputs, outbox, rights.notes, watch)
    if on_ready is not None:
        on_ready(sockets.data_address)
    try:
        while not stop.is_set() and not executors.broken:
            network.step(executors.expire(STEP_MS))
        _drain(config, executors, network)
    finally:
        if executors.stop(config.drain_timeout_ms / 1000):
            engine.close()
    if executors.broken:
        raise WorkerFailed(executors.broken)
    if network.dropped:
        LOG.info("dropped messages: %s", dict(network.dropped))


def _drain(config: WorkerConfig, executors: Executors, network: Network) -> None:
    """Reject waiting actions, let running ones finish, send every result, say goodbye.

    A running PREPARE is not awaited: it may take minutes, and the controller would go on sending requests to
    a worker that rejects them.
    """
    with executors.driving() as core:
        for result in core.stop(time.monotonic_ns()):
            executors.report(result)
    deadline_s = time.monotonic() + config.drain_timeout_ms / 1000
    while not core.quiet and not executors.broken and time.monotonic() < deadline_s:
        network.step(STEP_MS)
    network.flush()
    network.goodbye(executors.broken or "the worker stops")
