"""The highest rate at which twelve emulated devices on this machine answer 99 % in time, and what limits it.

The models are the 64 profiles of Clockwork's appendix A in 63 copies each, the requests those of the real
Azure file scaled to a rate (Clockwork, section 6.5: 4,026 models, 12 devices, deadline 100 ms). Sockets,
controller and gateway are real; the devices sleep. ``python -m mainspring.experiments.bench.cluster``,
which ``make bench-cluster`` runs.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import Usage, usage_of_all
from mainspring.traces.arrival import Kind
from mainspring.traces.recipe import Recipe, build
from mainspring.traces.replayer import ReplayConfig, Replayer
from tests.emulated_cluster import cluster_of

PROFILES = Path("../shared/profiles/clockwork_table1.csv")
TRACE = Path("../shared/traces/azure2019_d01_random400_invocations.csv.gz")
DEVICES, COPIES = 12, 63
PAGES = 2_000
SLO_NS = 100_000_000
GOAL = 0.99
STEP = 1.4
IO_BYTES = 32 << 20
SPIN_US = 0
"""Twelve devices that spin before each instant would have no core left for anything else."""
TRACE_START_NS = 10 * 3600 * 1_000_000_000
"""Ten in the morning of the trace's day, so that its quiet night is not what is measured."""


class Trial(msgspec.Struct, frozen=True):
    """One rate, for one stretch of time."""

    offered_rate: float
    gateway_share: float
    goodput_share: float
    """The same by the caller's, from the instant when the request was to be sent: this is what counts here,
    because an overloaded machine lets requests wait before the gateway first sees them."""
    rejected: dict[str, int]
    late: int
    lost: int
    p50_ms: float | None
    p99_ms: float | None
    lag_p99_us: float
    cpu: dict[str, float]
    """Processors that each kind of process kept busy."""
    waited: dict[str, float]
    """Seconds per second that each kind was ready to run and had no processor."""


def try_rate(cluster: LocalCluster, replayer: Replayer, trace: Path, rate: float, seconds: float) -> Trial:
    """Play the trace at ``rate`` requests per second for so long."""
    recipe = Recipe(
        kind=Kind.AZURE2019,
        trace=trace,
        rate=rate,
        duration_ns=round(seconds * 1e9),
        slo_ns=SLO_NS,
        start_ns=TRACE_START_NS,
    )
    workload = build(recipe, [spec.name for spec in replayer.specs])
    names = [job.name for job in cluster.plan.jobs]
    before, own_before = usage_of_all(cluster.supervisor, names), resource.getrusage(resource.RUSAGE_SELF)
    began = time.monotonic()
    summary, _ = replayer.play(workload)
    took_s = time.monotonic() - began
    own = resource.getrusage(resource.RUSAGE_SELF)
    after = usage_of_all(cluster.supervisor, names)
    used = {name: usage.since(before.get(name, Usage())) for name, usage in after.items()}
    own_s = own.ru_utime + own.ru_stime - own_before.ru_utime - own_before.ru_stime
    return Trial(
        offered_rate=summary.offered_rate,
        gateway_share=(summary.goodput + summary.late - summary.gateway_late) / max(1, summary.offered),
        goodput_share=summary.goodput_share,
        rejected=summary.rejected,
        late=summary.late,
        lost=summary.missing,
        p50_ms=summary.p50_ms,
        p99_ms=summary.p99_ms,
        lag_p99_us=summary.replayer_lag_p99_us,
        cpu={**_by_kind({name: each.cpu_ns / 1e9 / took_s for name, each in used.items()}),
             "replayer": own_s / took_s},
        waited=_by_kind({name: each.waited_ns / 1e9 / took_s for name, each in used.items()}),
    )  # fmt: skip


def _by_kind(values: dict[str, float]) -> dict[str, float]:
    kinds: dict[str, float] = {}
    for name, value in values.items():
        kind = "workers" if name.startswith("worker-") else name
        kinds[kind] = kinds.get(kind, 0.0) + value
    return kinds


