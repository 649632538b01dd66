"""Early refusals live, ``make refusals-live``: ``python -m mainspring.experiments.policies.refusals_live``.

Client, gateway, controller and two emulated devices are processes of their own, over sockets; each way to
refuse has a cluster of its own, and all get the same Poisson arrivals. Everything is by the caller's clock.
The log of an early one is decided again with ``last``: so it shows who was refused that could have been
served. Beside them stands the same in virtual time.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from mainspring.compiler.artifact.profiles import COLUMNS
from mainspring.experiments.bench.report import this_machine
from mainspring.experiments.bench.serving import cluster_of
from mainspring.experiments.live_vs_simulated import (
    BATCHES_MS,
    COPIES,
    DEVICES,
    PAGES,
    SEED,
    WayShown,
    recipe,
    spec_of,
)
from mainspring.experiments.policies.refusals import EARLY, TIMES
from mainspring.simulator.costs import ControllerCost
from mainspring.simulator.recorded import read_recording
from mainspring.simulator.run import simulate
from mainspring.simulator.whatif import hastiness, other_policy, what_happened, what_if
from mainspring.telemetry.report import write_json
from mainspring.traces.recipe import build
from mainspring.traces.records import FIRST_REASON, OUTPUTS, REASONS, Records
from mainspring.traces.replayer import ReplayConfig, Replayer

WARM_UP_S = 2.0
"""What comes before is played and not counted: nothing was refused yet, and no margin learnt."""
PATH = WayShown(
    result_us=200.0,
    inputs_us=400.0,
    action_us=0.0,
    turn_us=0.0,
    client_us=800.0,
    controller_us=0.0,
    jitter=0.001,
)
"""The way between processes that the simulated runs have."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """What is played."""

    refuse: str
    """As `SchedulerConfig.refuse`."""
    load: float
    """Multiples of what the devices do in their largest batches."""
    retry_ms: float
    """0 if clients do not come back."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What callers saw, after the warm-up."""

    way: Way
    live: bool
    requests: int
    in_time: float
    """Share of them."""
    late: float
    """Likewise: answered after the deadline."""
    refused: float
    """Likewise."""
    early: float
    """Share of the refused that were refused early."""
    reasons: dict[str, int]
    """How many were refused for which reason."""
    times: list[float]
    """Quantiles (`TIMES`) of when they were refused, in parts of their SLO."""
    after: int
    """Refusals that came after the deadline."""
    again: float | None = None
    """Of those that were refused early, the share that is answered in time if their log is decided again with
    ``last``; None where that was not done."""


def seen_of(way: Way, records: Records, *, live: bool, again: float | None = None) -> Seen:
    """Return what the records of a run say."""
    sent, replied = records.columns()
    counted = sent["intended_ns"] >= round(WARM_UP_S * 1e9)
    sent, replied = sent[counted], replied[counted]
    took = (replied["replied_ns"] - sent["intended_ns"]) / sent["slo_ns"]
    answered, refused = replied["outcome"] == OUTPUTS, replied["outcome"] >= FIRST_REASON
    return Seen(
        way=way,
        live=live,
        requests=len(sent),
        in_time=float((answered & (took <= 1.0)).mean()),
        late=float((answered & (took > 1.0)).mean()),
        refused=float(refused.mean()),
        early=float((replied["outcome"] == EARLY).sum() / max(1, refused.sum())),
        reasons=Counter(
            REASONS[outcome - FIRST_REASON].value for outcome in replied["outcome"][refused].tolist()
        ),
        times=[float(value) for value in np.quantile(took[refused], TIMES)] if refused.any() else [],
        after=int((took[refused] > 1.0).sum()),
        again=again,
    )


