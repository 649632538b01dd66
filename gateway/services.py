"""A front end for code in the gateway's own event loop: submit a request, be called back once.

HTTP and gRPC reach the request table through here. Each of their client connections is a `Connection` of its
own, so that limits count for each client and a client that is gone takes its requests with it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mainspring.gateway.core.admin import AdminCommand, Reply
from mainspring.gateway.core.effects import Answer, Connection, Refuse
from mainspring.gateway.core.requests import late_detail
from mainspring.gateway.driver import GatewayDriver
from mainspring.gateway.memory import Budget, Uploads
from mainspring.gateway.metrics.series import Series
from mainspring.gateway.oip.settings import TraceSettings, changed_level, shown_log
from mainspring.gateway.regions import Regions
from mainspring.gateway.repository import repository_of
from mainspring.gateway.statistics import Statistics
from mainspring.messages.clients import ErrorReply, InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.delays import Back
from mainspring.messages.learning import Observe, Observed
from mainspring.telemetry.bounded import BoundedLabels
from mainspring.transport.tokens import NOTHING, Credential

NAME = "calls"
_LOG = logging.getLogger("mainspring")

Outcome = Answer | Refuse
Done = Callable[[Outcome], None]


class Services:
    """See the module's docstring; used in the loop's thread only."""

    def __init__(
        self, driver: GatewayDriver, settle: Callable[[], None], uploads: Uploads | None = None
    ) -> None:
        """``settle`` is called after each step: it sees to it that the loop's next turn comes in time."""
        self.uploads = uploads or Uploads()
        """The turns in which large bodies are read, whatever they come over."""
        self.driver = driver
        self.statistics = _statistics(driver)
        self.answers = Budget(driver.config.max_answer_bytes)
        """The bytes that answers hold until their clients have read them."""
        self.trace_settings = TraceSettings(driver.config)
        """The settings of which requests are traced, as clients of HTTP and gRPC may set."""
        self.back = Back()
        """The measured time that answers take to their clients."""
        self._settle = settle
        self._keys = itertools.count()
        self._peers = itertools.count()
        self._waiting: dict[Connection, dict[int, Done]] = {}
        self._asked: dict[int, asyncio.Future[Reply]] = {}
        self._control = Connection(NAME, b"commands")
        driver.front_ends[NAME] = self
        self.repository = repository_of(driver.config, driver.catalog)
        """The model repository; None if the cluster has none."""
        config = driver.config
        self.regions = Regions(config, driver.gate, driver.memory) if config.shared_memory else None
        """Shared memory of clients; None if it is not served."""

    def connection(self) -> Connection:
        """Return a new peer: one for each client connection."""
        return Connection(NAME, next(self._peers).to_bytes(8))

    def next_key(self) -> int:
        """Return a key for a request or command that no other has."""
        return next(self._keys)

    def submit(
        self,
        connection: Connection,
        request: InferRequest,
        frames: Sequence[Any],
        done: Done,
        came_ns: int = 0,
        shown: Credential = NOTHING,
    ) -> None:
        """Take a request with a frame for each input; ``done`` gets its one outcome, maybe at once.

        ``request.key`` is from `next_key`. Frames are bytes-like and must not change until ``done``.
        ``came_ns`` is when its first bytes came, ``shown`` the token that came with it.
        """
        self._waiting.setdefault(connection, {})[request.key] = done
        self.driver.submit(connection, request, frames, came_ns=came_ns, shown=shown)
        self._settle()

    async def infer(
        self,
        connection: Connection,
        request: InferRequest,
        frames: Sequence[Any],
        came_ns: int = 0,
        shown: Credential = NOTHING,
    ) -> Outcome:
        """Submit a request and wait for its outcome; cancelling the waiting task gives the request up."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.submit(connection, request, frames, partial(_set, future), came_ns, shown)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancel(connection, request.key)
            raise

    def turned_away(self, model: str, reason: Reason) -> None:
        """Tell who counts requests of one that is not submitted; ``model`` as the client called it."""
        self.driver.core.observers.turned_away(InferRequest(-1, model, (), None), reason)

    def cancel(self, connection: Connection, key: int) -> None:
        """Give a request up: its outcome is ``cancelled``, unless it had one."""
        self.driver.cancel(connection, key)
        self._settle()

    def forget(self, connection: Connection) -> None:
        """A client is gone: give its requests up. What still waits for one of them hears ``cancelled``."""
        self.driver.forget(connection)
        for key, done in self._waiting.pop(connection, {}).items():
            done(Refuse(connection, key, Reason.CANCELLED, "the client is gone"))
        self._settle()

    async def ask(self, command: AdminCommand) -> Reply:
        """Pass a command on to the controller and return its reply; ``command.key`` is from `next_key`."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._asked[command.key] = future
        self.driver.ask(self._control, command)
        self._settle()
        try:
            return await future
        finally:
            self._asked.pop(command.key, None)

    async def observe(self, message: Observe) -> Observed | ErrorReply:
        """Have feedback learnt from; return what became of it."""
        future: asyncio.Future[Observed | ErrorReply] = asyncio.get_running_loop().create_future()
        self.driver.learning.observe(self.driver.clock(), message, partial(_set, future))
        return await future

    # --- called by the driver ---

    def answer(self, answer: Answer) -> None:
        """Hand a request's outputs over, if they came in time; its client has no use for them later."""
        left_ns = answer.timing.left_ns
        self._end(answer if left_ns is None or left_ns >= 0 else late(answer, -left_ns))

    def refuse(self, refusal: Refuse) -> None:
        """Hand a request's refusal over."""
        self._end(refusal)

    def reply(self, connection: Connection, message: Reply) -> None:
        """Hand the reply to a command over."""
        assert connection == self._control, f"a reply to {connection}, which asked for nothing"
        future = self._asked.get(message.key)
        if future is not None and not future.done():
            future.set_result(message)

    def _end(self, outcome: Outcome) -> None:
        own = self._waiting.get(outcome.connection, {})
        done = own.pop(outcome.key, None)
        if done is None:
            return
        if not own:
            del self._waiting[outcome.connection]
        done(outcome)


def log_settings() -> dict[str, bool | int | str]:
    """Return what this process logs, in Triton's settings."""
    return shown_log(_LOG.getEffectiveLevel())


def change_log(wanted: Mapping[str, Any]) -> None:
    """Log what is ``wanted`` from now on; null leaves a setting as it is. Raises `Unfit` or `Unserved`."""
    level = _LOG.getEffectiveLevel()
    if (changed := changed_level(level, wanted)) != level:
        _LOG.setLevel(changed)


def _set(future: asyncio.Future[Any], outcome: Outcome | Observed | ErrorReply) -> None:
    """Have whoever waits for an outcome go on, unless it was given up."""
    if not future.done():
        future.set_result(outcome)


def late(answer: Answer, late_ns: int) -> Refuse:
    """Return the refusal of a request whose answer is this late."""
    return Refuse(answer.connection, answer.key, Reason.TIMED_OUT, late_detail(late_ns))


def _statistics(driver: GatewayDriver) -> Statistics:
    """Return statistics of the driver's requests, which are counted only if somebody can ask for them."""
    config, catalog = driver.config, driver.catalog
    labels = BoundedLabels(config.metrics_models, Series) if config.metrics_address else None
    statistics = Statistics(catalog.signatures, catalog.resolve, driver.cache.counts_of, labels)
    if config.protocols or config.metrics_address:
        driver.core.observers.add(statistics)
    return statistics