def climb(
    cluster: LocalCluster, replayer: Replayer, trace: Path, first: float, seconds: float, trials: int
) -> list[Trial]:
    """Return trials of rising rates, up to the first that misses `GOAL`, and one at the last good rate.

    Rates only rise because an overload may leave something behind; the last trial shows whether it did.
    """
    found: list[Trial] = []
    rate = first
    while len(found) < trials:
        found.append(_told(try_rate(cluster, replayer, trace, rate, seconds)))
        if found[-1].goodput_share < GOAL:
            found.append(_told(try_rate(cluster, replayer, trace, rate / STEP, seconds)))
            break
        rate *= STEP
    return found


def _told(trial: Trial) -> Trial:
    typer.echo(
        f"  {trial.offered_rate:7.0f} requests/s: {trial.goodput_share:7.2%} in time "
        f"({trial.gateway_share:.2%} at the gateway), "
        f"p99 {trial.p99_ms or 0:.0f} ms, rejected {trial.rejected}, late {trial.late}"
    )
    return trial


def figures_of(trials: list[Trial]) -> list[Figure]:
    """Return the best trial, the one that failed and the one after it, with who used the processors."""
    failed = next((index for index, trial in enumerate(trials) if trial.goodput_share < GOAL), len(trials))
    named = []
    if failed == 0:
        named.append(("no rate had 99 % in time; the lowest tried", trials[0]))
    else:
        named.append(("highest rate with 99 % in time", trials[failed - 1]))
        named += [("lowest rate without", trial) for trial in trials[failed : failed + 1]]
    named += [("right after that overload", trial) for trial in trials[failed + 1 :]]
    rows = []
    for name, trial in named:
        shares = f"{trial.goodput_share:.2%} in time ({trial.gateway_share:.2%} at the gateway)"
        note = f"{shares}, p99 {trial.p99_ms or 0:.0f} ms"
        rows.append(Figure(name, trial.offered_rate, "requests/s", note=note))
        for kind, cores in trial.cpu.items():
            note = f"ready without a processor {trial.waited[kind]:.2f} s/s" if kind in trial.waited else ""
            rows.append(Figure(f"  processors busy: {kind}", cores, "cores", note=note))
        per_request = sum(trial.cpu.values()) / max(trial.offered_rate, 1) * 1e6
        rows.append(Figure("  CPU of all for each request", per_request, "us"))
    return rows


def main(
    profiles: Annotated[Path, typer.Option(help="Table of profiles.")] = PROFILES,
    trace: Annotated[Path, typer.Option(help="Azure Functions 2019 file.")] = TRACE,
    first_rate: Annotated[float, typer.Option(min=1, help="Requests per second to begin with.")] = 250,
    seconds: Annotated[float, typer.Option(min=1, help="Length of one trial.")] = 4,
    trials: Annotated[int, typer.Option(min=1, help="Rates to try at most.")] = 7,
    copies: Annotated[int, typer.Option(min=1, help="Models of each profile.")] = COPIES,
    devices: Annotated[int, typer.Option(min=1, help="Emulated devices.")] = DEVICES,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Raise the rate until too much is late; print the last good one and what kept the processors busy."""
    missing = [path for path in (profiles, trace) if not path.is_file()]
    if missing:
        typer.echo(f"skipped: there is no {missing[0]}; name the file with --profiles or --trace")
        return
    tables = {
        "cluster": {"workers": devices, "copies": copies},
        "worker": {"pages": PAGES, "spin_us": SPIN_US, "io_bytes": IO_BYTES},
    }
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        began = time.monotonic()
        with cluster_of(Path(folder), profiles, tables) as cluster:
            ready_s = time.monotonic() - began
            replayer = Replayer(
                ReplayConfig(address=cluster.address, straggler_wait_s=3, connect_timeout_s=30)
            )
            typer.echo(f"{len(replayer.specs)} models on {devices} devices, ready after {ready_s:.1f} s")
            try:
                found = climb(cluster, replayer, trace, first_rate, seconds, trials)
            finally:
                replayer.close()
    title = f"{len(replayer.specs)} models on {devices} emulated devices, the Azure trace scaled, SLO 100 ms"
    ready = Figure("until every model was prepared on every device", ready_s, "s")
    publish("cluster", title, [*figures_of(found), ready], output, trials=found)


if __name__ == "__main__":
    typer.run(main)