def played_live(way: Way, seconds: float) -> Seen:
    """Play a way on a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        run_dir = Path(folder)
        profiles = run_dir / "profiles.csv"
        row = ("model", 4, 4, 16, 3, *BATCHES_MS.values())
        profiles.write_text(",".join(COLUMNS) + "\n" + ",".join(map(str, row)) + "\n")
        tables: dict[str, dict[str, Any]] = {
            "cluster": {"workers": DEVICES, "copies": COPIES},
            "worker": {"pages": PAGES, "io_bytes": 32 << 20},
            "scheduler": {"refuse": way.refuse},
        }
        with cluster_of(run_dir, profiles, tables) as cluster:
            config = ReplayConfig(
                address=cluster.address, seed=SEED, straggler_wait_s=3, retry_ns=round(way.retry_ms * 1e6)
            )
            replayer = Replayer(config)
            try:
                names = sorted(spec.name for spec in replayer.specs)
                asked = recipe(way.load, WARM_UP_S + seconds)
                _, records = replayer.play(build(asked, names), duration_ns=asked.duration_ns)
            finally:
                replayer.close()
        again = None if way.refuse == "last" or way.retry_ms else served_by_last(run_dir / "events")
    return seen_of(way, records, live=True, again=again)


def served_by_last(log: Path) -> float:
    """Return the share of those refused early in a log that are answered in time with ``last``."""
    recording = read_recording(log)
    instead = what_if(recording, other_policy(recording, refuse="last"))
    found = hastiness(what_happened(recording), instead)
    return found.answered / found.early if found.early else 0.0


def played_virtually(way: Way, seconds: float) -> Seen:
    """Play a way in virtual time."""
    spec = spec_of(PATH, way.load, WARM_UP_S + seconds, ControllerCost())
    asking = [msgspec.structs.replace(each, retry_ms=way.retry_ms) for each in spec.workload]
    scheduler = msgspec.structs.replace(spec.scheduler, refuse=way.refuse)
    played = msgspec.structs.replace(spec, workload=tuple(asking), scheduler=scheduler)
    return seen_of(way, simulate(played, analyse=False).records, live=False)


def table(found: list[Seen]) -> Table:
    """Return one row for each run."""
    shown = Table(title="refusals live and in virtual time; times in parts of the SLO, by the caller's clock")
    for column in ("run", "load", "refuse", "comes back", "in time", "points", "late", "refused", "early"):
        shown.add_column(column, justify="left" if column in ("run", "refuse") else "right")
    for column in ("quartiles", "after the deadline", "served by last", "reasons"):
        shown.add_column(column, justify="right")
    last = {
        (each.live, each.way.load, each.way.retry_ms): each.in_time
        for each in found
        if each.way.refuse == "last"
    }
    for each in found:
        way = each.way
        points = 100 * (each.in_time - last[each.live, way.load, way.retry_ms])
        shown.add_row(
            "live" if each.live else "virtual",
            *(f"{way.load:g}", way.refuse, f"{way.retry_ms:g} ms" if way.retry_ms else "no"),
            f"{each.in_time:.2%}",
            "" if way.refuse == "last" else f"{points:+.2f}",
            *(f"{each.late:.2%}", f"{each.refused:.1%}", f"{each.early:.0%}"),
            " / ".join(f"{value:.2f}" for value in each.times),
            str(each.after),
            "" if each.again is None else f"{each.again:.1%}",
            ", ".join(f"{count} {reason}" for reason, count in sorted(each.reasons.items())),
        )
    return shown


def ways(loads: str, retries_ms: str) -> Iterator[Way]:
    """Yield what is played; ``last`` goes before ``early``, so that both meet the same minute."""
    for load, retry_ms, refuse in product(loads.split(","), retries_ms.split(","), ("last", "early")):
        yield Way(refuse=refuse, load=float(load), retry_ms=float(retry_ms))


def main(
    loads: Annotated[str, typer.Option(help="Multiples of what the devices do.")] = "1,1.5",
    retries_ms: Annotated[
        str, typer.Option(help="How long clients wait to come back; 0: they do not.")
    ] = "0,50",
    seconds: Annotated[float, typer.Option(min=1, help="Measured time of each run.")] = 8.0,
    output: Annotated[Path, typer.Option(help="Folder for refusals_live.json.")] = Path("out/policies"),
) -> None:
    """Play the same requests with early refusals and with late ones, live and in virtual time."""
    found: list[Seen] = []
    for way in ways(loads, retries_ms):
        found += [played_live(way, seconds), played_virtually(way, seconds)]
    found.sort(key=lambda each: not each.live)
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / "refusals_live.json", {"machine": this_machine(), "runs": found})
    Console(width=210).print(table(found))


if __name__ == "__main__":
    typer.run(main)
