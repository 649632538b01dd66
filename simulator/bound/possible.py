"""The bound on what was possible for the very requests of a run: that of `dual`, stretch by stretch.

A run of any length is cut into stretches of about as many requests. Each is bounded as if the devices were
idle and held every model when it begins, so that the sum is a bound too, and time and memory grow no faster
than the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mainspring.messages.model import ModelSpec
from mainspring.messages.targets import cannot_run, device_kind_of, kinds_build, targets_in
from mainspring.simulator.bound.dual import Fleet, Stream, goodput_bound
from mainspring.telemetry.report import Possible
from mainspring.traces.records import NO_DEADLINE, OUTPUTS, Columns, Records

STRETCH_REQUESTS = 100_000
"""The most requests that are bounded together: about a gigabyte of memory."""
ITERATIONS = 60
"""Twice as quick as `dual.ITERATIONS` and no more than some 0.2 % above it."""
QUICK_REQUESTS = 10_000
"""The most requests that are bounded without being asked for: it takes seconds."""

Workers = Sequence[tuple[str, str, int]]
"""(name, kind, pages), as `Cluster.workers`."""


def deadlines(records: Records) -> int:
    """Return how many requests have a deadline."""
    return int((records.columns()[0]["slo_ns"] != NO_DEADLINE).sum())


def is_wanted(requests: int, asked: bool | None) -> bool:
    """Return whether this number of requests is to be bounded; with ``asked`` None only if that is quick."""
    return requests <= QUICK_REQUESTS if asked is None else asked


def in_time(records: Records) -> int:
    """Return how many requests with a deadline were answered by it."""
    sent, replied = records.columns()
    return int(_met(replied[sent["slo_ns"] != NO_DEADLINE]).sum())


def _met(replied: Columns) -> npt.NDArray[np.bool_]:
    met: npt.NDArray[np.bool_] = (replied["outcome"] == OUTPUTS) & (replied["left_ns"] >= 0)
    return met


def possible(
    records: Records,
    models: Sequence[ModelSpec],
    workers: Workers,
    *,
    held: Collection[str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Possible | None:
    """Return what was possible for the requests with a deadline; None if there are none.

    ``models`` have a profile for each kind of the ``workers``; requests to others, and of more rows than any
    batch, can't be served. ``held`` names the models that some worker holds at first; None stands for all.
    ``progress`` is told now and then which part of the work is done. Of a model that is asked for different
    numbers of rows each request counts as one of the fewest, which can only raise the bound.
    """
    sent, replied = records.columns()
    tight = sent["slo_ns"] != NO_DEADLINE
    counted, met = sent[tight], _met(replied[tight])
    if not len(counted):
        return None
    order = np.argsort(counted["intended_ns"], kind="stable")
    counted, met = counted[order], met[order]
    makers = _makers(records, models, workers, counted)
    fleet = _fleet([maker.spec for maker in makers.values()], workers)
    stretches = -(-len(counted) // STRETCH_REQUESTS)
    edges = [len(counted) * number // stretches for number in range(stretches + 1)]
    at_most = 0.0
    for number, (low, high) in enumerate(pairwise(edges)):
        if met[low:high].all():
            at_most += high - low
            continue
        known = held if number == 0 else None
        own = _by_model(counted[low:high])
        streams = [makers[model].stream(rows, known) for model, rows in own if model in makers]
        if streams:
            told = None if progress is None else _after(progress, number, stretches)
            found = goodput_bound(streams, fleet, iterations=ITERATIONS, progress=told).requests
            # Durations that are drawn around their profiles may be shorter than the bound takes them for.
            at_most += max(found, float(met[low:high].sum()))
    return Possible(len(counted), int(met.sum()), at_most)


def _after(progress: Callable[[float], None], number: int, stretches: int) -> Callable[[float], None]:
    return lambda share: progress((number + share) / stretches)


def _by_model(part: Columns) -> Iterator[tuple[int, Columns]]:
    """Yield each model's number with its requests, in the order of their arrival."""
    ordered = part[np.argsort(part["model"], kind="stable")]
    numbers, begins = np.unique(ordered["model"], return_index=True)
    yield from zip(numbers.tolist(), np.split(ordered, begins[1:]), strict=True)


def _fleet(asked_for: Sequence[ModelSpec], workers: Workers) -> Fleet:
    """Return the devices; pages only matter if not every device holds all models that are asked for."""
    kinds = [kind for _, kind, _ in workers]
    pages = [pages for _, _, pages in workers]
    short = sum(spec.pages for spec in asked_for) > min(pages)
    return Fleet({kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}, sum(pages) if short else None)


def _makers(
    records: Records, models: Sequence[ModelSpec], workers: Workers, counted: Columns
) -> dict[int, _Maker]:
    """Return by its number each model of which some request can be served."""
    specs = {spec.name: spec for spec in models}
    kinds = tuple(dict.fromkeys(kind for _, kind, _ in workers))
    found = {}
    for number, own in _by_model(counted):
        spec = specs.get(records.models[number])
        fewest = int(own["rows"].min())
        if spec is not None and fewest <= max(spec.batch_sizes):
            found[number] = _Maker(spec, kinds, fewest)
    return found


class _Maker:
    """Makes streams of one model's requests."""

    def __init__(self, spec: ModelSpec, kinds: Sequence[str], rows: int) -> None:
        """``rows`` is what each request counts as."""
        self.spec = spec
        builds = {kind: kinds_build(kind, spec) for kind in kinds}
        able = {kind: build for kind, build in builds.items() if not cannot_run(build, targets_in(kind))}
        profiles = {kind: build.profiles[device_kind_of(kind)] for kind, build in able.items()}
        self._infer_ns = {kind: _by_requests(each.infer_ns, rows) for kind, each in profiles.items()}
        self._load_ns = {kind: each.load_ns for kind, each in profiles.items()}

    def stream(self, own: Columns, held: Collection[str] | None) -> Stream:
        """Return the model's requests of a stretch."""
        arrival_ns = own["intended_ns"].astype(np.int64)
        return Stream(
            arrival_ns=arrival_ns,
            due_ns=arrival_ns + own["slo_ns"].astype(np.int64),
            infer_ns=self._infer_ns,
            load_ns=self._load_ns,
            pages=self.spec.pages,
            resident=held is None or self.spec.name in held,
        )


def _by_requests(infer_ns: Mapping[int, int], rows: int) -> dict[int, int]:
    """Return the least duration of a batch of 1, 2, ... requests of equally many rows, where it grows."""
    found: dict[int, int] = {}
    for size, duration_ns in infer_ns.items():
        requests = size // rows
        if requests and duration_ns < found.get(requests, duration_ns + 1):
            found[requests] = duration_ns
    return found
