"""A run as two Parquet tables, ``requests`` and ``actions``, for pandas, DuckDB and the like.

Rows are written in groups as requests and actions end, so memory holds one group and what is open. Instants
are nanoseconds on the controller's monotonic clock; ``arrived_at`` and ``sent_at`` are by the calendar.
Needs pyarrow (the extra ``parquet``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from mainspring import extras
from mainspring.messages.actions import Infer, Load, RejectEvidence, Timed
from mainspring.messages.ids import gateway_of
from mainspring.telemetry.lifecycles import ActionLife, Lifecycles, RequestLife
from mainspring.telemetry.runs import LogProblem, Run, read_run

ROWS_IN_GROUP = 50_000

REQUESTS = {
    "request_id": "uint64",
    "gateway": "uint32",
    "model": "string",
    "rows": "int32",
    "priority": "int32",
    "arrived_at": "timestamp",
    "arrived_ns": "int64",
    "deadline_ns": "int64",
    "outcome": "string",
    "reason": "string",
    "detail": "string",
    "earliest_finish_ns": "int64",
    "ended_ns": "int64",
    "latency_ns": "int64",
    "attempts": "int32",
    "action_id": "uint64",
    "worker": "string",
    "batch_size": "int32",
    "cold": "bool",
    "best_worker": "string",
    "best_exec_free_ns": "int64",
    "best_inputs_ns": "int64",
    "best_weights_ns": "int64",
    "best_begin_ns": "int64",
    "best_duration_ns": "int64",
    "waiting": "int32",
    "ahead_work_ns": "int64",
    "ahead_rows": "int32",
    "ahead_margin": "float64",
    "ahead_begin_ns": "int64",
}
"""Columns of ``requests.parquet`` and what they hold; what is not known is null.

Those from ``best_worker`` on are the evidence of a rejection: the plan that would have ended first, and how
many other requests waited for the model.
"""
ACTIONS = {
    "action_id": "uint64",
    "kind": "string",
    "worker": "string",
    "model": "string",
    "batch_size": "int32",
    "rows": "int32",
    "request_ids": "ids",
    "pages": "pages",
    "sent_at": "timestamp",
    "sent_ns": "int64",
    "earliest_ns": "int64",
    "latest_ns": "int64",
    "predicted_begin_ns": "int64",
    "predicted_duration_ns": "int64",
    "begin_ns": "int64",
    "end_ns": "int64",
    "duration_ns": "int64",
    "device_ns": "int64",
    "inputs_ns": "int64",
    "result_ns": "int64",
    "status": "string",
    "detail": "string",
    "exec_free_ns": "int64",
    "planned_inputs_ns": "int64",
    "planned_weights_ns": "int64",
    "weights_load_id": "uint64",
    "after_action_id": "uint64",
    "actions_ahead": "int32",
    "load_reason": "string",
    "evicted": "names",
}
"""Columns of ``actions.parquet``; ``status`` is ``lost`` with a worker, and null while outstanding.

Those from ``exec_free_ns`` on are the evidence of an INFER or a LOAD: when the executor, the inputs and the
weights were predicted to be ready, what was outstanding before it, why a LOAD was sent and what it evicted.
"""


class Converted(msgspec.Struct, frozen=True):
    """The files that were written, and what they hold."""

    requests: int
    actions: int
    size_bytes: int
    paths: list[str]


def to_parquet(run: Run, target: Path, from_ns: int, to_ns: int) -> Converted:
    """Write ``requests.parquet`` and ``actions.parquet`` into the folder ``target``.

    They have the requests that arrived, and the actions that were sent, in ``from_ns <= instant < to_ns``.
    Raises `LogProblem` if pyarrow is missing, and OSError if something can't be read or written.
    """
    arrow = _pyarrow()
    target.mkdir(parents=True, exist_ok=True)
    with (
        _Table(arrow, target / "requests.parquet", REQUESTS) as requests,
        _Table(arrow, target / "actions.parquet", ACTIONS) as actions,
    ):
        converter = _Converter(run, requests.add, actions.add, from_ns, to_ns)
        lives = Lifecycles(converter.request, converter.action)
        for now_ns, entry in read_run(run):
            lives.take(now_ns, entry)
            if now_ns >= to_ns and not lives.awaits(to_ns):
                break
        lives.finish()
    paths = [requests.path, actions.path]
    size_bytes = sum(path.stat().st_size for path in paths)
    return Converted(requests.rows, actions.rows, size_bytes, [str(path) for path in paths])


class _Converter:
    """Lifecycles to rows."""

    def __init__(
        self,
        run: Run,
        add_request: Callable[[dict[str, Any]], None],
        add_action: Callable[[dict[str, Any]], None],
        from_ns: int,
        to_ns: int,
    ) -> None:
        self._run = run
        self._add_request = add_request
        self._add_action = add_action
        self._from_ns = from_ns
        self._to_ns = to_ns

    def request(self, life: RequestLife) -> None:
        """Add a request's row if it arrived in the span."""
        if not self._from_ns <= life.arrived_ns < self._to_ns:
            return
        request, action = life.request, None if life.infer is None else life.infer.action
        executed = life.outcome in ("in_time", "late")
        self._add_request(
            {
                "request_id": request.request_id,
                "gateway": gateway_of(request.request_id),
                "model": request.model,
                "rows": request.rows,
                "priority": request.priority,
                "arrived_at": self._run.unix_ns(life.arrived_ns) // 1000,
                "arrived_ns": life.arrived_ns,
                "deadline_ns": request.deadline_ns,
                "outcome": life.outcome,
                "reason": life.reason or None,
                "detail": life.detail or None,
                "earliest_finish_ns": life.earliest_finish_ns,
                "ended_ns": life.ended_ns,
                "latency_ns": None if life.ended_ns is None else life.ended_ns - life.arrived_ns,
                "attempts": life.attempts,
                "action_id": None if action is None else action.action_id,
                "worker": None if action is None else action.worker,
                "batch_size": action.batch_size if isinstance(action, Infer) and executed else None,
                "cold": life.cold if life.attempts else None,
                **_of_rejection(life),
            }
        )

    def action(self, life: ActionLife) -> None:
        """Add an action's row if it was sent in the span."""
        if not self._from_ns <= life.sent_ns < self._to_ns:
            return
        action, result = life.action, life.result
        infer = action if isinstance(action, Infer) else None
        timed = action if isinstance(action, Timed) else None
        self._add_action(
            {
                "action_id": action.action_id,
                "kind": life.kind,
                "worker": action.worker,
                "model": life.model,
                "batch_size": infer and infer.batch_size,
                "rows": infer and sum(infer.rows),
                "request_ids": infer and infer.request_ids,
                "pages": action.pages if isinstance(action, Load) else None,
                "sent_at": self._run.unix_ns(life.sent_ns) // 1000,
                "sent_ns": life.sent_ns,
                "earliest_ns": timed and timed.earliest_ns,
                "latest_ns": timed and timed.latest_ns,
                "predicted_begin_ns": timed and timed.predicted_begin_ns,
                "predicted_duration_ns": timed and timed.predicted_duration_ns,
                "begin_ns": result and result.begin_ns,
                "end_ns": result and result.end_ns,
                "duration_ns": result and result.end_ns - result.begin_ns,
                "device_ns": (result and result.device_ns) or None,
                "inputs_ns": (result and result.inputs_ns) or None,
                "result_ns": life.ended_ns,
                "status": life.status or None,
                "detail": (result.detail if result else life.lost) or None,
                **_of_action(timed),
            }
        )


