"""The worth of a deadline: Mainspring and Triton at the same rates, with the same deadline.

SqueezeNet (`contestants`) through ONNX Runtime on one core, Poisson
arrivals, the deadline as the parameter ``timeout`` of each request. Triton's saturation, in a closed loop,
sets the rates; it is measured until it settles, and ``--rate-hz`` takes a rate in its place, so that runs can
be compared. At each, the servers (`contestants`) take turns, short ones and in changing order, so that
whatever else the machine does is borne by all. Beside them stands what one core could
have answered in time (`possible`). With ``--one-core`` each server is wholly on one core, the client on the
others. ``python -m mainspring.experiments.bench.triton.compare``, which ``make bench-triton`` runs.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from mainspring.experiments.bench.foreign import Unavailable
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.triton import contestants, load
from mainspring.experiments.bench.triton.contestants import (
    BESIDE,
    MAINSPRING,
    TRITON,
    Subject,
    Wanted,
    servers,
    squeezenet,
    wanted_of,
)
from mainspring.messages.model import ModelSpec

_CLIENTS = 8
_WARM_UP_S = 1.0
_SATURATION_S = 1.0
_ALONE_S = 0.3
_BARE_S = 1.5
ONE_CORE_PERCENT: dict[float, dict[float, float]] = {
    22.0: {0.5: 98.0, 0.8: 97.0, 1.0: 95.0, 1.5: 75.0},
    90.0: {0.5: 100.0, 0.8: 100.0, 1.0: 99.0, 1.5: 75.0},
}
LATE_PERCENT = 0.5
"""The most of Mainspring's requests that may be answered late."""
_SATURATIONS = 5
"""Times that each of these is measured, in turns, at least."""
_MOST_SATURATIONS = 15
SETTLED = 0.1


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
    reasons: dict[str, int] = {}
    late: int = 0
    """Answers that came after the deadline."""
    refused_at: list[float] = []
    possible_percent: float = 0.0
    """Requests that one core could have answered in time."""


class Contest:
    """Both servers, running."""

    def __init__(
        self, addresses: dict[str, str], subject: Subject, models: Sequence[ModelSpec], deadline_ms: float
    ) -> None:
        self.addresses = addresses
        self.deadline_ms = deadline_ms
        self.copies = len(models)
        inputs = subject.inputs()
        timeout_us = round(deadline_ms * 1e3)
        names = [each.name for each in models]
        self._timed = [load.encode(name, each, timeout_us) for each in inputs for name in names]
        self._untimed = [load.encode(name, each) for each in inputs for name in names]
        self.alone_ms = dict.fromkeys(addresses, 0.0)
        self.all_saturations_hz: dict[str, list[float]] = {name: [] for name in addresses}
        """Answers a second in each turn of a closed loop."""
        self._bare = contestants.runner(subject.models(models[:1])[names[0]], inputs)
        self._bare_ms = np.zeros(0)
        self.all_bare_ms: list[float] = []
        """Durations of all runs of the bare model."""

    def run_bare(self) -> None:
        """Run the bare model for a while: what the next turns could have done is judged by its durations."""
        self._bare_ms = self._bare(_BARE_S)
        self.all_bare_ms += self._bare_ms.tolist()

    def saturations_hz(self, rate_hz: float) -> dict[str, float]:
        """Return each server's answers a second in a closed loop, after a warm-up: medians of turns.

        There are more turns while Triton's spread, and one if ``rate_hz`` is taken in its place. What they
        were is kept in `all_saturations_hz`.
        """
        for address in self.addresses.values():
            load.closed_loop(address, self._untimed, _CLIENTS, _WARM_UP_S)
        found = self.all_saturations_hz
        least, most = (1, 1) if rate_hz else (_SATURATIONS, _MOST_SATURATIONS)
        while len(found[TRITON]) < least or (len(found[TRITON]) < most and not settled(found[TRITON])):
            for name, address in self.addresses.items():
                found[name].append(load.closed_loop(address, self._untimed, _CLIENTS, _SATURATION_S))
        for name, address in self.addresses.items():
            alone = [load.closed_loop(address, self._untimed, 1, _ALONE_S) for _ in range(_SATURATIONS)]
            self.alone_ms[name] = 1e3 / max(alone)
        return {name: statistics.median(each) for name, each in found.items()}

    def turn(self, name: str, factor: float, rate_hz: float, duration_s: float, seed: int) -> Turn:
        """Send Poisson arrivals to one server."""
        instants = load.poisson(rate_hz, duration_s, seed)
        found = load.open_loop(self.addresses[name], self._timed, instants)
        in_time = found.in_time(self.deadline_ms)
        beside_ms = max(0.0, min(self.alone_ms.values()) - float(np.median(self._bare_ms)))
        return Turn(
            server=name,
            copies=self.copies,
            factor=factor,
            rate_hz=rate_hz,
            requests=len(instants),
            in_time_percent=100 * in_time / len(instants),
            codes=found.codes,
            client_late_ms=found.late_ms,
            reasons=found.reasons,
            late=found.codes.get("OK", 0) - in_time,
            refused_at=[round(each / self.deadline_ms, 3) for each in sorted(found.refused_ms)],
            possible_percent=contestants.in_time_percent(
                instants, self._bare_ms, self.deadline_ms, beside_ms, seed
            ),
        )


