"""An event stream as a trace for Perfetto: what each executor did, under which windows, for which requests.

* process *requests*: a slice for each arrival, a span for each request, named after its outcome and, in a
  query of a graph, its step, one for each such query, and the number of requests that wait;
* a process for each worker: threads EXEC, LOAD and OTHER with an action to a slice (a second thread takes
  what overlaps), NOT RUN with those that ended without running, spans for the windows in which INFERs and
  LOADs might begin, and the number of free pages;
* an arrow from each request's arrival to every INFER that it was in.

Memory holds what is open. The file is in Chrome's Trace Event Format: microseconds with three decimals.
Readers truncate a product, which may lose a nanosecond; so a slice is written a nanosecond short, and never
reaches into the next one.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from mainspring.messages.actions import Infer, Load, Timed
from mainspring.messages.codes import Status
from mainspring.messages.events import RequestArrived
from mainspring.telemetry.lifecycles import OPEN_OUTCOMES, ActionLife, Lifecycles, RequestLife

SHORTEST_NS = 1_000
"""The least length of a slice: a shorter one could be neither seen nor be the end of a flow."""


class TraceFile:
    """Writes a trace; a file whose name ends in ``.gz`` is compressed. Nothing is kept in memory."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Begin the file; ``about`` is shown as the trace's metadata. Raises OSError if it can't be made."""
        self.path = path
        self.events = 0
        self.size_bytes = 0
        """Size of the whole file; known once it is closed."""
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._file = self._open(compressed=path.suffix == ".gz")
        self._flows = 0
        about_json = msgspec.json.encode(about)
        self._file.write(b'{"displayTimeUnit":"ms","otherData":' + about_json + b',"traceEvents":[')

    def process(self, pid: int, name: str, order: int) -> None:
        """Name a process and give it its place from the top."""
        self._put(ph="M", pid=pid, name="process_name", args={"name": name})
        self._put(ph="M", pid=pid, name="process_sort_index", args={"sort_index": order})

    def thread(self, pid: int, tid: int, name: str, order: int) -> None:
        """Name a thread; ``tid`` belongs to it alone, whatever the process.

        That whose ``tid`` is its process's has the process's spans and counters, and no slices.
        """
        self._put(ph="M", pid=pid, tid=tid, name="thread_name", args={"name": name})
        self._put(ph="M", pid=pid, tid=tid, name="thread_sort_index", args={"sort_index": order})

    def slice(
        self, pid: int, tid: int, name: str, category: str, begin_ns: int, end_ns: int, args: dict[str, Any]
    ) -> None:
        """Write what happened on a thread. Slices of one thread must not overlap."""
        length_ns = max(end_ns - begin_ns, SHORTEST_NS) - 1
        self._put(
            ph="X",
            pid=pid,
            tid=tid,
            name=name,
            cat=category,
            ts=begin_ns / 1e3,
            dur=length_ns / 1e3,
            args=args,
        )

    def span(
        self, pid: int, name: str, category: str, id_: int, begin_ns: int, end_ns: int, args: dict[str, Any]
    ) -> None:
        """Write what lasted in a process and may overlap; ``id_`` is unique in its category."""
        id_text = f"{id_:#x}"
        self._put(ph="b", pid=pid, tid=pid, name=name, cat=category, id=id_text, ts=begin_ns / 1e3, args=args)
        self._put(ph="e", pid=pid, tid=pid, name=name, cat=category, id=id_text, ts=end_ns / 1e3)

    def flow(self, name: str, begin: tuple[int, int, int], end: tuple[int, int, int]) -> None:
        """Draw an arrow between two slices; each is (pid, tid, begin of the slice)."""
        self._flows += 1
        inside_ns = SHORTEST_NS // 2
        for phase, (pid, tid, at_ns), more in (("s", begin, {}), ("f", end, {"bp": "e"})):
            ts = (at_ns + inside_ns) / 1e3
            self._put(ph=phase, pid=pid, tid=tid, name=name, cat="flow", id=self._flows, ts=ts, **more)

    def counter(self, pid: int, name: str, unit: str, at_ns: int, value: int) -> None:
        """Write a number that holds from an instant on."""
        self._put(ph="C", pid=pid, tid=pid, name=name, ts=at_ns / 1e3, args={unit: value})

    def close(self) -> None:
        """Finish the file: only now it is there under its name."""
        self._file.write(b"\n]}\n")
        self._file.close()
        self._part.replace(self.path)
        self.size_bytes = self.path.stat().st_size

    def abandon(self) -> None:
        """Leave no file behind."""
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _open(self, *, compressed: bool) -> BinaryIO:
        if compressed:
            return cast("BinaryIO", gzip.open(self._part, "wb", compresslevel=6))
        return self._part.open("wb")

    def _put(self, **event: Any) -> None:
        self._file.write((b",\n" if self.events else b"\n") + msgspec.json.encode(event))
        self.events += 1


