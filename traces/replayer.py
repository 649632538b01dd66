"""The replayer: sends a workload to a live gateway and records what becomes of each request.

Open loop: a request is sent at its instant whatever the server does. That instant is when its caller calls:
SLO and latency count from it, so that neither a slow server nor a slow replayer can hide in the gaps between
requests (no coordinated omission). As any client, the replayer sends what is left of the SLO when it comes to
send, and does not send what has nothing left. How far it was behind is part of the report, and so are the
latencies from the real send. A `ClosedLoop` is played by the same code; there the answer decides when the
next request is due.

One thread, one connection, one loop: send what is due, take what has come, wait for the next of either.
The loop never waits for the gateway; what it does not take is recorded as unsent.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic_ns
from typing import Any, Protocol

import msgspec
import numpy as np
import zmq

from mainspring.client.address import gateway_addresses
from mainspring.client.connection import Connection
from mainspring.client.errors import GatewayUnreachable, error_of
from mainspring.client.requests import Paths
from mainspring.messages.clients import ErrorReply, InferReply, InferRequest, ListModels, ModelList, ToClient
from mainspring.messages.model import ModelSpec
from mainspring.traces.arrival import SECOND_NS, Arrival, WorkloadError
from mainspring.traces.inputs import Inputs
from mainspring.traces.records import MAX_REQUESTS, Records, RecordsFull, Stragglers
from mainspring.traces.report import Progress, RunCounters, Summary, summarise
from mainspring.traces.returning import Returns, returning
from mainspring.traces.source import Playable, Source

LEAD_NS = 50_000_000
"""The workload begins this long after the call, so that its first request is not late already."""
BURST = 32
"""Requests that are sent before the loop looks for answers."""
ANSWERS = 4 * BURST
"""Answers that are taken before the loop looks at what is due: more than `BURST`, so that answers that waited
while the replayer was behind are not measured late for the rest of the run."""
SPIN_NS = 20_000
"""Time that is spun rather than slept: less than a wake-up takes, so that a run at low rates stays cheap."""
_PR_SET_TIMERSLACK = 29
_DEFAULT_SLACK = 0


class ReplayConfig(msgspec.Struct, frozen=True):
    """The configuration of a replay."""

    address: str = "tcp://127.0.0.1:7400"
    """The gateway's address; of several, separated by commas, the first that answers is sent to."""
    seed: int = 0
    token: str | None = None
    """Token for a gateway that needs one; None for the environment's ``MAINSPRING_TOKEN``."""
    guard_s: float = 2.0
    """A request without a reply this long after its deadline is lost, if no other reply comes either."""
    best_effort_timeout_s: float = 86_400.0
    """The same for a request without a deadline: it is lost without a reply this long after it was sent."""
    straggler_wait_s: float = 120.0
    """Longest time to wait for replies after the last send; what could still have one then is unanswered."""
    progress_every_s: float = 0.5
    connect_timeout_s: float = 10.0
    retry_ns: int = 0
    """Time that a client that is refused for want of time waits before it asks once more, with what is left
    of its SLO; 0 if it does not."""
    max_requests: int = MAX_REQUESTS
    """The run stops here, with a report (about 80 bytes of memory a request)."""


