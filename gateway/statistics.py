"""Statistics of each model, with Triton's meanings (its statistics extension).

One observer counts for them and for the metrics, so that nothing is measured or looked up twice. On a
request's own way it only keeps what became of it; these notes are counted together, once there are `KEPT` or
somebody asks, so that whoever asks finds every request counted. A note refers to no tensor. What all of it
costs is stated in docs/measurements.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic_ns, time_ns
from typing import Final

from mainspring.gateway.core.cache import ModelCounts
from mainspring.gateway.core.effects import Accepted, Dispatched
from mainspring.gateway.core.requests import NO_TIMES, Pending
from mainspring.gateway.core.validation import BadRequest, Resolve, Signature
from mainspring.gateway.metrics.series import Series
from mainspring.gateway.statistics_report import BatchStatistics, Count, InferenceStatistics, ModelStatistics
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import Output, OutputTimes
from mainspring.telemetry.bounded import BoundedLabels, model_key

_SPARE_ACCOUNTS = 64
"""Accounts of models that are served no more, before they are looked for and closed."""
_WORKERS = 4_096
"""Workers whose last action is remembered."""
KEPT: Final = 64
"""Requests that are counted together: that takes about as long as the gateway's part of one of them."""


class _Note:
    """The outcome of one request that got outputs or a reason instead."""

    __slots__ = (
        "accepted",
        "arrived_ns",
        "cache_ns",
        "cached",
        "deadline_ns",
        "dispatch",
        "ended_ns",
        "output",
        "reason",
        "steps",
    )

    def __init__(
        self,
        ended_ns: int,
        request: Pending,
        reason: Reason | None,
        dispatch: Dispatched | None = None,
        output: Output | None = None,
    ) -> None:
        """``reason``: None if it got outputs."""
        self.accepted: Accepted = request.accepted
        self.arrived_ns = request.arrived_ns
        self.deadline_ns = request.deadline_ns
        self.ended_ns = ended_ns
        self.reason = reason
        self.dispatch = dispatch
        self.output = output
        self.cached = request.digest is not None
        """True if the prediction cache was asked for it, which took ``cache_ns``."""
        self.cache_ns = request.cache_ns
        self.steps = () if request.flow is None or dispatch is None else request.flow.timing()
        """Steps of a graph."""


