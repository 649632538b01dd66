"""A flash crowd on a family of models beside one on its best member alone, and beside what was possible.

The crowd asks for so many times what the best member can do. What was possible is a linear program over the
same requests, which may take each at any instant until its deadline, in full batches, and knows all of them
before. ``python -m mainspring.experiments.families`` simulates it. With ``--live`` processes of a gateway, a
controller and workers with emulated devices serve it, with all times longer by a factor.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import typer

from mainspring import Client
from mainspring.compiler.artifact.profiles import COLUMNS
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.graphs import GraphSpec
from mainspring.simulator.run import simulate
from mainspring.simulator.spec_file import parse_spec
from mainspring.telemetry.log import read_log
from mainspring.traces.arrival import Kind
from mainspring.traces.recipe import Recipe, build
from mainspring.traces.replayer import ReplayConfig, Replayer
from tests.emulated_cluster import cluster_of

BATCH_MS = {
    "resnet50": {1: 2.8, 2: 3.9, 4: 5.9, 8: 10.0, 16: 18.0},
    "resnet18": {1: 1.3, 2: 1.7, 4: 2.4, 8: 3.8, 16: 6.6},
    "mobilenet": {1: 0.9, 2: 1.1, 4: 1.6, 8: 2.5, 16: 4.2},
}
SCORES = {"resnet50": 0.80, "resnet18": 0.75, "mobilenet": 0.71}
BEST = "resnet50"
FAMILY = "classify"
ROW_MS = {name: sizes[16] / 16 for name, sizes in BATCH_MS.items()}
"""Time of a device for a row in full batches."""
SLO_MS = 100.0
CALM_S, CALM = 0.5, 0.5
"""Time before the crowd comes, and the load meanwhile."""
ROUNDS = 5
"""Plays of which the median is a request's cost."""
SLOTS = 8
"""Slots of an SLO in the linear program."""


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of a crowd."""

    in_time: float
    """Part of the requests that were answered in time."""
    score: float
    """Mean score of the answers."""
    shares: dict[str, float]
    """Part of the answers that each member gave."""

    @property
    def total(self) -> float:
        """The score of a request in the mean; one without an answer in time has none."""
        return self.in_time * self.score


def crowd(load: float, seconds: float, devices: int, seed: int) -> npt.NDArray[np.float64]:
    """Return the instants of requests in s: calm, then ``load`` times what the best member can do."""
    draws = np.random.default_rng(seed)
    most = devices * 1e3 / ROW_MS[BEST]
    calm = draws.uniform(0.0, CALM_S, draws.poisson(CALM * most * CALM_S))
    many = draws.uniform(CALM_S, CALM_S + seconds, draws.poisson(load * most * seconds))
    return np.sort(np.concatenate([calm, many]))


class Ran:
    """The rows that each member ran from an instant on, by an event log's entries."""

    def __init__(self, from_ns: float) -> None:
        self._from_ns = from_ns
        self._rows: Counter[str] = Counter()
        self._sent: dict[int, Infer] = {}

    def take(self, now_ns: int, entry: object) -> None:
        """Take an entry."""
        if isinstance(entry, Infer):
            self._sent[entry.action_id] = entry
        elif isinstance(entry, Result) and (infer := self._sent.pop(entry.action_id, None)) is not None:
            done = entry.status is Status.OK and now_ns > self._from_ns
            self._rows[infer.model] += sum(infer.rows) * done

    def outcome(self, in_time: float) -> Outcome:
        """Return the outcome of a crowd of which that part was answered in time."""
        count = max(1, sum(self._rows.values()))
        shares = {name: self._rows[name] / count for name in SCORES}
        return Outcome(in_time, sum(SCORES[name] * share for name, share in shares.items()), shares)