class Replayer:
    """A connection to a gateway and the inputs for its models; `play` may be called again and again."""

    def __init__(self, config: ReplayConfig) -> None:
        """Connect and request the models; raises `GatewayUnreachable`."""
        self.config = config
        self._connection = _connected(config)
        try:
            self.specs = list_models(self._connection, config.connect_timeout_s)
        except BaseException:
            self._connection.close()
            raise
        self._inputs = Inputs(self.specs, np.random.default_rng(config.seed))
        self._waiter = Waiter(self._connection)
        self._next_key = 0

    def play(
        self,
        workload: Playable,
        *,
        progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
        rows: Iterable[int] = (1,),
        duration_ns: int = 0,
        notes: dict[str, str | int | float | bool | None] | None = None,
    ) -> tuple[Summary, Records]:
        """Send a workload and return what became of it, once all is answered or given up.

        Setting ``stop`` ends the sending; answers are still waited for. Inputs are made beforehand for
        requests of ``rows``; for others, when they are first due. ``duration_ns`` is the workload's length,
        over which rates are computed if it is played to its end. Raises `InputsError` for models that are
        not served, `WorkloadError` for a workload without any request, before anything is sent.
        """
        self._inputs.check(workload.models)
        for count in rows:
            self._inputs.prepare(workload.models, count)
        source = returning(workload.source(np.random.default_rng(self.config.seed)), self.config.retry_ns)
        if source.next_ns() is None:
            raise WorkloadError(
                "the workload has no request at all; begin earlier in the trace, or take more of it or"
                " a higher rate"
            )
        before = resource.getrusage(resource.RUSAGE_SELF)
        links_before = self._connection.link_lost
        with _quiet_process():
            # Only now: a collection takes longer than the lead in a process with much in it.
            run = _Run(self._connection, self._inputs, self._waiter, source, self.config, self._next_key)
            ended = run.loop(progress or _ignore, stop or threading.Event())
        self._next_key += len(run.records)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        run_notes: dict[str, str | int | float | bool | None] = {
            "seed": self.config.seed,
            "ended": ended,
            "replayer_cpu_us_per_request": round(cpu_s * 1e6 / max(len(run.records), 1), 1),
            "unexpected_replies": run.tally.unexpected,
            "links_lost": self._connection.link_lost - links_before,
        }
        summary = summarise(
            run.records,
            start_ns=run.start_ns,
            duration_ns=duration_ns if ended == "finished" else 0,
            notes=run_notes | (notes or {}),
        )
        return summary, run.records

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _connected(config: ReplayConfig) -> Connection:
    """Return an open connection to the first gateway that answers; raise `GatewayUnreachable` of the last."""
    *others, last = gateway_addresses(config.address)
    for address in others:
        with suppress(GatewayUnreachable):
            return _open(address, config)
    return _open(last, config)


def _open(address: str, config: ReplayConfig) -> Connection:
    connection = Connection(address, "replayer", token=config.token)
    try:
        connection.open(config.connect_timeout_s)
    except BaseException:
        connection.close()
        raise
    return connection


