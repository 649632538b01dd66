"""Ensembles of 1 to 16 members beside a client that asks for each member by itself, best effort.

Simulated: one load, offered to both ways in the same requests. The client alone sends every member with the
whole deadline to a server that refuses none (the policy ``clipper``), and takes what has come at its cut-off
(Clipper, section 5.2). ``python -m mainspring.experiments.ensembles``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import QueryArrived, RequestArrived
from mainspring.simulator.gateway import piece_id
from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import parse_spec

BATCH_MS = {1: 2.0, 2: 2.6, 4: 3.8, 8: 6.2}
DEVICES, SLO_MS = 4, 20.0
SIZES = (1, 2, 4, 8, 16)
_REQUEST_BITS = piece_id(0, 0) - 1
"""The bits of a piece's id that are its request's."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one load in one way."""

    in_time: int
    """Members that ended before their request's deadline."""
    in_vain: float
    """Part of the members' executions that ended later."""
    answered: float
    """Part of the requests that were answered in time, with any number of members."""
    present: tuple[int, ...] = ()
    """Members in time of each request."""
    last_ms: tuple[float, ...] = ()
    """Time from arrival to the end of the last member that ran, of each request that had one."""


def play(members: int, load: float, known: bool, seconds: float, seed: int) -> Outcome:
    """Simulate one load; ``known``: the scheduler knows the ensembles."""
    due_ns: dict[int, int] = {}
    sent: dict[int, Infer] = {}
    present: dict[int, int] = {}
    last_ns: dict[int, int] = {}
    in_time = late = 0

    def record(_now_ns: int, entry: object) -> None:
        nonlocal in_time, late
        if isinstance(entry, QueryArrived) and entry.deadline_ns is not None:
            due_ns[entry.query_id] = entry.deadline_ns
        elif isinstance(entry, RequestArrived) and entry.deadline_ns is not None:
            due_ns.setdefault(entry.request_id & _REQUEST_BITS, entry.deadline_ns)
        elif isinstance(entry, Infer):
            sent[entry.action_id] = entry
        elif isinstance(entry, Result) and (infer := sent.pop(entry.action_id, None)) is not None:
            if entry.status is not Status.OK:
                return
            for request_id in infer.request_ids:
                query = request_id & _REQUEST_BITS
                last_ns[query] = max(last_ns.get(query, 0), entry.end_ns)
                if entry.end_ns <= due_ns[query]:
                    in_time += 1
                    present[query] = present.get(query, 0) + 1
                else:
                    late += 1

    spec = _spec(members, load, known, seconds, seed)
    summary = simulate(parse_spec(spec, "ensemble"), record=record, analyse=False).summary
    arrived_ns = {query: due - round(SLO_MS * 1e6) for query, due in due_ns.items()}
    return Outcome(
        in_time,
        late / max(1, in_time + late),
        summary.goodput_share or 0.0,
        tuple([present.get(query, 0) for query in due_ns]),
        tuple([(end - arrived_ns[query]) / 1e6 for query, end in last_ns.items()]),
    )


def _spec(members: int, load: float, known: bool, seconds: float, seed: int) -> dict[str, Any]:
    names = [f"member{index}" for index in range(members)]
    times = {str(size): ms for size, ms in BATCH_MS.items()}
    steps = [{"model": name, "after": []} for name in names]
    largest = max(BATCH_MS)
    capacity = DEVICES * 1e3 * largest / (members * BATCH_MS[largest])
    return {
        "devices": [{"count": DEVICES}],
        "models": [{"name": name, "infer_ms": times, "weights_mb": 16.0} for name in names],
        "graphs": [{"name": "ensemble", "steps": steps, "apart": not known, "least": 1}],
        "workload": [{"models": "ensemble", "rate": load * capacity, "slo_ms": SLO_MS}],
        "scheduler": {"policy": "mainspring" if known else "clipper"},
        "warm_up_s": 0.0,
        "duration_s": seconds,
        "seed": seed,
    }


def main(
    seconds: Annotated[float, typer.Option(min=0.1, help="Simulated time of each load.")] = 5.0,
    load: Annotated[float, typer.Option(min=0.01, help="Multiple of the capacity.")] = 1.5,
    seed: Annotated[int, typer.Option(help="Seed of the requests.")] = 1,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print for each size of ensemble the members in time, as a ratio to best effort, and those in vain."""
    figures = []
    for members in SIZES:
        alone, known = (play(members, load, way, seconds, seed) for way in (False, True))
        note = (
            f"{known.in_time:,} beside {alone.in_time:,}; in vain {known.in_vain:.1%} beside "
            f"{alone.in_vain:.1%}; answered {known.answered:.1%} beside {alone.answered:.1%}"
        )
        ratio = known.in_time / max(1, alone.in_time)
        what = f"{members} member{'s' * (members > 1)} at {load:g}"
        figures.append(Figure(what, ratio, "x", target=1.5, at_least=True, note=note))
    publish("ensembles", "Members of ensembles in time, to a best-effort run", figures, output)


if __name__ == "__main__":
    typer.run(main)