COUNTER_NS = 1_000_000
"""Least time between two samples of the counters, which are written if they changed."""
REQUESTS_SHOWN = 16
"""Ids of an INFER's requests that stand in its arguments at most."""
_REQUESTS_PID = 1
_FIRST_TID = 100_000
"""First thread id, above all process ids: spans and counters belong to a thread with its process's id."""
_ARRIVALS_TID = _FIRST_TID
_RAN = (Status.OK, Status.ENGINE_ERROR, Status.BAD_VALUES, Status.OUTPUT_LOST)
_EXECUTORS = ("EXEC", "LOAD", "OTHER", "NOT RUN")
_EXECUTOR = {"INFER": "EXEC", "OPEN": "EXEC", "LOAD": "LOAD"}


class Tracer:
    """Takes every record of a stream in order; writes from `begin` on."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._lifecycles = Lifecycles(self._request, self._action)
        self._from_ns: int | None = None
        self._arrivals: dict[int, int] = {}
        """Beginning of the slice of each open request's arrival, by request."""
        self._arrivals_end_ns = 0
        self._workers: dict[str, _Worker] = {}
        self._threads = _ARRIVALS_TID
        self._counted_ns = -COUNTER_NS
        self._queries: dict[int, tuple[str, int, int]] = {}
        """Graph, first arrival and last end of each query of a graph, of pieces that have ended."""
        self._counted: dict[int, int] = {}
        """The value last written of each process's counter."""

    def begin(self, from_ns: int) -> None:
        """Write from this instant on; what was taken before only says how things stand."""
        self._from_ns = from_ns
        self._file.process(_REQUESTS_PID, "requests", 0)
        self._file.thread(_REQUESTS_PID, _REQUESTS_PID, "outcomes", 1)
        self._file.thread(_REQUESTS_PID, _ARRIVALS_TID, "arrivals", 0)
        for name in self._lifecycles.cluster.workers:
            self._worker(name)
        self._count(from_ns)

    def take(self, now_ns: int, entry: object) -> None:
        """Take one record in."""
        self._lifecycles.take(now_ns, entry)
        if self._from_ns is None:
            return
        if isinstance(entry, RequestArrived):
            self._arrived(now_ns, entry)
        if self._queries:
            self._end_queries()
        self._count(now_ns)

    def finish(self) -> None:
        """Write what is still open as it is planned."""
        if self._from_ns is not None:
            self._count(self._lifecycles.now_ns, last=True)
        self._lifecycles.finish()
        self._end_queries()

    def _end_queries(self) -> None:
        """Write the queries that are over."""
        known = self._lifecycles.cluster.queries
        for query in [each for each in self._queries if each not in known]:
            graph, begin_ns, end_ns = self._queries.pop(query)
            args = {"query": str(query)}
            self._file.span(_REQUESTS_PID, f"graph {graph}", "query", query, begin_ns, end_ns, args)

    def _arrived(self, now_ns: int, event: RequestArrived) -> None:
        # Slices of one thread must not overlap, and a turn of the controller takes many at one instant.
        at_ns = max(self._at(now_ns), self._arrivals_end_ns)
        self._arrivals_end_ns = at_ns + SHORTEST_NS
        self._arrivals[event.request_id] = at_ns
        args = {"request": str(event.request_id), "rows": event.rows, "priority": event.priority}
        if event.deadline_ns is not None:
            args["deadline_ms"] = (event.deadline_ns - now_ns) / 1e6
        self._file.slice(
            _REQUESTS_PID, _ARRIVALS_TID, event.model, "arrival", at_ns, at_ns + SHORTEST_NS, args
        )

    def _request(self, life: RequestLife) -> None:
        executed = life.outcome in ("in_time", "late")
        if not executed and life.outcome not in OPEN_OUTCOMES:
            self._arrivals.pop(life.request.request_id, None)
        end_ns = self._lifecycles.now_ns if life.ended_ns is None else life.ended_ns
        if self._from_ns is None or end_ns < self._from_ns:
            return
        args: dict[str, Any] = {"request": str(life.request.request_id), "model": life.request.model}
        args["latency_ms"] = (end_ns - life.arrived_ns) / 1e6
        if life.request.deadline_ns is not None:
            args["deadline_ms"] = (life.request.deadline_ns - life.arrived_ns) / 1e6
        if life.earliest_finish_ns is not None:
            args["earliest_finish_ms"] = (life.earliest_finish_ns - life.arrived_ns) / 1e6
        if life.infer is not None:
            args |= {"action": life.infer.action.action_id, "worker": life.infer.action.worker}
            args |= {"attempts": life.attempts, "cold": life.cold}
        if life.detail:
            args["detail"] = life.detail
        name = f"{life.outcome}: {life.reason}" if life.reason else life.outcome.replace("_", " ")
        begin_ns, end_ns = self._at(life.arrived_ns), self._at(end_ns)
        if life.step:
            name, query = f"{life.step}, {name}", life.request.query
            args |= {"query": str(query), "step": life.step}
            graph, first_ns, last_ns = self._queries.get(query, (life.step.partition(".")[0], begin_ns, 0))
            self._queries[query] = graph, min(first_ns, begin_ns), max(last_ns, end_ns)
        self._file.span(
            _REQUESTS_PID, name, "request", life.request.request_id, begin_ns, max(begin_ns, end_ns), args
        )

    def _action(self, life: ActionLife) -> None:
        requests = life.action.request_ids if isinstance(life.action, Infer) else ()
        arrivals = [self._arrivals.get(id_) for id_ in requests]
        if life.status == Status.OK:
            for id_ in requests:
                self._arrivals.pop(id_, None)
        if self._from_ns is None or (life.ended_ns is not None and life.ended_ns < self._from_ns):
            return
        worker = self._worker(life.action.worker)
        executor, name, begin_ns, end_ns = _placed(life, self._lifecycles.now_ns)
        begin_ns = self._at(begin_ns)
        end_ns = max(self._at(end_ns), begin_ns + SHORTEST_NS)
        tid = worker.thread(executor, begin_ns, end_ns)
        self._file.slice(worker.pid, tid, name, life.kind, begin_ns, end_ns, _arguments(life))
        for at_ns in arrivals:
            if at_ns is not None:
                self._file.flow("request", (_REQUESTS_PID, _ARRIVALS_TID, at_ns), (worker.pid, tid, begin_ns))
        self._window(worker.pid, life)

    def _window(self, pid: int, life: ActionLife) -> None:
        """Write when an action might begin."""
        action = life.action
        if isinstance(action, Timed):
            first_ns, last_ns = self._at(action.earliest_ns), self._at(action.latest_ns)
            args = {"action": action.action_id, "model": action.model}
            name = f"{life.kind} window"
            self._file.span(pid, name, "window", action.action_id, first_ns, max(first_ns, last_ns), args)

    def _worker(self, name: str) -> _Worker:
        worker = self._workers.get(name)
        if worker is None:
            joined = self._lifecycles.cluster.workers.get(name)
            pid = _REQUESTS_PID + 1 + len(self._workers)
            worker = self._workers[name] = _Worker(pid, self._new_thread)
            kind = f" ({joined.device_kind})" if joined is not None else ""
            self._file.process(pid, f"{name}{kind}", pid)
            self._file.thread(pid, pid, "windows", len(_EXECUTORS) * 1_000)
        return worker

    def _new_thread(self, pid: int, name: str, order: int) -> int:
        self._threads += 1
        self._file.thread(pid, self._threads, name, order)
        return self._threads

    def _count(self, now_ns: int, *, last: bool = False) -> None:
        if now_ns - self._counted_ns < COUNTER_NS and not last:
            return
        self._counted_ns = now_ns
        self._counter(_REQUESTS_PID, "waiting", "requests", now_ns, self._lifecycles.queued)
        for name, worker in self._lifecycles.cluster.workers.items():
            self._counter(self._worker(name).pid, "free", "pages", now_ns, worker.pages.free)

    def _counter(self, pid: int, name: str, unit: str, now_ns: int, value: int) -> None:
        if self._counted.get(pid) != value:
            self._counted[pid] = value
            self._file.counter(pid, name, unit, self._at(now_ns), value)

    def _at(self, now_ns: int) -> int:
        """Return an instant from the trace's start; what is before it is put at it."""
        assert self._from_ns is not None, "nothing is written before the trace has a start"
        return max(0, now_ns - self._from_ns)


