"""The controller's loop: receive, schedule, carry out, beat, wait; and its start and stop.

One thread does all of it. Between two waits at most ``burst_messages`` messages are received before the
scheduler is called once: a burst is scheduled as a whole, and a flood can't keep commands from leaving.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from mainspring.controller.clock import PeerClock
from mainspring.controller.config import ControllerConfig
from mainspring.controller.logged_scheduler import LoggedScheduler, about
from mainspring.controller.memory import Memory
from mainspring.controller.outbox import AnswerLimit, Dropped
from mainspring.controller.recovery import Awaited
from mainspring.controller.shell import Shell
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.model import ModelSpec
from mainspring.messages.roles import Role, may_connect
from mainspring.messages.served import ServedModel
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.telemetry.log import EventLogWriter
from mainspring.transport.bounds import Limits
from mainspring.transport.greeting import Pass, present
from mainspring.transport.hub import Hub
from mainspring.transport.listener import Listener
from mainspring.transport.stopping import WhenSet

_LOGGER = logging.getLogger(__name__)
SHORTEST_WAIT_NS: Final = 50_000
"""A wake-up that is already due comes this much later, which bounds how often the scheduler is called."""
DRAIN_CHECK_NS: Final = 10_000_000
"""The time between two checks, while draining, whether all requests are finished."""
IDLE_NS: Final = 5_000_000
"""Garbage is collected when no message has arrived, and nothing is due, for this long."""
COLLECT_INTERVAL_NS: Final = 1_000_000_000
"""The time between two collections at least."""
QUIET_NS: Final = 10_000_000_000
"""Everything is collected, which is a pause, when no request has come for this long."""
MOST_GONE = 1_000
"""Models and workers that may have gone before their memory is freed without waiting for a pause."""
BACKLOG_BYTES = 256 << 20
"""Bytes that may wait for one peer, beside the bound in messages."""
NO_LEASE = "the controller's lease has ended: it makes no changes until it has one again"
MOST_TENSORS = 4
"""Messages to the controller have no tensors; one with a few is answered, more end the connection."""
WATCHING_BYTES = 64 << 10
"""Size of one incoming message of an observer or operator."""


class Tenure(Protocol):
    """The time in which one of several controllers leads (`controller.candidate`)."""

    def goes_on(self, now_ns: int, controller: Controller) -> bool:
        """Say, in each turn of the loop, whether this controller still leads."""

    def hands_over(self, now_ns: int, controller: Controller) -> bool:
        """Say, once it is to stop, whether it goes on until another one leads."""


class Door(NamedTuple):
    """The belongings of a controller that has stood by."""

    hub: Hub
    listener: Listener
    memory: Memory
    clocks: dict[bytes, PeerClock]
    """Clocks of peers, as far as they are known."""
    tenure: Tenure


class Controller:
    """One controller, which listens once it is constructed; `serve` runs it in the calling thread."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler_config: SchedulerConfig,
        models: Sequence[ModelSpec],
        served: Sequence[ServedModel] = (),
        awaited: Awaited | None = None,
        graphs: Sequence[GraphSpec] = (),
        door: Door | None = None,
    ) -> None:
        """Listen, and add the models.

        ``served``: the models of a repository as clients know them; ``awaited``: what could not be read;
        ``graphs``: the configured ones, which clients may ask for whatever their models are; ``door``: what
        one that has stood by begins with, and keeps open.
        Raises OSError if the address is taken or the state file can't be used, ValueError on a bad model.
        """
        self.scheduler = Scheduler(scheduler_config)
        """The scheduler; once `serve` has returned, others may call its ``status`` and ``validate``."""
        self._config = config
        self._dropped = Dropped()
        self._door = door
        self._hub, self._listener = _opened(config) if door is None else (door.hub, door.listener)
        self._listener.on_violation = lambda _: self._dropped.count("bad_framing")
        self._listener.on_flood = lambda: self._dropped.count("handshakes_refused")
        log = None
        if config.event_log_dir is not None:
            log = EventLogWriter(
                config.event_log_dir,
                config.event_log_segment_bytes,
                config.event_log_max_bytes,
                about(scheduler_config),
            )
        self._logged = LoggedScheduler(self.scheduler, log, self._dropped, config.metrics_models)
        try:
            known = () if door is None else (door.memory, door.clocks)
            self._shell = Shell(config, self._logged, self._listener, self._dropped, awaited, graphs, *known)
        except OSError:
            self.close()
            raise
        self._error_limit = AnswerLimit()
        self._arrived_ns = self._collected_ns = time.monotonic_ns()
        self._drain_until_ns = self._drain_check_ns = 0
        self._departed = self._requests = 0
        self._quiet_since_ns = self._collected_ns
        try:
            self._add(models, served)
        except ValueError:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Return the address that peers connect to, the real port included."""
        return self._listener.address

    @property
    def told_epoch(self) -> int:
        """Return the highest epoch that a peer has named."""
        return self._shell.told_epoch

    @property
    def followed(self) -> bool:
        """Say whether another controller stands by."""
        return len(self._shell.followers) > 0

    def may_change(self, granted: bool) -> None:
        """Make changes, or none, as clients and operators ask for them."""
        if not self._shell.draining:
            self._shell.administration.refuses = "" if granted else NO_LEASE

    def serve(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set, finish the accepted requests, say goodbye and close."""
        collecting = gc.isenabled()
        if self._door is None:
            # One that takes over is waited for; it collects when it is idle.
            gc.collect()
        gc.freeze()
        gc.disable()
        bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._hub.watch(bell, stop)
        try:
            with WhenSet(stop, partial(os.eventfd_write, bell, 1)):
                self._serve(stop)
            why = "the controller stops" if stop.is_set() else "another controller leads"
            self._shell.peers.goodbye(why)
            self._shell.providers.goodbye(why)
            self._shell.observers.goodbye(time.monotonic_ns(), why)
            self._shell.followers.goodbye(why)
        finally:
            gc.unfreeze()
            if collecting:
                gc.enable()
            self.close()
            os.close(bell)

    def _serve(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set and the accepted requests are finished."""
        shell, scheduler = self._shell, self._logged
        while not self._finished(stop):
            self._receive()
            now_ns = time.monotonic_ns()
            turn(shell, scheduler, now_ns)
            self._wait(now_ns)

    def close(self) -> None:
        """Close the connections, unless they were there before, and the log; `serve` calls this itself."""
        if self._door is None:
            self._hub.close(round(self._config.goodbye_linger_ms * 1e6))
        self._logged.close()

    def _add(self, models: Sequence[ModelSpec], served: Sequence[ServedModel]) -> None:
        shell, now_ns = self._shell, time.monotonic_ns()
        own = [spec for spec in models if shell.shards.has(spec.public_name)]
        refusals = [shell.registry.add(now_ns, spec) for spec in shell.memory.applied(own)]
        if (learnt := shell.learning.remembered(now_ns)) is not None:
            self._logged.handle(now_ns, learnt)
        shell.administration.restore(now_ns)
        known = [model for model in served if shell.shards.has(model.name)]
        served_as = [shell.registry.serve(now_ns, model) for model in known]
        for refusal in (*refusals, *served_as):
            if refusal is not None:
                raise ValueError(refusal[1])
        for model in list(shell.memory.served.values()):
            # A version whose model is gone is a repository's to say, which comes back.
            shell.registry.serve(now_ns, model)

    def _receive(self) -> None:
        """Take in the messages that have come, up to a bound."""
        for _ in range(self._config.burst_messages):
            received = self._listener.receive()
            if received is None:
                return
            peer, parts = received
            now_ns = self._arrived_ns = time.monotonic_ns()
            try:
                self._shell.receive(now_ns, peer, parts)
            except Exception:
                self._dropped.count("internal_error")
                if self._error_limit.allows(now_ns, peer, "internal_error"):
                    _LOGGER.exception("failed on a message of %r: %.2000r", peer, parts)

    def _wait(self, now_ns: int) -> None:
        """Wait for a message, the scheduler's wake-up or the next beat; the hub may wait less long."""
        if self._logged.dirty:
            self._hub.wait(0)
            return
        until_ns = due_ns(self._shell, self._logged, now_ns)
        if self._shell.draining:
            until_ns = min(until_ns, now_ns + DRAIN_CHECK_NS)
        idle = now_ns - self._arrived_ns > IDLE_NS and until_ns - now_ns > IDLE_NS
        if idle and now_ns - self._collected_ns > COLLECT_INTERVAL_NS:
            self._collected_ns = now_ns
            self._collect(now_ns)
        while not self._hub.wait(max(0, until_ns - time.monotonic_ns())):
            if time.monotonic_ns() >= until_ns:
                return

    def _collect(self, now_ns: int) -> None:
        """Collect garbage, and freeze what is left, so that the next collections are short.

        What a worker or a model leaves behind was frozen before, so that only a collection of everything
        frees it. That takes as long as many requests, so it waits until none has come for a while.
        """
        if self._requests != self._logged.requests:
            self._requests = self._logged.requests
            self._quiet_since_ns = now_ns
        gone = self.scheduler.departed - self._departed
        if gone >= MOST_GONE or (gone and now_ns - self._quiet_since_ns >= QUIET_NS):
            self._departed += gone
            gc.unfreeze()
        gc.collect()
        gc.freeze()

    def _finished(self, stop: threading.Event) -> bool:
        """Begin to drain once ``stop`` is set; say whether draining is over."""
        now_ns = time.monotonic_ns()
        tenure = None if self._door is None else self._door.tenure
        if tenure is not None and not tenure.goes_on(now_ns, self):
            return True
        if not stop.is_set() or (tenure is not None and tenure.hands_over(now_ns, self)):
            return False
        if not self._shell.draining:
            self._shell.drain()
            self._drain_until_ns = now_ns + round(self._config.drain_timeout_ms * 1e6)
            self._drain_check_ns = now_ns
        if now_ns >= self._drain_until_ns:
            _LOGGER.warning("stopping with requests unfinished after %.0f ms", self._config.drain_timeout_ms)
            return True
        if now_ns < self._drain_check_ns:
            return False
        self._drain_check_ns = now_ns + DRAIN_CHECK_NS
        return self._shell.drained()


def turn(shell: Shell, scheduler: LoggedScheduler, now_ns: int) -> None:
    """Schedule, carry out, and do what else is due."""
    if scheduler.due(now_ns):
        shell.carry_out(now_ns, scheduler.schedule(now_ns))
    if scheduler.unsettled(now_ns):
        scheduler.settle()
    start_due_ns = shell.start_due_ns()
    if start_due_ns is not None and now_ns >= start_due_ns:
        shell.settle_start(now_ns)
    if now_ns >= shell.observers.due_ns:
        shell.observers.turn(now_ns)
    if now_ns >= shell.peers.next_beat_ns:
        beat(shell, scheduler, now_ns)


def beat(shell: Shell, scheduler: LoggedScheduler, now_ns: int) -> None:
    """Do what is due at each heartbeat."""
    shell.peers.beat(now_ns)
    shell.providers.beat(now_ns)
    shell.settle_start(now_ns)
    shell.recovery.beat(now_ns)
    shell.followers.beat(now_ns)
    shell.learning.beat()
    shell.registry.readiness.beat(now_ns)
    scheduler.flush()
    shell.observers.beat(now_ns)


def due_ns(shell: Shell, scheduler: LoggedScheduler, now_ns: int) -> int:
    """Return the instant of the next turn if no message comes before."""
    if scheduler.dirty:
        return now_ns
    until_ns = min(shell.peers.next_beat_ns, shell.observers.due_ns)
    for wakeup_ns in (scheduler.next_wakeup_ns(), shell.start_due_ns()):
        if wakeup_ns is not None:
            until_ns = min(until_ns, max(wakeup_ns, now_ns + SHORTEST_WAIT_NS))
    return until_ns


def _opened(config: ControllerConfig) -> tuple[Hub, Listener]:
    hub = Hub()
    return hub, listen(hub, config, present(Role.CONTROLLER, config.keys))


def listen(hub: Hub, config: ControllerConfig, shows: Pass) -> Listener:
    """Listen for peers; raise OSError that names the address if that is not possible, and close the hub.

    ``shows``: the run's secret or keys; without either, only processes of this user on this host may connect.
    """
    watching_bytes = min(config.message_max_bytes, WATCHING_BYTES)
    limits = {
        str(role): _limits(
            watching_bytes if role in (Role.OBSERVER, Role.OPERATOR) else config.message_max_bytes, config
        )
        for role in may_connect(Role.CONTROLLER)
    }
    try:
        return Listener(hub, config.address, limits, shows)
    except (OSError, ValueError) as error:
        hub.close()
        number = getattr(error, "errno", None) or errno.EINVAL
        why = getattr(error, "strerror", None) or str(error)
        raise OSError(
            number, f"the controller can't listen on {config.address}: {why}; choose another --address"
        ) from error


def _limits(message_bytes: int, config: ControllerConfig) -> Limits:
    backlog_messages = config.peer_backlog_messages
    return Limits(message_bytes, BACKLOG_BYTES, backlog_messages, message_bytes, MOST_TENSORS)