def contest(
    subject: Subject,
    copies: int,
    factors: Sequence[float],
    repeats: int,
    turn_s: float,
    deadline_ms: float,
    batch: int,
    rate_hz: float,
    wanted: Wanted,
) -> tuple[list[Turn], dict[str, float]]:
    """Return all turns with so many copies of the model, and each server's saturation."""
    turns = []
    with servers(subject, copies, batch, wanted) as (addresses, models):
        both = Contest(addresses, subject, models, deadline_ms)
        saturations = both.saturations_hz(rate_hz)
        for name, each in both.all_saturations_hz.items():
            typer.echo(
                f"{copies} copies: {name} {saturations[name]:.0f} r/s, {min(each):.0f} to {max(each):.0f}"
            )
        if not settled(both.all_saturations_hz[TRITON]) and not rate_hz:
            typer.echo("Triton's saturation did not settle: compare rates, or give one (--rate-hz)")
        for factor in factors:
            for repeat in range(repeats):
                both.run_bare()
                for name in list(addresses)[:: 1 if repeat % 2 else -1]:
                    rate = factor * (rate_hz or saturations[TRITON])
                    turns.append(both.turn(name, factor, rate, turn_s, repeat))
                    typer.echo(_line(turns[-1]))
        typer.echo(_bare_line(both.all_bare_ms))
    return turns, saturations


def settled(turns_hz: Sequence[float]) -> bool:
    """True if the middle half of the turns lies so close together that their median is meaningful."""
    low, middle, high = np.percentile(turns_hz, (25, 50, 75))
    return bool(high - low <= SETTLED * middle)


def _line(turn: Turn) -> str:
    said = ", ".join(f"{name} {count}" for name, count in sorted(turn.reasons.items()))
    return (
        f"  {turn.factor:g} x: {turn.rate_hz:5.0f} r/s {turn.server} {turn.in_time_percent:5.1f} % "
        f"in time of {turn.requests} ({turn.late} late, refused: {said or 'none'}; the client "
        f"{turn.client_late_ms:.1f} ms late at p99; one core could do {turn.possible_percent:.1f} %)"
    )


def _bare_line(durations_ms: Sequence[float]) -> str:
    percentiles = zip((5, 50, 95, 99), np.percentile(durations_ms, (5, 50, 95, 99)), strict=True)
    said = ", ".join(f"p{percent} {ms:.1f}" for percent, ms in percentiles)
    return f"the bare model, {len(durations_ms):,} runs: {said}, longest {max(durations_ms):.1f} ms"


