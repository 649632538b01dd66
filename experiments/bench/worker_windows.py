"""Windows in ``bench.worker``: when actions begin that are free to begin at their earliest instant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from mainspring.experiments.bench.report import Figure
from mainspring.experiments.bench.worker_peer import Ints, LoneWorker
from mainspring.experiments.bench.worker_streams import BareExec, Loads, Windows
from mainspring.messages.model import ModelSpec

BEGIN_ERROR_P99_US = 50
BARE_S = 0.004
"""What a bare wait takes on average."""
LEAST_LEAD_NS = 1_000_000
"""An action that was sent later than this before its earliest instant was not free to begin there."""
TIGHT_NS = 60_000
"""Length of the windows that are hard to hit: an action begins in one or is refused."""


class WindowSamples(msgspec.Struct):
    """Begins of INFERs; the streams of each kind."""

    bare: list[Ints] = []
    """Instants and when a wait for each ended, of the EXEC thread without the worker's code."""
    quiet: list[Windows] = []
    beside_loads: list[Windows] = []
    tight: list[Windows] = []
    """Windows of `TIGHT_NS`, beside LOADs."""


def begin_errors(
    worker: LoneWorker,
    model: ModelSpec,
    loading: Sequence[ModelSpec],
    pages: Sequence[tuple[int, ...]],
    count: int,
    rounds: int,
) -> WindowSamples:
    """Measure ``count`` INFERs of a resident model of each kind, in turns."""
    samples = WindowSamples()
    random = np.random.default_rng(0)
    each = -(-count // rounds)
    for _ in range(rounds):
        bare = BareExec(model, each * BARE_S, waits=True)
        worker.drive(bare)
        samples.bare.append(bare.spans())
        for into, length_ns in (
            (samples.quiet, 20_000_000),
            (samples.beside_loads, 20_000_000),
            (samples.tight, TIGHT_NS),
        ):
            windows = Windows(model, each, random, length_ns=length_ns)
            if into is samples.quiet:
                worker.drive(windows)
            else:
                worker.drive(windows, Loads(loading, pages, windows.expected_s))
            into.append(windows)
    return samples


def window_figures(samples: WindowSamples, calls: Mapping[int, int]) -> list[Figure]:
    """Return the rows; ``calls`` has the instant at which the engine was called for each action."""
    bare_us = np.concatenate([np.diff(spans).ravel() for spans in samples.bare]) / 1e3
    note = f"{len(bare_us)} waits, same thread; longest {bare_us.max():.0f} us"
    rows = [Figure("begin error of a bare wait: p99", float(np.percentile(bare_us, 99)), "us", note=note)]
    for kind, streams in (("quiet", samples.quiet), ("beside LOADs", samples.beside_loads)):
        begun = [each for stream in streams for each in stream.begun]
        free = [each for each in begun if each.earliest_ns - each.sent_ns >= LEAST_LEAD_NS]
        errors_us = np.array([each.begin_ns - each.earliest_ns for each in free]) / 1e3
        called_us = np.array([calls[each.action_id] - each.earliest_ns for each in free]) / 1e3
        median, p90, p99 = np.percentile(errors_us, [50, 90, 99])
        note = f"{len(free)} INFERs; longest {errors_us.max():.0f} us"
        rows += [
            Figure(f"begin error, {kind}: p99", p99, "us", BEGIN_ERROR_P99_US, note=note),
            Figure(f"begin error, {kind}:   median", median, "us"),
            Figure(f"begin error, {kind}:   p90", p90, "us"),
            Figure(f"begin error, {kind}:   p99 at the engine", float(np.percentile(called_us, 99)), "us"),
        ]
    everything = [*samples.quiet, *samples.beside_loads, *samples.tight]
    outside = sum(
        not each.earliest_ns <= each.begin_ns <= each.latest_ns
        for stream in everything
        for each in stream.begun
    )
    kept = sum(len(stream.begun) for stream in samples.tight)
    refused = sum(stream.refused for stream in samples.tight)
    total = sum(len(stream.begun) for stream in everything)
    tight = f"windows of {TIGHT_NS / 1e3:.0f} us beside LOADs"
    return [
        *rows,
        Figure("begun before earliest or after latest", outside, "INFERs", 0, note=f"of {total}"),
        Figure(
            f"{tight}: kept", kept / max(1, kept + refused), "of them", note=f"{refused} refused as too late"
        ),
    ]
