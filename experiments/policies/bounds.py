"""What was possible: the clairvoyant bound for the very arrivals that are played, kept on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from mainspring.experiments.policies.played import Instants, Served
from mainspring.experiments.policies.scenarios import Scenario
from mainspring.scheduler.policies.mainspring.fairness import floor_of
from mainspring.simulator.bound.dual import ITERATIONS, Fleet, Stream, goodput_bound

SEARCHES = 5
"""Bounds that are computed to find the one from which its own floor follows, within about a percent."""
FIRST_SEARCHED = 0.94
"""The first that is tried, as a part of the bound without a floor."""
SLOWER = 2
"""With a floor the bound's prices take so many times as many iterations."""


def bound_of(
    scenario: Scenario,
    models: Sequence[Served],
    drawn: Sequence[Instants],
    since_ns: int,
    folder: Path,
    fairness: float = 0.0,
) -> float:
    """Return how many of the requests that arrive from an instant on could be answered in time at best.

    With ``fairness``, by a schedule that keeps the floor of the default policy. Computed once for each set of
    arguments and kept in ``folder``.
    """
    streams, fleet = _streams(models, drawn, since_ns), _fleet(scenario, models)
    floored = f"-{fairness:g}" if fairness else ""
    file = folder / f"{scenario.name}-{_digest(streams, fleet)}{floored}.json"
    if file.exists():
        return float(msgspec.json.decode(file.read_bytes(), type=float))
    requests = goodput_bound(streams, fleet, iterations=ITERATIONS).requests
    if fairness:
        requests = _floored(streams, fleet, fairness, requests)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(msgspec.json.encode(requests))
    unfinished.replace(file)
    return requests


def _floored(streams: Sequence[Stream], fleet: Fleet, fairness: float, unfair: float) -> float:
    """Return the most that a schedule answers which keeps the floor that follows from what it answers.

    The higher that is, the higher is the floor, and the less is possible: what is sought lies where both are
    equal. ``unfair`` is the bound without a floor.
    """
    offered = sum(len(stream.arrival_ns) for stream in streams)
    least, most = 0.0, unfair
    for _ in range(SEARCHES):
        tried = (least + most) / 2 if least else FIRST_SEARCHED * most
        floor = max(0.0, floor_of(tried / offered, fairness))
        possible = goodput_bound(streams, fleet, iterations=SLOWER * ITERATIONS, floor=floor).requests
        if possible <= tried:
            most = tried
        else:
            least, most = tried, min(most, possible)
    return most


def _streams(models: Sequence[Served], drawn: Sequence[Instants], since_ns: int) -> list[Stream]:
    """Return the requests with a deadline; those of several rows as if they were rows of larger batches."""
    streams = []
    for model, times in zip(models, drawn, strict=True):
        slo_ns, rows = model.slo_ns, model.group.rows
        arrival_ns = times[np.searchsorted(times, since_ns) :]
        if slo_ns is None or not len(arrival_ns):
            continue
        infer_ns = {
            kind: {size // rows: ns for size, ns in profile.infer_ns.items() if size >= rows}
            for kind, profile in model.spec.profiles.items()
        }
        load_ns = {kind: profile.load_ns for kind, profile in model.spec.profiles.items()}
        streams.append(Stream(arrival_ns, arrival_ns + slo_ns, infer_ns, load_ns, model.spec.pages))
    return streams


def _fleet(scenario: Scenario, models: Sequence[Served]) -> Fleet:
    pages = sum(model.spec.pages for model in models)
    short = pages > scenario.pages
    return Fleet(scenario.devices, scenario.pages * sum(scenario.devices.values()) if short else None)


def _digest(streams: Sequence[Stream], fleet: Fleet) -> str:
    digest = hashlib.sha256(repr((fleet, ITERATIONS)).encode())
    for stream in streams:
        digest.update(stream.arrival_ns.tobytes() + stream.due_ns.tobytes())
        digest.update(repr((stream.infer_ns, stream.load_ns, stream.pages)).encode())
    return digest.hexdigest()[:16]