class _Batch:
    """Executions of one batch size."""

    __slots__ = ("count", "infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.count = self.input_ns = self.infer_ns = self.output_ns = 0

    def state(self, batch_size: int) -> BatchStatistics:
        """Return what was counted so far: each of the three times with the number of executions."""
        return BatchStatistics(
            batch_size,
            Count(self.count, self.input_ns),
            Count(self.count, self.infer_ns),
            Count(self.count, self.output_ns),
        )


class _Account:
    """The counters of one version of a model."""

    __slots__ = (
        "batches",
        "computed",
        "executions",
        "fail",
        "fail_ns",
        "infer_ns",
        "input_ns",
        "key",
        "last_ns",
        "output_ns",
        "queue_ns",
        "recent",
        "rows",
        "series",
        "success",
        "success_ns",
    )

    def __init__(self, key: str, series: Series | None) -> None:
        self.key = key
        self.series = series
        """The series that counts its requests for the metrics; None if nobody scrapes."""
        self.success = self.success_ns = self.fail = self.fail_ns = self.last_ns = 0
        self.computed = self.queue_ns = self.input_ns = self.infer_ns = self.output_ns = 0
        self.rows = self.executions = 0
        self.recent = 0
        """Requests since the labels were last ranked."""
        self.batches: dict[int, _Batch] = {}

    def batch(self, size: int) -> _Batch:
        """Return the executions of one batch size."""
        return self.batches.get(size) or self.batches.setdefault(size, _Batch())


class Statistics:
    """An observer of the request table; see `of`."""

    def __init__(
        self,
        signatures: Mapping[str, Signature],
        resolve: Resolve,
        cached: Callable[[str], ModelCounts],
        labels: BoundedLabels[Series] | None = None,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        """``signatures`` are of the models that are served, by the scheduler's names; ``cached`` tells what
        the cache did for one. With ``labels``, requests are counted for the metrics too.
        """
        self._signatures = signatures
        self._resolve = resolve
        self._cached = cached
        self.labels = labels
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._last: dict[str, tuple[int, int]] = {}
        """Each worker's last action, whose outputs come in one piece, and its time for outputs so far."""
        self._seen: set[str] = set()
        """The models that were served when labels were last offered to them."""
        self._notes: list[_Note] = []
        """The notes of requests that are not counted yet, in order."""

    # --- what front ends ask for ---

    def of(self, spec: ModelSpec) -> ModelStatistics:
        """Return the statistics of a model that is served: zeros if nothing was asked of it."""
        self.settle()
        account = self._accounts.get(spec.name) or _Account("", None)
        cached = self._cached(spec.name)
        last_ms = 0 if not account.last_ns else (time_ns() - self._clock() + account.last_ns) // 1_000_000
        return ModelStatistics(
            name=spec.public_name,
            version=str(spec.version),
            last_inference=last_ms,
            inference_count=account.rows,
            execution_count=account.executions,
            inference_stats=InferenceStatistics(
                success=Count(account.success, account.success_ns),
                fail=Count(account.fail, account.fail_ns),
                queue=Count(account.computed, account.queue_ns),
                compute_input=Count(account.computed, account.input_ns),
                compute_infer=Count(account.computed, account.infer_ns),
                compute_output=Count(account.computed, account.output_ns),
                cache_hit=Count(cached.hits, cached.hit_ns),
                cache_miss=Count(cached.misses, cached.miss_ns),
            ),
            batch_stats=tuple(batch.state(size) for size, batch in sorted(account.batches.items())),
        )

    # --- called by the request table ---

    def answered(
        self, now_ns: int, request: Pending, dispatch: Dispatched | None, output: Output | None
    ) -> None:
        """Note a request that got outputs."""
        self._note(_Note(now_ns, request, None, dispatch, output))

    def refused(self, request: Pending, reason: Reason) -> None:
        """Note a request that got a reason instead of outputs."""
        self._note(_Note(self._clock(), request, reason))

    def turned_away(self, request: InferRequest, reason: Reason) -> None:
        """Count a request that was no good; one for a model that is not served counts for no model."""
        has_deadline = request.slo_ns is not None
        try:
            spec = self._resolve(request.model, request.version).spec
        except BadRequest:
            if self.labels is not None:
                self.labels.other.refused(reason, has_deadline)
            return
        account = self._accounts.get(spec.name) or self._open(spec)
        account.fail += 1
        if account.series is not None:
            account.series.refused(reason, has_deadline)

    # --- for scrapes ---

    def rank(self, now_ns: int) -> None:
        """Count what was noted, and give the busiest models labels of their own, if it is time to."""
        self.settle()
        if self.labels is None:
            return
        self._offer(self.labels)
        if not self.labels.due(now_ns):
            return
        self._close_unserved()
        activity: Counter[str] = Counter()
        for account in self._accounts.values():
            activity[account.key] += account.recent
            account.recent = 0
        self.labels.rank(now_ns, activity.items())
        for account in self._accounts.values():
            account.series = self.labels.counters(account.key)

    def _offer(self, labels: BoundedLabels[Series]) -> None:
        """Show models that are served before anything is asked of them, while there are places."""
        if self._signatures.keys() == self._seen:
            return
        self._seen = set(self._signatures)
        keys = {model_key(each.spec): None for each in self._signatures.values()}
        for key in labels.offered:
            if key not in keys:
                labels.forget(key)
        labels.offer(keys)

    def settle(self) -> None:
        """Count every request that was noted."""
        notes, self._notes = self._notes, []
        for note in notes:
            if note.reason is None:
                self._count_answered(note)
            else:
                self._count_refused(note, note.reason)

    # --- inside ---

    def _note(self, note: _Note) -> None:
        self._notes.append(note)
        if len(self._notes) >= KEPT:
            self.settle()

    def _count_answered(self, note: _Note) -> None:
        account = self._account(note.accepted)
        arrived_ns, deadline_ns, series = note.arrived_ns, note.deadline_ns, account.series
        now_ns, dispatch, output = note.ended_ns, note.dispatch, note.output
        account.recent += 1
        account.last_ns = now_ns
        account.success += 1
        account.success_ns += now_ns - arrived_ns
        if series is not None:
            series.answered(now_ns - arrived_ns, None if deadline_ns is None else deadline_ns - now_ns)
        if dispatch is None or output is None:
            if series is not None:
                series.hits += 1
                series.hit_ns += note.cache_ns
            return
        self._computed(account, note, dispatch, output)
        if series is not None and self.labels is not None and series is not self.labels.other:
            # The rest shares one series: steps of different graphs mean nothing together.
            for step in note.steps:
                series.step(step)

    def _count_refused(self, note: _Note, reason: Reason) -> None:
        account = self._account(note.accepted)
        account.recent += 1
        account.fail += 1
        account.fail_ns += note.ended_ns - note.arrived_ns
        if account.series is not None:
            account.series.refused(reason, note.deadline_ns is not None)
            if note.cached:
                account.series.missed(note.cache_ns)

    def _account(self, accepted: Accepted) -> _Account:
        return self._accounts.get(accepted.model) or self._open(accepted.signature.spec)

    def _computed(self, account: _Account, note: _Note, dispatch: Dispatched, output: Output) -> None:
        """Count what a worker did for a request."""
        times = output.times or NO_TIMES
        rows, infer_ns = note.accepted.rows, output.execute_ns
        # One that shares another's execution may have come after its dispatch.
        queue_ns = max(0, dispatch.at_ns - note.arrived_ns) + times.wait_ns
        account.computed += 1
        account.rows += rows
        account.queue_ns += queue_ns
        account.input_ns += times.input_ns
        account.infer_ns += infer_ns
        account.output_ns += times.output_ns
        first = self._execution(account, dispatch, times, infer_ns)
        series = account.series
        if series is not None:
            series.queue.observe(queue_ns)
            series.execution.observe(infer_ns)
            series.rows += rows
            series.input_ns += times.input_ns
            series.output_ns += times.output_ns
            series.executions += first
            series.cold += dispatch.cold
            if note.cached:
                series.missed(note.cache_ns)

    def _execution(self, account: _Account, dispatch: Dispatched, times: OutputTimes, infer_ns: int) -> bool:
        """Count the action that a request was part of; say whether it had not been counted."""
        last_id, told_ns = self._last.get(dispatch.worker, (-1, 0))
        first = last_id != dispatch.action_id
        batch = account.batch(dispatch.batch_size)
        if first:
            account.executions += 1
            batch.count += 1
            batch.infer_ns += infer_ns
            told_ns = 0
            if len(self._last) > _WORKERS:
                self._last.clear()
        batch.input_ns += times.input_ns
        # The outputs of one action leave one after the other: each time holds those before.
        batch.output_ns += max(0, times.output_ns - told_ns)
        self._last[dispatch.worker] = dispatch.action_id, times.output_ns
        return first

    def _open(self, spec: ModelSpec) -> _Account:
        if len(self._accounts) > 2 * len(self._signatures) + _SPARE_ACCOUNTS:
            self._close_unserved()
        key = model_key(spec)
        account = _Account(key, None if self.labels is None else self.labels.counters(key))
        self._accounts[spec.name] = account
        return account

    def _close_unserved(self) -> None:
        """Forget models that are not served any more."""
        unserved = [name for name in self._accounts if name not in self._signatures]
        closed = [self._accounts.pop(name).key for name in unserved]
        if self.labels is not None and closed:
            served = {model_key(signature.spec) for signature in self._signatures.values()}
            for key in closed:
                if key not in served:
                    self.labels.forget(key)
