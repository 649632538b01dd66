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
from mainspring.simulator.bound.dual import ITERATIONS, Fleet, Stream, goodput_bound


def bound_of(
    scenario: Scenario, models: Sequence[Served], drawn: Sequence[Instants], since_ns: int, folder: Path
) -> float:
    """Return how many of the requests that arrive from an instant on could be answered in time at best.

    Computed once for each set of arguments and kept in ``folder``.
    """
    streams, fleet = _streams(models, drawn, since_ns), _fleet(scenario, models)
    file = folder / f"{scenario.name}-{_digest(streams, fleet)}.json"
    if file.exists():
        return float(msgspec.json.decode(file.read_bytes(), type=float))
    requests = goodput_bound(streams, fleet).requests
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(msgspec.json.encode(requests))
    unfinished.replace(file)
    return requests


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
