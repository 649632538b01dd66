"""An identity model over HTTP in JSON: its rates, its tail, and its goodput below and above saturation.

Round after round: a closed loop at concurrency 1, 8 and 32, which gives the saturation (the most that is
answered); Poisson arrivals at 0.8 of that, for the tail; and such at 0.8, 1.0 and 1.5 of it whose answers
count if they come within a deadline, which they bring along as a header. In turns with it runs a bare loop
that refuses everything unread, which says what refusing leaves of a server's goodput at best.
``python -m mainspring.experiments.bench.http``, which ``make bench-http`` runs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.experiments.bench.http_load import Plan, Result, Target
from mainspring.experiments.bench.http_servers import NoServer, refusing, serving
from mainspring.experiments.bench.report import OUTPUT, Figure, publish

CLOSED = (1, 8, 32)
TAIL = 0.8
SHARES = (0.8, 1.0, 1.5)
OURS = "mainspring"
GOODPUT_KEPT = 0.9
SETTLE_S = 0.5


class Measured(msgspec.Struct, frozen=True):
    """One server in one round."""

    closed: dict[int, Result]
    tail: Result
    open: dict[float, Result]
    saturation: float
    """Requests a second: the most of the closed loops."""
    refusals: float = 0.0
    """Requests a second that a bare loop refuses unread; 0 if that was not measured."""


def rate(result: Result) -> float:
    """Return the answers a second."""
    return result.answered / result.seconds


def goodput(result: Result) -> float:
    """Return the answers in time a second."""
    return result.in_time / result.seconds


def load(plan: Plan) -> Result:
    """Put load on a server, from a process of its own; raise `NoServer` if that can't reach it."""
    time.sleep(SETTLE_S)
    arguments = [sys.executable, "-m", "mainspring.experiments.bench.http_load"]
    done = subprocess.run(
        [*arguments, msgspec.json.encode(plan).decode()], capture_output=True, check=False, text=True
    )
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise NoServer(f"its load ended with code {done.returncode}: {last[:300]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Result)


def kept_at_best(share: float, saturation: float, refusals: float) -> float:
    """Return the part of its saturation that a server keeps at a share of it, above 1, at best.

    It can answer ``saturation`` requests a second, or do nothing but refuse ``refusals``.
    """
    cost = saturation / refusals
    return max(0.0, (1 - share * cost) / (1 - cost)) if cost < 1 else 0.0


def refusals_of(seconds: float) -> float:
    """Return how many requests a second a bare loop refuses."""
    with refusing() as target:
        found = load(Plan(target=target, seconds=seconds, connections=max(CLOSED)))
    return sum(found.refused.values()) / found.seconds


def measure(target: Target, seconds: float, deadline_ms: float, connections: int) -> Measured:
    """Measure one server once; raise `NoServer` if it does not answer."""
    closed = {
        count: load(Plan(target=target, seconds=seconds, connections=count, deadline_ms=deadline_ms))
        for count in CLOSED
    }
    saturation = max(map(rate, closed.values()))
    if not saturation:
        refused = {count: result.refused for count, result in closed.items()}
        raise NoServer(f"it answered nothing in {seconds:g} s of any closed loop; refused: {refused}")
    tail = Plan(
        target=target,
        seconds=seconds,
        connections=connections,
        rate=TAIL * saturation,
        deadline_ms=deadline_ms,
    )
    told = msgspec.structs.replace(target, headers=(("x-mainspring-slo-ms", f"{deadline_ms:g}"),))
    opened = {
        share: load(msgspec.structs.replace(tail, target=told, rate=share * saturation)) for share in SHARES
    }
    return Measured(closed, load(tail), opened, saturation)


def median(values: Iterable[float | None]) -> float:
    """Return the median over the rounds; infinite where a round has no answers."""
    return statistics.median(float("inf") if each is None else each for each in values)


def summary(name: str, rounds: list[Measured]) -> list[Figure]:
    """Return one server's figures: medians over the rounds."""
    figures = []
    for count in CLOSED:
        results = [each.closed[count] for each in rounds]
        figures += [
            Figure(f"{name}: concurrency {count}", median(map(rate, results)), "r/s"),
            Figure(f"{name}: concurrency {count}, p99", median(each.p99_ms for each in results), "ms"),
        ]
    tails = median(each.tail.p99_ms for each in rounds)
    figures.append(Figure(f"{name}: p99 at {TAIL:g} of saturation", tails, "ms"))
    for share in SHARES:
        figures.append(
            Figure(
                f"{name}: goodput at {share:g} of saturation",
                median(goodput(each.open[share]) for each in rounds),
                "r/s",
                note=f"{median(goodput(m.open[share]) / m.saturation for m in rounds):.2f} of its saturation",
            )
        )
    if bare := [each for each in rounds if each.refusals]:
        best = median(kept_at_best(max(SHARES), each.saturation, each.refusals) for each in bare)
        refused = median(each.refusals for each in bare)
        figures += [
            Figure(f"{name}: a bare loop that refuses all", refused, "r/s", note="same run, nothing parsed"),
            Figure(f"{name}: of its saturation, at best left at {max(SHARES):g}", best, ""),
        ]
    return figures


def kept(rounds: list[Measured]) -> Figure:
    """Return what is left of the best goodput at one and a half of the saturation."""
    part = median(goodput(each.open[1.5]) / max(map(goodput, each.open.values())) for each in rounds)
    return Figure("goodput at 1.5 of saturation, of its peak", part, "", GOODPUT_KEPT, at_least=True)


def run(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[float, typer.Option(min=0.5, help="Of each stretch of load.")] = 4.0,
    deadline_ms: Annotated[float, typer.Option(min=1)] = 50.0,
    connections: Annotated[int, typer.Option(min=1, help="Of Poisson arrivals, at most.")] = 2_000,
    output: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = OUTPUT,
) -> None:
    """Measure, print the figures, and write them down."""
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            typer.echo(f"round {number + 1} of {rounds}", err=True)
            with serving(Path(folder) / str(number)) as target:
                found = measure(target, seconds, deadline_ms, connections)
            measured.append(msgspec.structs.replace(found, refusals=refusals_of(seconds)))
    title = f"An identity model over HTTP, JSON, {rounds} rounds, deadline {deadline_ms:g} ms"
    publish("http", title, [*summary(OURS, measured), kept(measured)], output, rounds=measured)


if __name__ == "__main__":
    typer.run(run)
