"""The controller's loop and its life: take in, schedule, carry out, beat, wait.

One thread does all of it. Between two waits at most ``burst_messages`` messages are taken in before the
scheduler is asked once; so a burst is decided on as a whole, and a flood can't keep commands from leaving.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence

from mainspring.controller.config import ControllerConfig
from mainspring.controller.counters import AnswerLimit, Dropped
from mainspring.controller.feed import LoggedScheduler, about
from mainspring.controller.returning import Awaited
from mainspring.controller.router import Router
from mainspring.controller.shell import Shell
from mainspring.messages.model import ModelSpec, ServedModel
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.telemetry.log import EventLogWriter
from mainspring.transport.greeting import read_secret

_LOGGER = logging.getLogger(__name__)
SHORTEST_WAIT_NS = 50_000
"""A wake-up that is due already comes this much later: a bound on what an eager scheduler may burn."""
DRAIN_CHECK_NS = 10_000_000
"""While draining, how often it is checked whether all is done."""
IDLE_NS = 5_000_000
"""Nothing arrived for this long, and nothing is due for as long: time to collect garbage."""
COLLECT_INTERVAL_NS = 1_000_000_000
"""At most one collection in this time."""


class Controller:
    """One controller, bound when it is made; `serve` runs it in the calling thread."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler_config: SchedulerConfig,
        models: Sequence[ModelSpec],
        served: Sequence[ServedModel] = (),
        awaited: Awaited | None = None,
    ) -> None:
        """Bind and load the models; ``served`` are those of a repository, as clients know them, ``awaited``
        what could not be read.

        Raises OSError if the address is taken or the state file can't be used, ValueError on a bad model.
        """
        self.scheduler = Scheduler(scheduler_config)
        """The scheduler itself; only its ``status`` and ``validate`` are for others, once `serve` is over."""
        self._config = config
        self._dropped = Dropped()
        self._router = Router(
            config.address,
            config.peer_backlog_messages,
            config.message_max_bytes,
            config.goodbye_linger_ms,
            lambda _: self._dropped.count("bad_framing"),
            read_secret(config.secret_file),
        )
        log = None
        if config.event_log_dir is not None:
            log = EventLogWriter(
                config.event_log_dir,
                config.event_log_segment_bytes,
                config.event_log_max_bytes,
                about(scheduler_config),
            )
        self._feed = LoggedScheduler(self.scheduler, log, self._dropped, config.metrics_models)
        try:
            self._shell = Shell(config, self._feed, self._router, self._dropped, awaited)
        except OSError:
            self.close()
            raise
        self._error_limit = AnswerLimit()
        self._arrived_ns = self._collected_ns = time.monotonic_ns()
        self._drain_until_ns = self._drain_check_ns = 0
        self._departures = 0
        try:
            self._add(models, served)
        except ValueError:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where peers connect, the real port included."""
        return self._router.address

    def serve(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set, finish what was accepted, say goodbye and close."""
        members, carrier, feed = self._shell.members, self._shell.carrier, self._feed
        observers = self._shell.observers
        collecting = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            while not self._finished(stop):
                self._take_in()
                now_ns = time.monotonic_ns()
                if feed.due(now_ns):
                    carrier.carry_out(now_ns, feed.schedule(now_ns))
                feed.settle()
                start_due_ns = self._shell.start_due_ns()
                if start_due_ns is not None and now_ns >= start_due_ns:
                    self._shell.settle_start(now_ns)
                if now_ns >= observers.due_ns:
                    observers.turn(now_ns)
                if now_ns >= members.next_beat_ns:
                    members.beat(now_ns)
                    self._shell.settle_start(now_ns)
                    self._shell.returning.beat(now_ns)
                    feed.flush()
                    observers.beat(now_ns)
                self._wait(now_ns)
            members.goodbye("the controller stops")
            observers.goodbye(time.monotonic_ns(), "the controller stops")
        finally:
            gc.unfreeze()
            if collecting:
                gc.enable()
            self.close()

    def close(self) -> None:
        """Close the socket and the log; `serve` does so itself."""
        self._router.close()
        self._feed.close()

    def _add(self, models: Sequence[ModelSpec], served: Sequence[ServedModel]) -> None:
        catalogue, now_ns = self._shell.catalogue, time.monotonic_ns()
        refusals = [catalogue.add(now_ns, spec) for spec in catalogue.journal.applied([*models])]
        self._shell.operators.restore(now_ns)
        for refusal in (*refusals, *map(catalogue.serve, served)):
            if refusal is not None:
                raise ValueError(refusal[1])

    def _take_in(self) -> None:
        """Take in what is waiting, up to a bound."""
        for _ in range(self._config.burst_messages):
            frames = self._router.receive()
            if frames is None:
                return
            now_ns = self._arrived_ns = time.monotonic_ns()
            try:
                self._shell.receive(now_ns, frames)
            except Exception:
                self._dropped.count("internal_error")
                if self._error_limit.allows(now_ns, frames[0], "internal_error"):
                    _LOGGER.exception("failed on a message of %r: %.2000r", frames[0], frames[1:])

    def _wait(self, now_ns: int) -> None:
        """Wait for a message, the scheduler's wake-up or the next beat."""
        if self._feed.dirty:
            self._router.wait(0)
            return
        until_ns = min(self._shell.members.next_beat_ns, self._shell.observers.due_ns)
        wakeup_ns = self._feed.next_wakeup_ns()
        start_due_ns = self._shell.start_due_ns()
        if start_due_ns is not None:
            until_ns = min(until_ns, max(start_due_ns, now_ns + SHORTEST_WAIT_NS))
        if wakeup_ns is not None:
            until_ns = min(until_ns, max(wakeup_ns, now_ns + SHORTEST_WAIT_NS))
        if self._shell.draining:
            until_ns = min(until_ns, now_ns + DRAIN_CHECK_NS)
        idle = now_ns - self._arrived_ns > IDLE_NS and until_ns - now_ns > IDLE_NS
        if idle and now_ns - self._collected_ns > COLLECT_INTERVAL_NS:
            self._collected_ns = now_ns
            self._collect()
        self._router.wait(until_ns)

    def _collect(self) -> None:
        """Collect garbage, and take what is left out of the next collections, which are short then.

        What a worker or a model leaves behind was frozen while it was there, and nothing but a collection
        of everything frees it.
        """
        if self._departures != self._feed.departures:
            self._departures = self._feed.departures
            gc.unfreeze()
        gc.collect()
        gc.freeze()

    def _finished(self, stop: threading.Event) -> bool:
        """Begin to drain once ``stop`` is set; say whether that is over."""
        if not stop.is_set():
            return False
        now_ns = time.monotonic_ns()
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


def run(
    config: ControllerConfig,
    scheduler_config: SchedulerConfig,
    models: Sequence[ModelSpec],
    stop: threading.Event,
    on_ready: Callable[[str], None] | None = None,
    served: Sequence[ServedModel] = (),
    awaited: Awaited | None = None,
) -> None:
    """Run a controller until ``stop`` is set and it has drained.

    ``on_ready`` is told the address, the real port included, once peers can connect; ``served`` are a
    repository's models as clients know them, ``awaited`` what could not be read. Raises OSError that names
    the address if it is taken, or the state file if it can't be used, and ValueError on an unknown policy or
    a model that can't be served.
    """
    controller = Controller(config, scheduler_config, models, served, awaited)
    if on_ready is not None:
        on_ready(controller.address)
    controller.serve(stop)
