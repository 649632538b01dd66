"""Load for an HTTP server: one process, requests prepared beforehand, closed loops or Poisson arrivals.

It is the same for every server and cheap: HTTP/1.1 on kept connections, written and read by hand on uvloop.
``python -m mainspring.experiments.bench.http_load PLAN`` takes a `Plan` as JSON and prints a `Result`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import sys
from collections import Counter, deque
from itertools import cycle
from time import monotonic
from typing import Any

import msgspec
import numpy as np
import uvloop

PRIORITY = 60
"""Real-time, above whatever a server may have."""
_REASON = b'"reason":"'
_ANSWER_S = 5.0
"""Time after the last request in which replies are still waited for."""


class Target(msgspec.Struct, frozen=True):
    """A request to send, and the address to send it to."""

    port: int
    path: str
    body: str
    headers: tuple[tuple[str, str], ...] = ()
    bodies: tuple[str, ...] = ()
    """Others beside ``body``: they are sent in turn."""

    @property
    def requests(self) -> list[bytes]:
        """The bytes of the requests."""
        return [self._request(body) for body in (self.body, *self.bodies)]

    def _request(self, body: str) -> bytes:
        lines = [f"POST {self.path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of load."""

    target: Target
    seconds: float
    connections: int
    rate: float | None = None
    """Requests a second, at a Poisson process's instants; None for a closed loop."""
    warmup_s: float = 0.5
    """Time at the begin that is not measured."""
    deadline_ms: float = 50.0
    patience_ms: float = 1_000.0
    """A request of an open loop that found no connection for so long is given up."""
    seed: int = 1


class Result(msgspec.Struct, frozen=True):
    """Results of the load."""

    asked: int
    answered: int
    in_time: int
    refused: dict[str, int]
    seconds: float
    p50_ms: float | None
    p99_ms: float | None
    lag_p99_ms: float
    client_cpu: float
    """Processors that this process kept busy."""


class _Load:
    """Counts, and says what a connection that is free sends next."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.requests = cycle(plan.target.requests)
        self.free: list[_Connection] = []
        self.waiting: deque[float] = deque()
        self.in_flight = 0
        self.began_at = self.ends_at = 0.0
        self.asked = self.in_time = 0
        self.latencies_s: list[float] = []
        self.lags_s: list[float] = []
        self.refused: Counter[str] = Counter()

    def begin(self) -> None:
        self.began_at = monotonic() + self.plan.warmup_s
        self.ends_at = self.began_at + self.plan.seconds

    def ended(self, due_at: float, status: str) -> None:
        self.in_flight -= 1
        if not self.began_at <= due_at < self.ends_at:
            return
        self.asked += 1
        if status != "200":
            self.refused[status] += 1
            return
        latency_s = monotonic() - due_at
        self.latencies_s.append(latency_s)
        self.in_time += latency_s <= self.plan.deadline_ms / 1e3

    def next(self, connection: _Connection) -> None:
        now = monotonic()
        if self.plan.rate is None:
            if now < self.ends_at:
                connection.send(now)
            return
        while self.waiting:
            due_at = self.waiting.popleft()
            if now - due_at <= self.plan.patience_ms / 1e3:
                connection.send(due_at)
                return
            self.in_flight += 1
            self.ended(due_at, "none")
        self.free.append(connection)

    def due(self, due_at: float) -> None:
        if not self.free:
            self.waiting.append(due_at)
            return
        now = monotonic()
        self.lags_s.append(now - due_at)
        self.free.pop().send(now)

    def result(self, cpu_s: float, wall_s: float) -> Result:
        for due_at in self.waiting:
            self.in_flight += 1
            self.ended(due_at, "none")
        milliseconds = np.array(self.latencies_s) * 1e3
        p50, p99 = (None, None) if not len(milliseconds) else np.percentile(milliseconds, (50, 99)).tolist()
        lag = float(np.percentile(self.lags_s, 99)) * 1e3 if self.lags_s else 0.0
        answered = len(self.latencies_s)
        refused = dict(self.refused)
        missing = self.asked - answered - sum(refused.values())
        assert missing == 0, f"{missing} requests were lost by the load generator"
        return Result(
            self.asked, answered, self.in_time, refused, self.plan.seconds, p50, p99, lag, cpu_s / wall_s
        )


class _Connection(asyncio.Protocol):
    """One connection with at most one request in flight."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._transport: Any = None
        self._data = b""
        self._due_at: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = transport

    def send(self, due_at: float) -> None:
        self._due_at = due_at
        self._load.in_flight += 1
        self._transport.write(next(self._load.requests))

    def data_received(self, data: bytes) -> None:
        self._data = data = self._data + data if self._data else data
        if not _is_whole(data):
            return
        self._data = b""
        status = data[9:12].decode()
        self._end(status if status == "200" else f"{status}{_reason(data)}")
        self._load.next(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._end("none")

    def _end(self, status: str) -> None:
        due_at, self._due_at = self._due_at, None
        if due_at is not None:
            self._load.ended(due_at, status)


def _reason(reply: bytes) -> str:
    at = reply.find(_REASON)
    return "" if at < 0 else " " + reply[at + len(_REASON) :].partition(b'"')[0].decode()


def _is_whole(data: bytes) -> bool:
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = data[: end + 2].lower()
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        return len(data) >= end + 4 + int(head[at + 17 :].split(b"\r\n", 1)[0])
    if b"\r\ntransfer-encoding: chunked\r\n" in head:
        return data.endswith(b"\r\n0\r\n\r\n")
    raise RuntimeError(f"a reply without a length: {head[:300]!r}")


async def run(plan: Plan) -> Result:
    """Put the load on and return what came of it."""
    loop = asyncio.get_running_loop()
    load = _Load(plan)
    made = [
        (await loop.create_connection(lambda: _Connection(load), "127.0.0.1", plan.target.port))
        for _ in range(plan.connections)
    ]
    load.begin()
    before, began = _cpu_s(), monotonic()
    for _, connection in made:
        load.next(connection)
    if plan.rate is not None:
        await _arrivals(load, plan.rate)
    give_up_at = load.ends_at + _ANSWER_S
    while (now := monotonic()) < load.ends_at or (load.in_flight and now < give_up_at):
        await asyncio.sleep(0.01)
    spent_s, wall_s = _cpu_s() - before, monotonic() - began
    for transport, _ in made:
        transport.close()
    await asyncio.sleep(0.05)
    return load.result(spent_s, wall_s)


async def _arrivals(load: _Load, rate: float) -> None:
    plan = load.plan
    generator = np.random.default_rng(plan.seed)
    count = round(rate * (plan.warmup_s + plan.seconds))
    at = load.began_at - plan.warmup_s
    for gap in generator.exponential(1 / rate, count).tolist():
        at += gap
        left_s = at - monotonic()
        if left_s > 0:
            await asyncio.sleep(left_s)
        load.due(at)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run the plan that the command line holds."""
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    with contextlib.suppress(PermissionError):
        # It stands for clients on machines of their own: what it waits for a processor would count as the
        # server's time. It needs a tenth of one.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    gc.disable()
    print(msgspec.json.encode(uvloop.run(run(plan))).decode())


if __name__ == "__main__":
    main()
