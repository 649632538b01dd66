"""A cluster with hundreds of models that share the device's pages, and how right its predictions are.

Models come and go: pages hold half of them. What the scheduler predicted of each INFER, and whether it began
in its window, is read from the event log.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from mainspring.compiler.choosing.durations import quantile
from mainspring.experiments.gpu_check.cluster import played, profile, serving, serving_store
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_least, at_most, not_run
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.telemetry.log import read_log
from mainspring.traces.report import Summary

GOODPUT = 0.999
DURATION_US, COMPLETION_US = 100.0, 500.0
"""What the 99th percentile of an INFER's duration, and of its end, may be off from what was predicted."""


def check_many(settings: Settings) -> Iterator[Verdict]:
    """Play requests for many copies of the main model."""
    settings = msgspec.structs.replace(
        settings,
        cluster_copies=settings.many,
        cluster_load=settings.many_load,
        cluster_s=settings.many_s,
    )
    store = serving_store(settings)
    specs = store.specs()
    pages = max(specs[0].pages, sum(spec.pages for spec in specs) // 2)
    settings = msgspec.structs.replace(settings, cluster_pages=pages)
    kind, begun_ns = profile(settings, store), []
    with serving(settings, store, kind) as cluster:
        capacity_rate, summary = played(
            settings,
            cluster.address,
            store.specs(),
            kind,
            settings.many_slo_ms,
            lambda: begun_ns.append(time.monotonic_ns()),
        )
    yield from served(settings, capacity_rate, summary)
    yield from predicted(read_log(Path(settings.folder) / "run" / "events", last_run=True), begun_ns[0])


def served(settings: Settings, capacity_rate: float, summary: Summary) -> list[Verdict]:
    """Judge what clients saw."""
    load = f"{summary.offered_rate:.0f} of {capacity_rate:.0f} r/s that the device can do, {settings.many} "
    load += f"models in {settings.cluster_pages} pages, {summary.duration_s:.0f} s"
    name = f"many models, SLO {settings.many_slo_ms:g} ms"
    return [
        at_least(f"{name}: goodput", 100 * summary.goodput_share, 100 * GOODPUT, "%", load),
        at_most("  late", summary.late, 0, note=f"{summary.rejected_total} rejected"),
        at_most("  without a reply", summary.missing, 0),
    ]


def predicted(entries: Iterable[tuple[int, object]], begun_ns: int) -> list[Verdict]:
    """Judge predictions of INFERs that began after ``begun_ns``, by the entries of an event log."""
    commands: dict[int, Infer] = {}
    durations, ends, outside = [], [], 0
    for _, entry in entries:
        if isinstance(entry, Infer):
            commands[entry.action_id] = entry
        elif isinstance(entry, Result) and entry.action_id in commands:
            told_so = commands.pop(entry.action_id)
            if entry.status is not Status.OK or entry.begin_ns < begun_ns:
                continue
            durations.append(entry.end_ns - entry.begin_ns - told_so.predicted_duration_ns)
            ends.append(entry.end_ns - told_so.predicted_begin_ns - told_so.predicted_duration_ns)
            outside += not told_so.earliest_ns <= entry.begin_ns <= told_so.latest_ns
    if not durations:
        return [not_run("predictions of INFERs", "none ended well")]
    found = []
    for what, errors, most in (("duration", durations, DURATION_US), ("end", ends, COMPLETION_US)):
        off_us = quantile(np.abs(np.array(errors, np.int64)), 99) / 1e3
        found.append(at_most(f"INFER: {what} off from the predicted, 99th percentile", off_us, most, "us"))
    found.append(at_most("INFERs begun outside their window", outside, 0, note=f"of {len(durations):,}"))
    return found
