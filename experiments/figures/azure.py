"""The paper's Azure Functions workload from the public part of the trace (section 6.5).

The paper replays 17,000 functions on 4,026 models, "four or five for each", for eight hours. The file at hand
has 400 functions of the same trace, a day long, of which eight hours from eight in the morning are taken. The
busiest 1 % of them have 86 % of all requests, and dealing them out again to many models makes batches small:
so these four stay one function each, scaled with the rest to the paper's rate, and the others are copied
until there are 17,000, each copy dealt to another model and rotated by whole hours, so that what comes hourly
still comes together. Which models the four fall to is the seed's choice.

A short form plays the eight hours faster: each function keeps its requests a second, and only their changes
come sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import typer

from mainspring.experiments.figures.options import Options
from mainspring.experiments.figures.paper import AZURE_FUNCTIONS, AZURE_RATE, MILLISECOND_NS
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.azure import MINUTE_NS, Azure2019, read_azure2019
from mainspring.traces.generators import AzureLike
from mainspring.traces.tracefile import TraceError, read_rows
from mainspring.traces.workload import Workload

FILE = "azure2019_d01_random400_invocations.csv.gz"
HOUR_MINUTES = 60
FIRST_MINUTE, MINUTES = 480, 480
DEAL = 2
"""Seed of the deal, to which the run's own is added. The four busy functions fall to resnet50_v1d,
mobile_pose_resnet18_v1, resnet18_v1 and tsn_resnet18_v1b_kinetics400. On slower models, such as xception with
seed 0, twenty devices can't serve them within 25 ms, as the paper's could."""
BUSY_SHARE = 0.01
SYNTHETIC_PERIODS_S = (900.0, 3_600.0)
"""The trace's quarters of an hour and hours."""


def azure(
    options: Options, names: Sequence[str], *, rate: float, played_s: float, trace_s: float, slo_ms: float
) -> Workload:
    """Return the first ``trace_s`` of the trace, played in ``played_s`` at ``rate`` requests a second.

    Without the file it is the synthetic mix of `traces.synthetic`, and a line on the console says so.
    """
    path = options.traces / FILE
    if path.is_file():
        workload = _from_file(path, names, rate, played_s, trace_s, options)
    else:
        typer.echo(f"there is no {path} (--traces): a synthetic mix like Azure Functions is played instead")
        speed = played_s / trace_s
        periods_s = tuple(period_s * speed for period_s in SYNTHETIC_PERIODS_S)
        workload = AzureLike(tuple(names), rate, periods_s=periods_s)
    return workload.cut(0, round(played_s * SECOND_NS)).with_requests(slo_ns=round(slo_ms * MILLISECOND_NS))


def trace_note(options: Options) -> str:
    """Say what the workload is."""
    if not (options.traces / FILE).is_file():
        return "The workload is synthetic: there is no trace file."
    return (
        f"The workload: the functions of {FILE}, copied but for the busiest 1 % until there are"
        f" {AZURE_FUNCTIONS:,}, dealt to the models and scaled to the paper's rate."
    )


def _from_file(
    path: Path, names: Sequence[str], rate: float, played_s: float, trace_s: float, options: Options
) -> Workload:
    rng = np.random.default_rng(DEAL + options.seed)
    whole = deal(path, names, options.count(AZURE_FUNCTIONS), options.share(AZURE_RATE), rng)
    minutes = round(trace_s * SECOND_NS / MINUTE_NS)
    part = replace(whole, counts=whole.counts[:minutes])
    requests = int(part.counts.sum(dtype=np.int64))
    length_ns = len(part.counts) * MINUTE_NS
    return part.scaled(rate * played_s / requests).stretched(played_s * SECOND_NS / length_ns)


def deal(
    path: Path, names: Sequence[str], functions: int, rate: float, rng: np.random.Generator
) -> Azure2019:
    """Return eight hours of so many functions with ``rate`` requests a second, dealt to ``names``."""
    counts = _eight_hours(path)
    totals = counts.sum(axis=0)
    number = len(totals)
    busy = max(1, round(number * BUSY_SHARE))
    copied = max(0, functions - busy)
    template = np.concatenate([np.arange(busy), busy + np.arange(copied) * (number - busy) // max(copied, 1)])
    weights = totals[template] * np.where(template < busy, functions / number, 1.0)
    weights *= rate * len(counts) * (MINUTE_NS / SECOND_NS) / weights.sum()
    model_of = rng.permutation(len(names))[np.arange(len(template)) % len(names)]
    hours = rng.integers(len(counts) // HOUR_MINUTES, size=len(template))
    shapes = counts / np.maximum(totals, 1)
    expected = np.zeros((len(counts), len(names)))
    for function, model in enumerate(rng.permutation(model_of)):
        shape = np.roll(shapes[:, template[function]], hours[function] * HOUR_MINUTES)
        expected[:, model] += shape * weights[function]
    return Azure2019(tuple(names), rng.poisson(expected).astype(np.uint32), FIRST_MINUTE, len(template))


def _eight_hours(path: Path) -> npt.NDArray[np.int64]:
    number = sum(1 for _ in read_rows(path)) - 1
    names = [f"function-{index}" for index in range(number)]
    whole = read_azure2019(path, names, np.random.default_rng(0)).counts
    counts = whole[FIRST_MINUTE : FIRST_MINUTE + MINUTES].astype(np.int64)
    if len(counts) < MINUTES:
        raise TraceError(
            f"{path}: ends before minute {FIRST_MINUTE + MINUTES}; a whole day of the trace is wanted"
        )
    return counts[:, np.argsort(-counts.sum(axis=0), kind="stable")]
