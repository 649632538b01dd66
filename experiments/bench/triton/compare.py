"""The worth of a deadline: Mainspring and Triton at the same rates, with the same deadline.

SqueezeNet through ONNX Runtime on one core, Poisson arrivals, the deadline as the parameter ``timeout`` of
each request. Triton's saturation, in a closed loop, sets the rates. At each, the two take turns, so that
whatever else the machine does is borne by both.
``python -m mainspring.experiments.bench.triton.compare``, which ``make bench-triton`` runs.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer

from mainspring.compiler.store import Store
from mainspring.compiler.zoo.catalogue import build
from mainspring.compiler.zoo.copies import compile_zoo
from mainspring.experiments.bench.foreign import CACHE, Unavailable
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.triton import load, server
from mainspring.launch.addresses import free_ports
from mainspring.launch.config import read_config
from mainspring.launch.local import LocalCluster
from mainspring.launch.plan import make_plan
from mainspring.messages.model import ModelSpec

ARCHITECTURE = "squeezenet"
STORE = CACHE / "triton-store"
WANTED = {0.5: 99.5, 0.8: 99.0, 1.0: 97.0, 1.5: 75.0}
"""For each part of Triton's saturation, the percentage that Mainspring is to answer in time."""
_MOST_COPIES = 8
_CLIENTS = 8
_WARM_UP_S = 1.0
_SATURATION_S = 3.0


class Turn(msgspec.Struct):
    """One server at one rate for one turn."""

    server: str
    copies: int
    factor: float
    rate_hz: float
    requests: int
    in_time_percent: float
    codes: dict[str, int]
    client_late_ms: float


class Contest:
    """Both servers, running."""

    def __init__(self, addresses: dict[str, str], models: Sequence[ModelSpec], deadline_ms: float) -> None:
        self.addresses = addresses
        self.deadline_ms = deadline_ms
        self.copies = len(models)
        (taken,) = models[0].inputs
        tensor = np.random.default_rng(1).random((1, *taken.shape)).astype(np.float32)
        timeout_us = round(deadline_ms * 1e3)
        self._timed = [load.encode(each.name, taken.name, tensor, timeout_us) for each in models]
        self._untimed = [load.encode(each.name, taken.name, tensor) for each in models]

    def saturation_hz(self, name: str) -> float:
        """Return the answers a second in a closed loop, after a warm-up."""
        load.closed_loop(self.addresses[name], self._untimed, _CLIENTS, _WARM_UP_S)
        return load.closed_loop(self.addresses[name], self._untimed, _CLIENTS, _SATURATION_S)

    def turn(self, name: str, factor: float, rate_hz: float, duration_s: float, seed: int) -> Turn:
        """Send Poisson arrivals to one server."""
        instants = load.poisson(rate_hz, duration_s, seed)
        found = load.open_loop(self.addresses[name], self._timed, instants)
        percent = 100 * found.in_time(self.deadline_ms) / len(instants)
        return Turn(name, self.copies, factor, rate_hz, len(instants), percent, found.codes, found.late_ms)