def figures(turns: Sequence[Turn], subject: Subject) -> list[Figure]:
    """Return the median of the turns at each rate."""
    made = []
    for copies, factor, name in Counter((turn.copies, turn.factor, turn.server) for turn in turns):
        chosen = _in_time_percents(turns, copies, factor, name)
        target = subject.wanted.get(factor) if name == MAINSPRING else None
        spread = f"{min(chosen):.1f} to {max(chosen):.1f} of {len(chosen)} turns"
        label = f"{copies} x, {factor:g} of Triton's saturation: {name} in time"
        made.append(Figure(label, statistics.median(chosen), "%", target, at_least=True, note=spread))
        made += _ends(
            [turn for turn in turns if (turn.copies, turn.factor, turn.server) == (copies, factor, name)]
        )
    for copies, factor in Counter((turn.copies, turn.factor) for turn in turns):
        own = [turn for turn in turns if (turn.copies, turn.factor) == (copies, factor)]
        could = [turn.possible_percent for turn in own]
        label = f"{copies} x, {factor:g}: what one core could have answered in time"
        spread = f"{min(could):.1f} to {max(could):.1f}; knowing every duration, one by one"
        made.append(Figure(label, statistics.median(could), "%", note=spread))
    return made


def _ends(turns: Sequence[Turn]) -> list[Figure]:
    label = f"{turns[0].copies} x, {turns[0].factor:g}: {turns[0].server}"
    late = 100 * sum(turn.late for turn in turns) / sum(turn.requests for turn in turns)
    target = LATE_PERCENT if turns[0].server == MAINSPRING else None
    made = [Figure(f"{label} late", late, "%", target)]
    refused_at = [at for turn in turns for at in turn.refused_at]
    if refused_at:
        tenth, middle, most = np.percentile(refused_at, (10, 50, 90))
        note = f"{tenth:.2f} to {most:.2f} of {len(refused_at)}, 10th to 90th percentile"
        made.append(Figure(f"{label} refuses, median", float(middle), "of the deadline", note=note))
    return made


def _in_time_percents(turns: Sequence[Turn], copies: int, factor: float, server: str) -> list[float]:
    chosen = (copies, factor, server)
    return [turn.in_time_percent for turn in turns if (turn.copies, turn.factor, turn.server) == chosen]


def main(
    copies: Annotated[str, typer.Option(help="Copies of the model, separated by commas.")] = "1,8",
    factors: Annotated[str, typer.Option(help="Parts of Triton's saturation.")] = "0.5,0.8,1.0,1.5",
    repeats: Annotated[int, typer.Option(help="Turns of each server at each rate.")] = 5,
    turn_s: Annotated[float, typer.Option(help="Length of a turn.")] = 2.0,
    deadline_ms: Annotated[float, typer.Option(help="Of every request; 0: 25.")] = 0.0,
    batch: Annotated[int, typer.Option(help="Largest batch of Triton's dynamic batcher.")] = 8,
    rate_hz: Annotated[
        float, typer.Option(help="Take this for Triton's saturation; 0: measure it, with the first copies.")
    ] = 0.0,
    one_core: Annotated[
        bool,
        typer.Option("--one-core", help="Each server wholly on the last core, the client on the others."),
    ] = False,
    beside: Annotated[list[str] | None, typer.Option(help=BESIDE)] = None,
    output: Annotated[Path, typer.Option(help="Folder for triton.json.")] = OUTPUT,
) -> None:
    """Measure, print the figures, and write them down."""
    chosen = wanted_of(one_core, beside or ())
    parts, numbers = [float(each) for each in factors.split(",")], [int(each) for each in copies.split(",")]
    turns: list[Turn] = []
    saturations: dict[str, dict[str, float]] = {}
    try:
        subject = squeezenet()
        deadline_ms = deadline_ms or subject.deadline_ms
        if one_core:
            wanted = ONE_CORE_PERCENT.get(deadline_ms, {})
            subject = msgspec.structs.replace(subject, wanted=wanted)
        for number in numbers:
            found, saturations[str(number)] = contest(
                subject, number, parts, repeats, turn_s, deadline_ms, batch, rate_hz, chosen
            )
            turns += found
            # The same rates for all: one core is not faster for more models.
            rate_hz = rate_hz or saturations[str(number)][TRITON]
    except Unavailable as why:
        typer.echo(f"skipped: {why}")
        return
    title = f"Answers of SqueezeNet within {deadline_ms:g} ms{', each server on one core' * one_core}"
    publish("triton", title, figures(turns, subject), output, turns=turns, saturations_hz=saturations)


if __name__ == "__main__":
    typer.run(main)
