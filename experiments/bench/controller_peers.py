"""A controller's peers without devices and clients: what it decides takes as long as it predicts.

Twelve workers and a gateway in one process, so that a machine of two cores carries a controller that decides
thousands of requests a second.
``python -m mainspring.experiments.bench.controller_peers ADDRESS RATE SECONDS MODELS``.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import sys
import time
from collections import Counter

import msgspec
import numpy as np

from mainspring.cli.launcher.process_plan import CONTROL_PRIORITY
from mainspring.experiments.scheduler_load import KIND, Setting, varieties
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.actions import Infer, Load, Prepare, Release, Result, Unload
from mainspring.messages.codec import TO_GATEWAY, TO_WORKER, encode
from mainspring.messages.codes import Status
from mainspring.messages.events import Resident
from mainspring.messages.ids import request_id
from mainspring.messages.model import PAGE_BYTES, ModelSpec
from mainspring.messages.peers import (
    Arrival,
    GatewayHello,
    Ping,
    Pong,
    Refused,
    Rejected,
    Welcome,
    WorkerHello,
)
from mainspring.traces import arrival as traced
from mainspring.traces.recipe import Recipe, build
from mainspring.traces.workload import Workload
from mainspring.transport.bounds import Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link

LIMITS = Limits(part_bytes=64 << 20, backlog_bytes=64 << 20, backlog_messages=100_000)
PRIORITY = CONTROL_PRIORITY + 1
SETTLE_S = 3.0


def arrivals(rate: float, seconds: float, models: int) -> list[traced.Arrival]:
    """Return the requests of some seconds, for the models of `varieties`, in order."""
    setting = Setting()
    names = [spec.name for spec in varieties(models)]
    recipe = Recipe(duration_ns=round(seconds * 1e9), slo_ns=round(setting.slo_ms * 1e6), rate=rate, seed=65)
    workload = build(recipe, names)
    assert isinstance(workload, Workload)
    return list(workload.arrivals(np.random.default_rng(recipe.seed)))


class Fleet:
    """All peers, on one hub."""

    def __init__(self, address: str, demand: Counter[str], models: int) -> None:
        self.in_time = self.rejected = 0
        self.behind_ms: list[float] = []
        self._hub = Hub()
        self._gateway = Link(self._hub, address, LIMITS, name=b"fleet", keeps=True, shows=Pass("gateway"))
        self._gateway.send((encode(GatewayHello(PROTOCOL_VERSION, "fleet")),))
        self._ends: list[tuple[int, int, str, Result]] = []
        self._free_ns: Counter[tuple[str, bool]] = Counter()
        self._by_name: dict[str, Link] = {}
        self._names: dict[Link, str] = {}
        self._number = 0
        specs = varieties(models)
        prepared = {spec.name: spec.artifact for spec in specs}
        for index, held in enumerate(_held(specs, demand)):
            name = f"worker-{index}"
            link = self._by_name[name] = Link(
                self._hub, address, LIMITS, name=name.encode(), keeps=True, shows=Pass("worker")
            )
            self._names[link] = name
            hello = WorkerHello(
                PROTOCOL_VERSION, name, KIND, Setting().pages, PAGE_BYTES, "tcp://127.0.0.1:1",
                prepared, tuple(held),
            )  # fmt: skip
            link.send((encode(hello),))

    def play(self, requests: list[traced.Arrival]) -> None:
        """Send requests at their instants, and let work end at its own."""
        self._turn_until(time.monotonic_ns() + round(SETTLE_S * 1e9))
        print("ready", flush=True)
        began_ns = time.monotonic_ns()
        for count, request in enumerate(requests):
            due_ns = began_ns + request.time_ns
            self._turn_until(due_ns)
            self.behind_ms.append((time.monotonic_ns() - due_ns) / 1e6)
            arrival = Arrival(request_id(self._number, count), request.model, request.rows, request.slo_ns)
            self._gateway.send((encode(arrival),))
        self._turn_until(time.monotonic_ns() + 200_000_000)

    def _turn_until(self, until_ns: int) -> None:
        while (now_ns := time.monotonic_ns()) < until_ns:
            while self._ends and self._ends[0][0] <= now_ns:
                _, _, worker, result = heapq.heappop(self._ends)
                self._by_name[worker].send((encode(result),))
            next_ns = min(until_ns, self._ends[0][0] if self._ends else until_ns)
            for port in self._hub.wait(max(0, next_ns - time.monotonic_ns())):
                assert isinstance(port, Link)
                self._receive(port)

    def _receive(self, link: Link) -> None:
        name = self._names.get(link)
        while (parts := link.receive()) is not None:
            if name is None:
                self._told(TO_GATEWAY.decode(parts[0]))
            else:
                self._do(name, link, TO_WORKER.decode(parts[0]))

    def _told(self, message: msgspec.Struct) -> None:
        match message:
            case Ping(sequence=sequence, sent_ns=sent_ns):
                self._gateway.send((_pong(sequence, sent_ns),))
            case Welcome(number=number):
                self._number = number
            case Rejected():
                self.rejected += 1
            case Refused():
                raise SystemExit(f"the controller refused the gateway: {message}")

    def _do(self, name: str, link: Link, message: msgspec.Struct) -> None:
        now_ns = time.monotonic_ns()
        match message:
            case Ping(sequence=sequence, sent_ns=sent_ns):
                link.send((_pong(sequence, sent_ns),))
            case Infer() | Load():
                executor = name, isinstance(message, Infer)
                begin_ns = max(self._free_ns[executor], message.earliest_ns, now_ns)
                self._free_ns[executor] = end_ns = begin_ns + message.predicted_duration_ns
                self._end(name, message.action_id, begin_ns, end_ns)
                if isinstance(message, Infer):
                    self.in_time += len(message.request_ids)
            case Prepare() | Release() | Unload():
                self._end(name, message.action_id, now_ns, now_ns)
            case Refused():
                raise SystemExit(f"the controller refused {name}: {message}")

    def _end(self, name: str, action_id: int, begin_ns: int, end_ns: int) -> None:
        result = Result(action_id, name, Status.OK, begin_ns, end_ns, end_ns - begin_ns)
        heapq.heappush(self._ends, (end_ns, action_id, name, result))


def _pong(sequence: int, sent_ns: int) -> bytes:
    now_ns = time.monotonic_ns()
    return encode(Pong(sequence, sent_ns, now_ns, now_ns))


def _held(specs: list[ModelSpec], demand: Counter[str]) -> list[list[Resident]]:
    setting = Setting()
    held: list[list[Resident]] = [[] for _ in range(setting.devices)]
    used = [0] * setting.devices
    for index, spec in enumerate(sorted(specs, key=lambda spec: (-demand[spec.name], spec.name))):
        device = index % setting.devices
        if used[device] + spec.pages <= setting.pages:
            pages = tuple(range(used[device], used[device] + spec.pages))
            held[device].append(Resident(spec.name, spec.artifact, pages))
            used[device] += spec.pages
    return held


def main(address: str, rate: float, seconds: float, models: int) -> None:
    """Play one load, and say what came of it."""
    with contextlib.suppress(PermissionError):
        # It stands for other machines: what it waits for a processor would come in bursts afterwards.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    requests = arrivals(rate, seconds, models)
    fleet = Fleet(address, Counter(request.model for request in requests), models)
    fleet.play(requests)
    behind_ms = np.percentile(fleet.behind_ms, 99)
    print(
        f"{len(requests)} requests, {fleet.in_time} dispatched, {fleet.rejected} rejected; "
        f"sent {behind_ms:.1f} ms late at p99",
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
