"""A bare program beside the scheduler: what a request takes of compiled Python that decides nothing.

`BARE` is compiled by mypyc, as the scheduler is. It enters a request in a queue, a heap of what is ready and
one of alarms, and takes it out again; it makes the INFER with its evidence, and enters its result and the
measured duration. ``make bench-scheduler`` and ``make bench-floor`` print it beside the scheduler: what that
costs beyond it is what its decisions cost.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import RequestArrived

MODELS = 1_500
REQUESTS_PER_INFER = 1.5
"""About what batches hold in the part ``wide`` on 12 devices."""
BARE = """
from __future__ import annotations
import heapq
from bisect import bisect_left
from collections import deque
from mainspring.messages.actions import Infer, Result
from mainspring.messages.events import RequestArrived
from mainspring.messages.evidence import Evidence

class Request:
    __slots__ = ("arrived_ns", "due_ns", "event", "id", "place", "rows")
    def __init__(self, event: RequestArrived, now_ns: int, due_ns: int) -> None:
        self.id = event.request_id
        self.event = event
        self.rows = event.rows
        self.arrived_ns = now_ns
        self.due_ns = due_ns
        self.place = 0

class Queue:
    __slots__ = ("dues", "items", "key", "samples", "worst_ns")
    def __init__(self) -> None:
        self.dues: list[int] = []
        self.items: list[Request] = []
        self.key = 0
        self.samples: deque[int] = deque(maxlen=10)
        self.worst_ns = 0

class Slot:
    __slots__ = ("action", "begin_ns", "end_ns", "requests")
    def __init__(self, action: Infer, begin_ns: int, end_ns: int, requests: list[Request]) -> None:
        self.action = action
        self.begin_ns = begin_ns
        self.end_ns = end_ns
        self.requests = requests

class Bare:
    def __init__(self, models: list[str]) -> None:
        self.queues: dict[str, Queue] = {name: Queue() for name in models}
        self.requests: dict[int, Request] = {}
        self.ready: list[tuple[int, int, Queue]] = []
        self.alarms: list[tuple[int, int, Request]] = []
        self.running: dict[int, Slot] = {}
        self.count = 0

    def arrived(self, now_ns: int, event: RequestArrived) -> None:
        queue = self.queues[event.model]
        deadline_ns = event.deadline_ns
        assert deadline_ns is not None
        request = Request(event, now_ns, deadline_ns)
        self.requests[request.id] = request
        queue.dues.insert(bisect_left(queue.dues, deadline_ns), deadline_ns)
        queue.items.append(request)
        self.count += 1
        heapq.heappush(self.ready, (deadline_ns, self.count, queue))
        heapq.heappush(self.alarms, (deadline_ns, self.count, request))

    def fill(self, now_ns: int, worker: str, size: int) -> Infer:
        queue = heapq.heappop(self.ready)[2]
        while not queue.items:
            queue = heapq.heappop(self.ready)[2]
        requests = queue.items[:size]
        del queue.items[:size], queue.dues[:size]
        for request in requests:
            request.place = 1
        self.count += 1
        action = Infer(
            self.count, worker, requests[0].event.model, size,
            tuple([request.id for request in requests]), tuple([request.rows for request in requests]),
            tuple([False for request in requests]), now_ns, now_ns + 1000, now_ns, 5000,
            evidence=Evidence(now_ns, now_ns, 0, 0, self.count, 1),
        )
        self.running[self.count] = Slot(action, now_ns, now_ns + 5000, requests)
        return action

    def ended(self, now_ns: int, result: Result) -> None:
        slot = self.running.pop(result.action_id)
        for request in slot.requests:
            request.place = 2
            del self.requests[request.id]
        queue = self.queues[slot.action.model]
        queue.samples.append(result.end_ns - result.begin_ns)
        queue.worst_ns = max(queue.samples)

    def ring(self, now_ns: int) -> None:
        alarms = self.alarms
        while alarms and (alarms[0][2].place == 2 or alarms[0][0] <= now_ns):
            heapq.heappop(alarms)
"""
"""The least, as the scheduler's own files have it."""


def compiled(folder: Path) -> type:
    """Compile `BARE` into a folder; return its class. Raises RuntimeError with what mypyc said."""
    (folder / "bare_scheduler.py").write_text(BARE, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("mypyc")), "bare_scheduler.py"]
    environment = {**os.environ, "MYPYPATH": str(Path.cwd()), "MYPY_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {(done.stdout + done.stderr)[-800:]}")
    sys.path.insert(0, str(folder))
    module = importlib.import_module("bare_scheduler")
    if str(module.__file__).endswith(".py"):
        raise RuntimeError("mypyc compiled nothing")
    found: type = module.Bare
    return found


def floor_us(bare: type, requests: int, plays: int) -> float:
    """Return the processor time that `BARE` takes for a request, the least of several plays, in us."""
    names = [f"model-{number:05d}" for number in range(MODELS)]
    events = [
        RequestArrived(number, names[number * 7 % MODELS], 1, 100_000_000 + 1_000 * number)
        for number in range(requests)
    ]
    least_ns = 0
    for _ in range(plays):
        scheduler = bare(names)
        owed, now_ns, begin_ns = 0.0, 0, time.thread_time_ns()
        for event in events:
            now_ns += 400_000
            scheduler.arrived(now_ns, event)
            owed += 1 / REQUESTS_PER_INFER
            if owed >= 1:
                owed -= 1
                action: Infer = scheduler.fill(now_ns, "worker-1", 2)
                result = Result(action.action_id, "worker-1", Status.OK, now_ns, now_ns + 5000, 5000)
                scheduler.ended(now_ns, result)
            scheduler.ring(now_ns)
        taken_ns = time.thread_time_ns() - begin_ns
        least_ns = min(least_ns or taken_ns, taken_ns)
    return least_ns / 1e3 / requests


def bare_us(requests: int = 40_000, plays: int = 5) -> float:
    """Compile `BARE` and return what it takes for a request, in us; raise OSError or RuntimeError if it can't
    be compiled."""
    with tempfile.TemporaryDirectory() as folder:
        return floor_us(compiled(Path(folder)), requests, plays)