class _Run:
    """One play of a workload."""

    def __init__(
        self,
        connection: Connection,
        inputs: Inputs,
        waiter: Waiter,
        source: Source,
        config: ReplayConfig,
        first_key: int,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._inputs = inputs
        self._waiter = waiter
        self._source = source
        self._config = config
        self._first_key = first_key
        self._clients: dict[int, int] = {}
        self._stragglers: Stragglers | None = None
        self._paths = Paths()
        self._returns = Returns()
        self.records = Records(config.max_requests)
        self.tally = RunCounters()
        self.start_ns = monotonic_ns() + LEAD_NS

    def loop(self, progress: Callable[[Progress], None], stop: threading.Event) -> str:
        """Play to the end; return why it ended: finished, stopped, record limit or gateway refused."""
        every_ns = int(self._config.progress_every_s * SECOND_NS)
        next_progress_ns = every_ns
        ended = ""
        while True:
            now_ns = self._now_ns()
            if not ended:
                ended = self._send_due(now_ns) or self._why_end(now_ns, stop)
            self._send_returning(now_ns)
            if ended and self._stragglers is None:
                self._stragglers = self._waiting_for(now_ns)
            self._take_replies()
            now_ns = self._now_ns()
            if now_ns >= next_progress_ns:
                progress(self.tally.progress(now_ns, self.records))
                next_progress_ns = now_ns + every_ns
            if self._stragglers is not None and self._stragglers.over(now_ns):
                progress(self.tally.progress(now_ns, self.records))
                return ended
            due_ns = None if ended else self._source.next_ns()
            if self._stragglers is not None:
                due_ns = self._stragglers.next_ns()
            instants = (next_progress_ns, due_ns, self._returns.next_ns())
            self._waiter.wait(self.start_ns + min([each for each in instants if each is not None]))

    def _now_ns(self) -> int:
        return monotonic_ns() - self.start_ns

    def _waiting_for(self, now_ns: int) -> Stragglers:
        return Stragglers(
            self.records,
            guard_ns=int(self._config.guard_s * SECOND_NS),
            best_effort_ns=int(self._config.best_effort_timeout_s * SECOND_NS),
            longest_ns=int(self._config.straggler_wait_s * SECOND_NS),
            ended_ns=now_ns,
        )

    def _why_end(self, now_ns: int, stop: threading.Event) -> str:
        if stop.is_set():
            return "stopped"
        if self._connection.refusal is not None:
            return "gateway refused"
        return "finished" if self._source.done(now_ns) else ""

    def _send_due(self, now_ns: int) -> str:
        """Send what is due, a burst at most; return why sending must end, or nothing."""
        source = self._source
        for _ in range(BURST):
            due_ns = source.next_ns()
            if due_ns is None or due_ns > now_ns:
                break
            try:
                self._send(source.take())
            except RecordsFull:
                return "record limit"
        return ""

    def _send_returning(self, now_ns: int) -> None:
        """Send what comes back now, a burst at most."""
        for _ in range(BURST):
            due_ns = self._returns.next_ns()
            if due_ns is None or due_ns > now_ns:
                return
            index, arrival = self._returns.take()
            if self.records.pending(index):
                self._send(arrival, index)

    def _send(self, arrival: Arrival, index: int = -1) -> None:
        """Send a request, whose record has an index if it was sent before."""
        headers, frames = self._inputs.get(arrival.model, arrival.rows, arrival.sizes)
        sent_ns = self._now_ns()
        if index < 0:
            index = self._record(arrival, sent_ns)
        left_ns = None if arrival.slo_ns is None else arrival.time_ns + arrival.slo_ns - sent_ns
        if left_ns is not None and left_ns <= 0:
            self.records.expired(index)
            self.tally.unsent += 1
            self._complete(index, sent_ns)
            return
        stamp_ns = self.start_ns + sent_ns
        back_ns = (
            0 if arrival.slo_ns is None else self._paths.back_ns(stamp_ns, arrival.model, arrival.slo_ns)
        )
        request = InferRequest(
            self._first_key + index, arrival.model, headers, left_ns, sent_ns=stamp_ns, back_ns=back_ns
        )
        if not self._hand_over(request, frames):
            self.records.unsent(index)
            self.tally.unsent += 1
            # A closed-loop client must not spin on a gateway that is away.
            self._complete(index, self._now_ns() + SECOND_NS // 100)

    def _record(self, arrival: Arrival, sent_ns: int) -> int:
        """Note a request that is sent now, and return its index."""
        index = self.records.sent(arrival.time_ns, sent_ns, arrival.model, arrival.rows, arrival.slo_ns)
        self.tally.lag.add(sent_ns - arrival.time_ns)
        if arrival.client >= 0:
            self._clients[index] = arrival.client
        self._returns.sent(index, arrival)
        return index

    def _hand_over(self, request: InferRequest, frames: list[zmq.Frame]) -> bool:
        """Give a request to the connection, without waiting; return whether it was taken."""
        return self._connection.hand_over(request, frames)

    def _take_replies(self) -> None:
        for _ in range(ANSWERS):
            if not self._waiter.ready() and not self._connection.hello_is_due():
                return
            received = self._connection.receive()
            if received is not None:
                self._take(*received, self._now_ns())

    def _take(self, reply: ToClient, frames: list[Any], now_ns: int) -> None:
        if not isinstance(reply, InferReply | ErrorReply):
            return
        index = reply.key - self._first_key
        if not self.records.pending(index):
            # An answer of an earlier play, or a second one to one request, which must not be.
            self.tally.unexpected += index >= 0
            return
        self._learn_way_back(index, reply, frames, now_ns)
        if isinstance(reply, InferReply):
            self._returns.answered(index)
            in_time = self.records.outputs(index, now_ns, reply.timing)
            self.tally.goodput += in_time
            self.tally.late += not in_time
            self.tally.latency.add(now_ns - self.records.intended_ns(index))
        elif self._returns.refused(now_ns, index, reply.reason):
            return
        else:
            self.records.error(index, now_ns, reply.reason)
            self.tally.rejected += 1
        if self._stragglers is not None:
            self._stragglers.replied(now_ns)
        self._complete(index, now_ns)

    def _learn_way_back(
        self, index: int, reply: InferReply | ErrorReply, frames: list[Any], now_ns: int
    ) -> None:
        """Learn how long answers take from the gateway to here, by so much earlier they are to leave."""
        if reply.sent_ns is not None:
            model = self.records.model(index) if isinstance(reply, InferReply) else None
            size_bytes = sum([len(frame) for frame in frames])
            self._paths.came_back(reply.sent_ns, self.start_ns + now_ns, size_bytes, model)

    def _complete(self, index: int, now_ns: int) -> None:
        client = self._clients.pop(index, None) if self._clients else None
        if client is not None:
            self._source.completed(client, now_ns)


def list_models(connection: Connection, timeout_s: float) -> tuple[ModelSpec, ...]:
    """Ask a gateway for its models; raises `GatewayUnreachable` if it does not say in time, or another
    `MainspringError` if it says why it can't."""
    connection.send(ListModels(key=0))
    give_up_ns = monotonic_ns() + int(timeout_s * SECOND_NS)
    while (left_ns := give_up_ns - monotonic_ns()) > 0:
        connection.poll(left_ns / 1e6)
        received = connection.receive()
        if received is not None and isinstance(received[0], ModelList):
            return received[0].models
        if received is not None and isinstance(received[0], ErrorReply):
            raise error_of(received[0])
    raise GatewayUnreachable(
        f"the gateway at {connection.address} did not list its models within {timeout_s:g} s"
    )


def _ignore(progress: Progress) -> None:
    """Show no progress."""


@contextmanager
def _quiet_process() -> Iterator[None]:
    """Keep the garbage collector and coarse timers out of the schedule."""
    collected = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    sharp_timers(True)
    try:
        yield
    finally:
        sharp_timers(False)
        gc.unfreeze()
        if collected:
            gc.enable()


class Awaited(Protocol):
    """An object that can be waited for, such as a `Connection`."""

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable when something has happened."""

    def ready(self) -> bool:
        """Say whether there is something, to be asked before each wait."""


class Waiter:
    """Waits for a message or an instant, whichever is first, to within some tens of microseconds.

    ZeroMQ's own poll counts in milliseconds. Here ``select`` sleeps on the descriptors until shortly before
    the instant, and the rest is spun.
    """

    def __init__(self, awaited: Awaited) -> None:
        self._awaited = awaited

    def ready(self) -> bool:
        """Return whether there is something to receive."""
        return self._awaited.ready()

    def wait(self, until_ns: int) -> bool:
        """Return True as soon as there is something to receive, False at ``until_ns`` (monotonic)."""
        while not self.ready():
            left_ns = until_ns - monotonic_ns()
            if left_ns <= 0:
                return False
            if left_ns > SPIN_NS:
                select.select(self._awaited.descriptors, [], [], (left_ns - SPIN_NS) / 1e9)
        return True


def sharp_timers(sharp: bool) -> None:
    """Let this thread's sleeps end to the nanosecond, or as by default; not on Linux, do nothing.

    Without it the kernel may end any sleep 50 us late (prctl(2), PR_SET_TIMERSLACK).
    """
    try:
        prctl = ctypes.CDLL(None).prctl
    except (AttributeError, OSError):
        return
    prctl(_PR_SET_TIMERSLACK, 1 if sharp else _DEFAULT_SLACK, 0, 0, 0)