class _Worker:
    """A worker's process and its threads."""

    def __init__(self, pid: int, new_thread: Callable[[int, str, int], int]) -> None:
        self.pid = pid
        self._new_thread = new_thread
        self._lanes: dict[str, list[tuple[int, int]]] = {name: [] for name in _EXECUTORS}
        """Thread and end of the last slice of each of an executor's threads, by executor."""

    def thread(self, executor: str, begin_ns: int, end_ns: int) -> int:
        """Return a thread of an executor that is free for a slice, and take it."""
        lanes = self._lanes[executor]
        for index, (tid, until_ns) in enumerate(lanes):
            if until_ns <= begin_ns:
                lanes[index] = (tid, end_ns)
                return tid
        name = f"{executor} {len(lanes) + 1}" if lanes else executor
        order = _EXECUTORS.index(executor) * 1_000 + len(lanes)
        tid = self._new_thread(self.pid, name, order)
        lanes.append((tid, end_ns))
        return tid


def _placed(life: ActionLife, now_ns: int) -> tuple[str, str, int, int]:
    """Return an action's executor, the name of its slice, and when it began and ended, or is to."""
    action, result, executor = life.action, life.result, _EXECUTOR.get(life.kind, "OTHER")
    name = life.model if life.kind in ("INFER", "LOAD") else f"{life.kind} {life.model}"
    if result is not None and result.status in _RAN:
        return executor, name, result.begin_ns, result.end_ns
    if result is not None:
        return "NOT RUN", f"{name}: {result.status.value}", result.begin_ns, result.end_ns
    if life.ended_ns is not None:
        return "NOT RUN", f"{name}: lost", life.sent_ns, life.ended_ns
    if isinstance(action, Timed):
        end_ns = action.predicted_begin_ns + action.predicted_duration_ns
        return executor, f"{name} (planned)", action.predicted_begin_ns, end_ns
    return executor, f"{name} (under way)", life.sent_ns, now_ns


