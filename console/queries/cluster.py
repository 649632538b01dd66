"""Query ``cluster``: attainment, series, workers."""

from __future__ import annotations

from mainspring.cluster.status import kind_status, leaving_note
from mainspring.console.payloads import (
    Attainment,
    Clock,
    Cluster,
    OperationLine,
    Series,
    WorkerPicture,
)
from mainspring.console.queries.asking import happenings
from mainspring.console.queries.asking import recent as recent_requests
from mainspring.console.view.series import SECOND_NS, Seconds
from mainspring.console.view.view import View
from mainspring.console.view.workers import Session, Standing
from mainspring.messages.observing import WorkerClock
from mainspring.messages.operating import described

BUSY_SECONDS = 10
"""Whole seconds over which executors' shares are taken."""
LEAST_SAMPLES = 20
"""Fewest actions of a worker for which the errors of their predictions are shown."""


def cluster(view: View, *, recent: int = 50) -> Cluster:
    """Return the cluster with at most ``recent`` rejected and late requests."""
    traffic = view.traffic
    return Cluster(
        last_10s=_attainment(traffic.seconds, 10),
        last_60s=_attainment(traffic.seconds, 60),
        last_300s=_attainment(traffic.seconds, 300),
        series=_series(traffic.seconds, view.limits.keep_ns // SECOND_NS),
        workers=[worker_picture(view, worker) for worker in view.workers()],
        models=len(view.cluster.models),
        queued=view.cluster.queued,
        recent=recent_requests(view, limit=recent),
        operations=[
            OperationLine(each.at_ns, each.who, described(each.command)) for each in reversed(view.operations)
        ],
        happenings=happenings(view),
        kinds=[kind_status(view.cluster, each) for each in view.cluster.kinds.values()],
        awaited=view.unready.awaited,
        awaited_more=view.unready.more,
    )


def worker_picture(view: View, worker: Standing) -> WorkerPicture:
    """Return one worker as it is, or as it was when it was found to be gone."""
    history, now_ns = view.history(worker.name), view.now_ns
    there = None if isinstance(worker, Session) else view.cluster.workers[worker.name]
    silent = there is not None and worker.name in view.unready.silent
    detail = worker.why if isinstance(worker, Session) else _why_draining(view, worker.name)
    return WorkerPicture(
        name=worker.name,
        device_kind=worker.device_kind,
        state="gone" if there is None else "silent" if silent else "draining" if detail else "serving",
        pages=worker.pages,
        pages_free=worker.pages_free,
        resident=len(worker.resident),
        prepared=worker.prepared,
        outstanding=0 if there is None else len(there.exec) + len(there.load) + len(there.others),
        exec_busy=history.exec.busy_share(now_ns, BUSY_SECONDS),
        load_busy=history.load.busy_share(now_ns, BUSY_SECONDS),
        infer_error_p99_us=_p99_us(sorted(history.errors_ns)),
        failed=dict(history.failed),
        last_result_ns=history.last_result_ns,
        detail="it gives no sign of life" if silent else detail,
        load_error_p99_us=_p99_us(sorted(history.load_errors_ns)),
        targets=[] if there is None else [*there.targets],
        clock=None if there is None else _clock(view.clocks.get(worker.name)),
    )


def _clock(told: WorkerClock | None) -> Clock | None:
    if told is None:
        return None
    return Clock(told.offset_ns / 1e6, told.error_ns / 1e3, told.rate_ppm)


def _why_draining(view: View, name: str) -> str:
    """Return why a worker gets nothing more to do; empty if it does."""
    worker = view.cluster.workers[name]
    if worker.stopping:
        return "it is stopping and begins nothing more"
    if worker.retiring:
        return leaving_note(worker, view.cluster.moving.get(name))
    if not worker.draining:
        return ""
    _, asked = view.cluster.operations[("worker", name)]
    return f"drained by {asked.who}: it gets nothing more to do"


def _p99_us(ascending_ns: list[int]) -> float | None:
    """Return the 99th percentile by nearest rank; None of a handful, whose largest one says nothing."""
    if len(ascending_ns) < LEAST_SAMPLES:
        return None
    return ascending_ns[-(-99 * len(ascending_ns) // 100) - 1] / 1e3


def _attainment(seconds: Seconds, length: int) -> Attainment:
    totals, whole = seconds.windows[length], seconds.in_window(length)
    return Attainment(
        seconds=whole,
        offered_rps=totals.offered / max(1, whole),
        in_time_rps=totals.in_time / max(1, whole),
        late=totals.late,
        rejected=dict(sorted(totals.rejected.items())),
        turned_away=dict(sorted(totals.turned_away.items())),
        cold=totals.cold,
        p50_ms=totals.latencies.percentile_ms(50),
        p99_ms=totals.latencies.percentile_ms(99),
        p9999_ms=totals.latencies.percentile_ms(99.99),
        slo_p50_ms=totals.slos.percentile_ms(50),
    )


def _series(seconds: Seconds, most: int) -> Series:
    past = [*seconds.past][-most:]
    totals = [second.totals for second in past]
    return Series(
        first_ns=(seconds.number - len(past)) * SECOND_NS if past else 0,
        offered=[each.offered for each in totals],
        in_time=[each.in_time for each in totals],
        late=[each.late for each in totals],
        rejected=[each.rejections for each in totals],
        turned_away=[sum(each.turned_away.values()) for each in totals],
        cold=[each.cold for each in totals],
        p99_ms=[second.p99_ms for second in past],
    )