@contextmanager
def servers(copies: int, batch: int) -> Iterator[tuple[dict[str, str], list[ModelSpec]]]:
    """Run both; yield where they serve gRPC, and the models. Raises `Unavailable` without Triton."""
    compiled = list(compile_zoo([ARCHITECTURE], Store(STORE), _MOST_COPIES))
    specs = [each.manifest.spec() for each in compiled][:copies]
    models = {spec.name: build(ARCHITECTURE, seed) for seed, spec in enumerate(specs)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server.write_repository(folder / "models", models, specs[0], batch)
        addresses = {"triton": stack.enter_context(server.triton(folder / "models", folder / "triton.log"))}
        gateway, controller, port = free_ports(3)
        config: dict[str, dict[str, Any]] = {
            "cluster": {"store": str(STORE), "run_dir": str(folder / "run")},
            "worker": {"pages": 2 * _MOST_COPIES},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}", "grpc_address": f"grpc://127.0.0.1:{port}"},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        }
        plan = make_plan(read_config(config, "this benchmark"))
        stack.enter_context(LocalCluster(plan, typer.echo))
        yield {**addresses, "mainspring": f"127.0.0.1:{port}"}, specs


def contest(
    copies: int,
    factors: Sequence[float],
    repeats: int,
    turn_s: float,
    deadline_ms: float,
    batch: int,
    rate_hz: float,
) -> tuple[list[Turn], dict[str, float]]:
    """Return all turns with so many copies of the model, and each server's saturation."""
    turns = []
    with servers(copies, batch) as (addresses, models):
        both = Contest(addresses, models, deadline_ms)
        saturations = {name: both.saturation_hz(name) for name in addresses}
        typer.echo(
            f"{copies} copies: " + ", ".join(f"{name} {hz:.0f} r/s" for name, hz in saturations.items())
        )
        for factor in factors:
            for repeat in range(repeats):
                for name in addresses:
                    rate = factor * (rate_hz or saturations["triton"])
                    turns.append(both.turn(name, factor, rate, turn_s, repeat))
                    typer.echo(_line(turns[-1]))
    return turns, saturations


def _line(turn: Turn) -> str:
    codes = ", ".join(f"{name} {count}" for name, count in sorted(turn.codes.items()))
    return (
        f"  {turn.factor:g} x: {turn.rate_hz:5.0f} r/s {turn.server:10} {turn.in_time_percent:5.1f} % "
        f"in time of {turn.requests} ({codes}; the client {turn.client_late_ms:.1f} ms late at p99)"
    )


def figures(turns: Sequence[Turn]) -> list[Figure]:
    """Return the median of the turns at each rate."""
    made = []
    for copies, factor, name in Counter((turn.copies, turn.factor, turn.server) for turn in turns):
        chosen = [
            turn.in_time_percent
            for turn in turns
            if (turn.copies, turn.factor, turn.server) == (copies, factor, name)
        ]
        target = WANTED.get(factor) if name == "mainspring" else None
        spread = f"{min(chosen):.1f} to {max(chosen):.1f} of {len(chosen)} turns"
        label = f"{copies} x, {factor:g} of Triton's saturation: {name} in time"
        made.append(Figure(label, statistics.median(chosen), "%", target, at_least=True, note=spread))
    return made


def main(
    copies: Annotated[str, typer.Option(help="Copies of the model, separated by commas.")] = "1,8",
    factors: Annotated[str, typer.Option(help="Parts of Triton's saturation.")] = "0.5,0.8,1.0,1.5",
    repeats: Annotated[int, typer.Option(help="Turns of each server at each rate.")] = 3,
    turn_s: Annotated[float, typer.Option(help="Length of a turn.")] = 4.0,
    deadline_ms: Annotated[float, typer.Option(help="Of every request.")] = 25.0,
    batch: Annotated[int, typer.Option(help="Largest batch of Triton's dynamic batcher.")] = 8,
    rate_hz: Annotated[float, typer.Option(help="Take this for Triton's saturation; 0: measure it.")] = 0.0,
    output: Annotated[Path, typer.Option(help="Folder for triton.json.")] = OUTPUT,
) -> None:
    """Measure, print the figures, and write them down."""
    turns: list[Turn] = []
    saturations = {}
    try:
        for number in map(int, copies.split(",")):
            found, saturations[str(number)] = contest(
                number,
                [float(each) for each in factors.split(",")],
                repeats,
                turn_s,
                deadline_ms,
                batch,
                rate_hz,
            )
            turns += found
    except Unavailable as why:
        typer.echo(f"skipped: {why}")
        return
    title = f"Answers within {deadline_ms:g} ms"
    publish("triton", title, figures(turns), output, turns=turns, saturations_hz=saturations)


if __name__ == "__main__":
    typer.run(main)