def cost(devices: int) -> tuple[float, float]:
    """Return the processor time of a simulated request of the family, and of one of the best member alone, in
    us: each the median of alternating plays at half of what the best member can do."""
    count, fewer = 2000, 200
    seconds = count * ROW_MS[BEST] / (0.5 * devices * 1e3)
    times_s = CALM_S + np.sort(np.random.default_rng(1).uniform(0.0, seconds, count))
    took: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for alone, each in took.items():
            marks = [time.process_time()]
            for part in (times_s, times_s[:: count // fewer]):
                play(part, seconds, devices, alone)
                marks.append(time.process_time())
            each.append((2 * marks[1] - marks[0] - marks[2]) / (count - fewer) * 1e6)
    return statistics.median(took[False]), statistics.median(took[True])


def listed(times_s: npt.NDArray[np.float64], asked: str, folder: str | Path) -> Path:
    """Write a list of requests at instants."""
    path = Path(folder) / "crowd.csv"
    path.write_text("time_s,model\n" + "".join([f"{each:.9f},{asked}\n" for each in times_s]))
    return path


def play(times_s: npt.NDArray[np.float64], seconds: float, devices: int, alone: bool) -> Outcome:
    """Simulate a crowd on the family, or on its best member alone."""
    ran = Ran(CALM_S * 1e9)
    asked = BEST if alone else FAMILY
    with TemporaryDirectory() as folder:
        spec: dict[str, Any] = {
            "devices": [{"count": devices}],
            "models": [
                {"name": name, "infer_ms": {str(size): ms for size, ms in sizes.items()}}
                for name, sizes in BATCH_MS.items()
            ],
            "families": [{"name": FAMILY, "members": list(SCORES), "score": list(SCORES.values())}],
            "workload": [
                {
                    "kind": "csv",
                    "models": asked,
                    "trace": str(listed(times_s, asked, folder)),
                    "slo_ms": SLO_MS,
                }
            ],
            "warm_up_s": CALM_S,
            "duration_s": seconds,
        }
        summary = simulate(parse_spec(spec, "crowd"), record=ran.take, analyse=False).summary
    return ran.outcome(summary.goodput_share)


def serve(
    times_s: npt.NDArray[np.float64], seconds: float, devices: int, slower: float
) -> tuple[Outcome, Outcome]:
    """Serve a crowd live on the family, and on its best member alone, each after its time of calm."""
    calm_ns, crowd_ns = round(CALM_S * slower * 1e9), round(seconds * slower * 1e9)
    outcomes = []
    with TemporaryDirectory(prefix="mainspring-") as folder:
        profiles = Path(folder) / "profiles.csv"
        rows = [
            ",".join(map(str, (name, 4, 4, 16, 3, *[slower * ms for ms in sizes.values()])))
            for name, sizes in BATCH_MS.items()
        ]
        profiles.write_text("\n".join([",".join(COLUMNS), *rows, ""]))
        tables = {"cluster": {"workers": devices}, "worker": {"pages": 64, "io_bytes": 32 << 20}}
        with cluster_of(Path(folder), profiles, tables) as cluster:
            with Client(cluster.address) as client:
                graph = GraphSpec(name=FAMILY, members=tuple(SCORES), score=tuple(SCORES.values()))
                client.add_graph(graph)
            replayer = Replayer(ReplayConfig(address=cluster.address, straggler_wait_s=3))
            for asked in (FAMILY, BEST):
                trace = listed(times_s * slower, asked, folder)
                recipe = Recipe(kind=Kind.CSV, slo_ns=round(SLO_MS * slower * 1e6), trace=trace)
                for begin_ns, long_ns in ((0, calm_ns), (calm_ns, crowd_ns)):
                    part = msgspec.structs.replace(recipe, start_ns=begin_ns, duration_ns=long_ns)
                    summary, _ = replayer.play(build(part, [asked]), duration_ns=long_ns)
                ran = Ran(summary.start_ns)
                for now_ns, entry in read_log(Path(folder) / "events"):
                    ran.take(now_ns, entry)
                outcomes.append(ran.outcome(summary.goodput_share))
            replayer.close()
    return outcomes[0], outcomes[1]


def possible(times_s: npt.NDArray[np.float64], devices: int) -> float:
    """Return the highest mean score of the crowd's requests by the linear program.

    Time falls into slots. A request of one may run in it and in those until its deadline, each member's rows
    in full batches; a slot has as much time as all devices have in it.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    width_s = SLO_MS / 1e3 / SLOTS
    begin = round(CALM_S / width_s)
    came = np.bincount((times_s[times_s >= CALM_S] / width_s).astype(int) - begin)
    members, lags = list(SCORES), SLOTS + 1
    slot, member, lag = (each.ravel() for each in np.indices((len(came), len(members), lags)))
    which = np.arange(slot.size)
    row_s = np.array([ROW_MS[name] / 1e3 for name in members])
    rows = np.concatenate([slot, len(came) + slot + lag])
    values = np.concatenate([np.ones(slot.size), row_s[member]])
    matrix = coo_array(
        (values, (rows, np.concatenate([which, which]))), (2 * len(came) + lags - 1, slot.size)
    )
    bounds = np.concatenate([came, np.full(len(came) + lags - 1, devices * width_s)])
    scores = np.array([SCORES[name] for name in members])
    found = linprog(-scores[member], A_ub=matrix.tocsr(), b_ub=bounds, bounds=(0, None))
    return -float(found.fun) / float(came.sum())


def main(
    seconds: Annotated[float, typer.Option(min=0.1, help="Simulated time of the crowd.")] = 5.0,
    load: Annotated[
        list[float] | None, typer.Option(help="Multiples of what the best member can do.")
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="Devices.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the requests.")] = 1,
    live: Annotated[bool, typer.Option("--live", help="Serve the crowd on emulated devices.")] = False,
    slower: Annotated[float, typer.Option(min=1, help="Factor on all times if live.")] = 24.0,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print what a crowd gets of a family, of its best member alone, and what was possible."""
    figures = []
    for each in load or (3.0,):
        times_s = crowd(each, seconds, devices, seed)
        if live:
            family, alone = serve(times_s, seconds, devices, slower)
        else:
            family, alone = (play(times_s, seconds, devices, only) for only in (False, True))
        most = possible(times_s, devices)
        shares = ", ".join(f"{name} {share:.1%}" for name, share in family.shares.items())
        at = f"{each:g} x the best member's capacity"
        figures += [
            Figure(f"{at}: in time, family", 100 * family.in_time, "%", 99, at_least=True, note=shares),
            Figure(f"{at}: in time, {BEST} alone", 100 * alone.in_time, "%", 45),
            Figure(
                f"{at}: mean score of what was possible", 100 * family.total / most, "%", 99, at_least=True
            ),
            Figure(f"{at}: mean score of answers", family.score, "", note=f"possible {most:.4f}"),
        ]
    if not live:
        family_us, alone_us = cost(devices)
        what, note = "processor time of a request of the family, half load", f"{BEST} alone {alone_us:.0f} us"
        figures.append(Figure(f"{what}, by {BEST}'s", family_us / alone_us, "x", 2, note=note))
    publish("families", "A flash crowd on a family of models", figures, output)


if __name__ == "__main__":
    typer.run(main)