def _of_rejection(life: RequestLife) -> dict[str, Any]:
    """Return the columns of a rejection's evidence."""
    evidence = life.evidence if isinstance(life.evidence, RejectEvidence) else None
    best = evidence and evidence.best
    ahead = evidence and evidence.ahead
    return {
        "best_worker": best and best.worker,
        "best_exec_free_ns": best and best.exec_free_ns,
        "best_inputs_ns": best and best.inputs_ns,
        "best_weights_ns": (best and best.weights_ns) or None,
        "best_begin_ns": best and best.begin_ns,
        "best_duration_ns": best and best.duration_ns,
        "waiting": evidence and evidence.waiting,
        "ahead_work_ns": ahead and ahead.work_ns,
        "ahead_rows": ahead and ahead.rows,
        "ahead_margin": ahead and ahead.margin,
        "ahead_begin_ns": ahead and ahead.begin_ns,
    }


def _of_action(action: Timed | None) -> dict[str, Any]:
    """Return the columns of an action's evidence."""
    infer = action.evidence if isinstance(action, Infer) else None
    load = action.evidence if isinstance(action, Load) else None
    ahead = infer.exec_ahead if infer else load and load.load_ahead
    return {
        "exec_free_ns": infer and infer.exec_free_ns,
        "planned_inputs_ns": infer and infer.inputs_ns,
        "planned_weights_ns": (infer and infer.weights_ns) or None,
        "weights_load_id": (infer and infer.load_id) or None,
        "after_action_id": (infer.exec_after if infer else load and load.load_after) or None,
        "actions_ahead": ahead,
        "load_reason": load and load.reason.value,
        "evicted": load and load.evicted,
    }


class _Table:
    """One Parquet file, written a group of rows at a time; one that was not finished is removed."""

    def __init__(self, arrow: Any, path: Path, columns: dict[str, str]) -> None:
        types = {
            "timestamp": arrow.timestamp("us", tz="UTC"),
            "bool": arrow.bool_(),
            "ids": arrow.list_(arrow.uint64()),
            "pages": arrow.list_(arrow.int32()),
            "names": arrow.list_(arrow.string()),
        }
        fields = [(name, types.get(kind) or getattr(arrow, kind)()) for name, kind in columns.items()]
        self.path = path
        self.rows = 0
        self._arrow = arrow
        self._schema = arrow.schema(fields)
        self._columns: dict[str, list[Any]] = {name: [] for name in columns}

    def __enter__(self) -> _Table:
        self._writer = self._arrow.parquet.ParquetWriter(self.path, self._schema, compression="zstd")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
        if kind is not None:
            self.path.unlink(missing_ok=True)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row with every column."""
        for name, column in self._columns.items():
            column.append(row[name])
        self.rows += 1
        if self.rows % ROWS_IN_GROUP == 0:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._arrow.table(self._columns, schema=self._schema))
        for column in self._columns.values():
            column.clear()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise LogProblem(
            f"Parquet needs pyarrow, which is not installed: {extras.command('parquet')}"
        ) from None
    return pyarrow
