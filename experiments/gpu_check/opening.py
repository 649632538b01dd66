"""An executable that comes while others are served: its OPEN, and what the requests beside it see.

A model of another executable is added to a cluster that plays requests. Its worker reads the weights at once,
and the scheduler chooses when EXEC opens the executable. How long that took, and the INFERs before and after
it, are read from the event log.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from mainspring.client.client import Client
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import quantile
from mainspring.experiments.gpu_check.cluster import GOODPUT, played, profile, serving, serving_store
from mainspring.experiments.gpu_check.settings import LARGE, Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_least, at_most, not_run, told
from mainspring.messages.actions import Infer, Open, Result
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec
from mainspring.telemetry.log import read_log
from mainspring.traces.report import Summary

AFTER_SHARE = 0.15
BESIDE_NS = 1_000_000_000
"""INFERs that begin so long before or after an OPEN are beside it."""
ADD_TIMEOUT_S = 30.0


class Span(NamedTuple):
    """Activity of EXEC from one instant to another."""

    begin_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        """Its duration."""
        return self.end_ns - self.begin_ns


class Executed(NamedTuple):
    """Activity of EXEC, by the event log."""

    opens: Sequence[Span]
    infers: Sequence[Span]
    failed: Sequence[str]


def check_opening(settings: Settings) -> Iterator[Verdict]:
    """Play requests for copies of the main model and add another model meanwhile."""
    source = Store(settings.store(settings.engine))
    if LARGE not in source.names():
        yield not_run("OPEN while serving", f"{LARGE} is not compiled")
        return
    settings = msgspec.structs.replace(settings, cluster_s=settings.opening_s)
    store = serving_store(settings)
    kind, specs, slo_ms = profile(settings, store), store.specs(), settings.cluster_slos_ms[0]
    with serving(settings, store, kind) as cluster:
        # A worker opens what its store holds when it starts: this one comes later.
        store.put_manifest(source.manifest(LARGE))
        delay_s = AFTER_SHARE * settings.cluster_s
        coming = Coming(cluster.address, source.manifest(LARGE).spec(), delay_s)
        _, summary = played(settings, cluster.address, specs, kind, slo_ms, coming.start)
        coming.join()
    executed = executed_in(read_log(Path(settings.folder) / "run" / "events", last_run=True))
    yield from verdicts(summary, executed, coming.failed)


class Coming:
    """A thread that adds a model to a cluster after a while."""

    def __init__(self, address: str, spec: ModelSpec, delay_s: float) -> None:
        self._address = address
        self._spec = spec
        self._delay_s = delay_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._add, name="add", daemon=True)
        self.failed = ""

    def start(self) -> None:
        """Let the time begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the model was added."""
        self._thread.join(self._delay_s + ADD_TIMEOUT_S)

    def _add(self) -> None:
        self._stop.wait(self._delay_s)
        try:
            with Client(self._address) as client:
                client.add_model(self._spec)
        except Exception as error:
            self.failed = str(error) or repr(error)


def executed_in(entries: Iterable[tuple[int, object]]) -> Executed:
    """Return what EXEC did, by the entries of an event log."""
    kinds: dict[int, type] = {}
    spans: dict[type, list[Span]] = {Infer: [], Open: []}
    failures: list[str] = []
    for _, entry in entries:
        if isinstance(entry, Infer | Open):
            kinds[entry.action_id] = type(entry)
        elif isinstance(entry, Result) and entry.action_id in kinds:
            kind = kinds.pop(entry.action_id)
            if entry.status is Status.OK:
                spans[kind].append(Span(entry.begin_ns, entry.end_ns))
            elif kind is Open:
                failures.append(f"{entry.status}: {entry.detail}")
    return Executed(spans[Open], spans[Infer], failures)


def verdicts(summary: Summary, executed: Executed, not_added: str) -> list[Verdict]:
    """Judge what requests saw of an OPEN; without one there is nothing to judge."""
    if not executed.opens:
        reason = not_added or "; ".join(executed.failed)
        reason = reason or "the worker opens executables in PREPARE's thread"
        return [not_run("OPEN while serving", reason)]
    longest = max(executed.opens, key=lambda span: span.ns)
    beside = [
        each
        for each in executed.infers
        if longest.begin_ns - BESIDE_NS < each.begin_ns < longest.end_ns + BESIDE_NS
    ]
    found = [
        told("OPEN while serving", f"{longest.ns / 1e6:.2f} ms", f"{summary.offered_rate:.0f} r/s beside it"),
        at_most("  requests late", summary.late, 0, note=f"{summary.rejected_total} rejected"),
        at_most("  requests without a reply", summary.missing, 0),
        at_least("  goodput", 100 * summary.goodput_share, 100 * GOODPUT, "%"),
    ]
    overlapping = sum(each.begin_ns < longest.end_ns and longest.begin_ns < each.end_ns for each in beside)
    found.append(at_most("  INFERs that ran beside it", overlapping, 0))
    before, after = (
        np.array([each.ns for each in beside if (each.begin_ns > longest.begin_ns) is later], np.int64)
        for later in (False, True)
    )
    if before.size and after.size:
        found.append(
            told(
                "  INFERs in the second before, and in that after it",
                f"median {np.median(before) / 1e6:.4f} and {np.median(after) / 1e6:.4f} ms",
                f"99th percentile {quantile(before, 99) / 1e6:.4f} and {quantile(after, 99) / 1e6:.4f} ms",
            )
        )
    return found