def _arguments(life: ActionLife) -> dict[str, Any]:
    """Return what a slice says about its action: times in microseconds, errors as actual less predicted."""
    action, result = life.action, life.result
    args: dict[str, Any] = {"action": action.action_id, "model": life.model, "kind": life.kind}
    args["status"] = life.status or "outstanding"
    if detail := (life.lost if result is None else result.detail):
        args["detail"] = detail
    if isinstance(action, Infer):
        args |= {"batch_size": action.batch_size, "rows": sum(action.rows), "cold": sum(action.cold)}
        args["requests"] = " ".join(map(str, action.request_ids[:REQUESTS_SHOWN]))
        args["requests_in_all"] = len(action.request_ids)
    elif isinstance(action, Load):
        args["pages"] = " ".join(map(str, action.pages))
    if not isinstance(action, Timed):
        return args
    if isinstance(action, Infer | Load):
        args |= _evidence(life, action)
    args["predicted_duration_us"] = action.predicted_duration_ns / 1e3
    args["window_us"] = (action.latest_ns - action.earliest_ns) / 1e3
    args["sent_before_predicted_begin_us"] = (action.predicted_begin_ns - life.sent_ns) / 1e3
    if result is not None and result.status in _RAN:
        duration_ns = result.end_ns - result.begin_ns
        args["duration_us"] = duration_ns / 1e3
        if isinstance(action, Infer | Load) and result.device_ns:
            args["device_us"] = result.device_ns / 1e3
            args["host_us"] = max(0, duration_ns - result.device_ns) / 1e3
        args["duration_error_us"] = (duration_ns - action.predicted_duration_ns) / 1e3
        args["begin_error_us"] = (result.begin_ns - action.predicted_begin_ns) / 1e3
        predicted_end_ns = action.predicted_begin_ns + action.predicted_duration_ns
        args["end_error_us"] = (result.end_ns - predicted_end_ns) / 1e3
        args["slack_us"] = (action.latest_ns - result.begin_ns) / 1e3
    return args


def _evidence(life: ActionLife, action: Infer | Load) -> dict[str, Any]:
    """Return what an action was planned by: instants as microseconds from its sending."""
    if action.evidence is None:
        return {}
    if isinstance(action, Load):
        load = action.evidence
        args: dict[str, Any] = {"reason": load.reason.value, "loads_ahead": load.load_ahead}
        return args | ({"evicted": " ".join(load.evicted)} if load.evicted else {})
    planned = action.evidence
    args = {
        "planned_exec_free_us": (planned.exec_free_ns - life.sent_ns) / 1e3,
        "planned_inputs_us": (planned.inputs_ns - life.sent_ns) / 1e3,
        "infers_ahead": planned.exec_ahead,
    }
    if planned.weights_ns:
        args["planned_weights_us"] = (planned.weights_ns - life.sent_ns) / 1e3
    return args
