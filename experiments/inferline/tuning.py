"""The tuner against an oracle, whole pipelines with AutoScale, and DS2 (figures 6, 10, 11, 12, 14)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from mainspring.experiments.inferline.coarse import (
    autoscale,
    ds2,
    fixed_units,
    peak,
    play_units,
    unit,
    units_for,
)
from mainspring.experiments.inferline.pipelines import Traffic, spec_of
from mainspring.experiments.inferline.workloads import big_spike, day, evolving, gamma, minutes, sudden_fall
from mainspring.planner.graph_queues import Configuration, GraphProblem, GraphQueues, read_graph_problem
from mainspring.planner.inferline import inferline, sample_of
from mainspring.planner.problem import Whole
from mainspring.planner.tuned import Change, Outcome, play_changes, tuned_changes

SLO_MS = 150.0
HOLD_S = 120.0
TRANSITIONS_S = 1.0, 60.0, 120.0


def _problem(pipeline: str, folder: Path, arrivals_ns: Whole, seed: int) -> GraphProblem:
    traffic = Traffic(slo_ms=SLO_MS, seconds=float(arrivals_ns[-1]) / 1e9 + 1, seed=seed)
    return read_graph_problem(spec_of(pipeline, traffic, folder, arrivals_ns=arrivals_ns))


def _fixed(live: GraphProblem, stations: Configuration) -> Outcome:
    return play_changes(live, stations, [Change(0, tuple(each.replicas for each in stations))])


def _cells(name: str, outcome: Outcome) -> dict[str, Any]:
    return {f"{name}_missed": outcome.late, f"{name}_cost": outcome.cost}


def _coarse(sample: GraphProblem, live: GraphProblem) -> Outcome:
    """Return what whole pipelines do under AutoScale, planned for the sample's peak."""
    whole = unit(sample)
    return play_units(live, whole, autoscale(whole, live.queries.due_ns, units_for(whole, peak(sample))))


def _tuned(sample: GraphProblem, live: GraphProblem) -> tuple[Configuration, Outcome]:
    found = inferline(GraphQueues(sample))
    changes = tuned_changes(sample_of(sample, found), live.queries.due_ns)
    return found, play_changes(live, found, changes)


def traces(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return figure 6: (a) a big spike, (b) a sudden rise and fall."""
    rows = []
    for name, chosen in (("6a", big_spike), ("6b", sudden_fall)):
        first, rest = minutes(chosen(day()), seed)
        sample = _problem("social-media", folder, first, seed)
        live = _problem("social-media", folder, rest, seed + 1)
        _, tuned = _tuned(sample, live)
        coarse = _coarse(sample, live)
        rows.append(
            {
                "trace": name,
                "queries": len(rest),
                **_cells("tuned", tuned),
                **_cells("coarse", coarse),
                "cheaper": coarse.cost / tuned.cost,
                "fewer_misses": coarse.late / max(tuned.late, 1 / len(rest)),
                "changes": len(tuned.changes),
            }
        )
    return rows


def _against_oracle(
    folder: Path, seed: int, before: tuple[float, float], after: tuple[float, float], transition_s: float
) -> dict[str, Any]:
    """Return tuner, plan alone and oracle as (rate, CV) becomes another one."""
    rng = np.random.default_rng(seed)
    sample = _problem("social-media", folder, gamma(rng, *before, 60.0), seed)
    arrivals_ns = evolving(
        seed + 1, (before[0], after[0]), (before[1], after[1]), hold_s=HOLD_S, transition_s=transition_s
    )
    live = _problem("social-media", folder, arrivals_ns, seed + 1)
    found, tuned = _tuned(sample, live)
    return {
        "rate": f"{before[0]:g} to {after[0]:g}",
        "cv": f"{before[1]:g} to {after[1]:g}",
        "transition_s": transition_s,
        **_cells("tuned", tuned),
        **_cells("plan", _fixed(live, found)),
        **_cells("oracle", _fixed(live, inferline(GraphQueues(live)))),
        "reacted_s": _reacted_s(tuned),
    }


def _reacted_s(outcome: Outcome) -> float:
    """Return how long after the change began the first replica was asked for."""
    began_ns = HOLD_S * 1e9
    later = [
        (each.at_ns - began_ns) / 1e9
        for before, each in itertools.pairwise(outcome.changes)
        if each.at_ns >= began_ns and sum(each.replicas) > sum(before.replicas)
    ]
    return min(later, default=float("nan"))


def rates(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return figure 10: from 150 to 250 queries a second, over several times."""
    return [_against_oracle(folder, seed, (150, 1), (250, 1), each) for each in TRANSITIONS_S]


def bursts(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return figure 11: from CV 1 to CV 4 at the same rate."""
    return [_against_oracle(folder, seed, (150, 1), (150, 4), each) for each in TRANSITIONS_S]


def attribution(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return figure 12: who gains what, on image processing as the rate rises."""
    rng = np.random.default_rng(seed)
    sample = _problem("image-processing", folder, gamma(rng, 150, 1, 60.0), seed)
    arrivals_ns = evolving(seed + 1, (150, 250), (1, 1), hold_s=HOLD_S, transition_s=60.0)
    live = _problem("image-processing", folder, arrivals_ns, seed + 1)
    whole = unit(sample)
    found, tuned = _tuned(sample, live)
    most = fixed_units(units_for(whole, peak(sample)))
    return [
        {"who": "baseline plan", **_cells("its", play_units(live, whole, most))},
        {"who": "inferline plan", **_cells("its", _fixed(live, found))},
        {
            "who": "inferline plan, ds2",
            **_cells("its", play_changes(live, found, ds2(sample, found, arrivals_ns))),
        },
        {"who": "baseline plan, autoscale", **_cells("its", _coarse(sample, live))},
        {"who": "inferline plan and tuner", **_cells("its", tuned)},
    ]


def against_ds2(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return figure 14: DS2 on the same plan, on bursts and on a rising rate."""
    rows = []
    for name, after in (("bursty", (50.0, 4.0)), ("rising", (100.0, 1.0))):
        rng = np.random.default_rng(seed)
        before = (50.0, 4.0) if name == "bursty" else (50.0, 1.0)
        sample = _problem("image-processing", folder, gamma(rng, *before, 60.0), seed)
        arrivals_ns = evolving(
            seed + 1, (before[0], after[0]), (before[1], after[1]), hold_s=HOLD_S, transition_s=60.0
        )
        live = _problem("image-processing", folder, arrivals_ns, seed + 1)
        found, tuned = _tuned(sample, live)
        theirs = play_changes(live, found, ds2(sample, found, arrivals_ns))
        rows.append({"load": name, **_cells("tuned", tuned), **_cells("ds2", theirs)})
    return rows
