"""Triton's own load generator against Mainspring over HTTP and gRPC: closed loops and Poisson arrivals.

``python -m mainspring.experiments.bench.perf_analyzer``, which ``make perf-analyzer`` runs. The program is in
the wheel of tritonclient 2.46.0; it needs Debian's libb64-0d and a CUDA runtime library, though no GPU. The
cluster is of real processes and one emulated device, so that the execution time is known.
"""

from __future__ import annotations

import csv
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.cli.launcher.addresses import free_ports
from mainspring.experiments.bench.foreign import Unavailable, debian_package, environment, libraries
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.serving import cluster_of, write_profile

PACKAGES = ("tritonclient==2.46.0", "nvidia-cuda-runtime-cu12")
EXECUTE_MS = 2.0
_TIMEOUT_S = 120
_STABLE = ("--stability-percentage", "40", "--max-trials", "8", "--measurement-interval")
"""Windows may differ by so much: others use this machine too. Three in a row must agree, of eight at most."""


class Tool(msgspec.Struct, frozen=True):
    """Where the program is, and the variables that it needs."""

    path: Path
    variables: dict[str, str]


class Load(msgspec.Struct, frozen=True):
    """One way to ask."""

    name: str
    options: tuple[str, ...]
    protocols: tuple[str, ...] = ("grpc", "http")


LOADS = (
    Load("1 at a time", ("--concurrency-range", "1")),
    Load("8 at a time", ("--concurrency-range", "8")),
    Load("Poisson, 150 r/s", ("--request-rate-range", "150", "--request-distribution", "poisson")),
    Load("8 at a time, shared memory", ("--concurrency-range", "8", "--shared-memory", "system")),
    Load("8 at a time, one stream", ("--concurrency-range", "8", "--async", "--streaming"), ("grpc",)),
)


def tool() -> Tool:
    """Return the program, set up if need be; raise `Unavailable`."""
    folder = environment("perf-analyzer", PACKAGES, dependencies=False)
    variables = libraries(debian_package("libb64-0d"), folder / "lib")
    path = folder / "bin" / "perf_analyzer"
    try:
        subprocess.run([path, "--version"], env=variables, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"perf_analyzer does not start here: {error}") from None
    return Tool(path, variables)


def measure(program: Tool, protocol: str, address: str, load: Load, window_ms: int) -> list[Figure]:
    """Run one load and return its throughput and latency; what the program says goes to the screen."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        options = ["-m", "model", "-i", protocol, "-u", address, *load.options, *_STABLE, str(window_ms)]
        typer.echo(f"\n$ perf_analyzer {' '.join(options)}")
        done = subprocess.run(
            [program.path, *options, "-f", table],
            env=program.variables,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        typer.echo(_without_blanks(done.stdout))
        if not table.exists():
            typer.echo(done.stderr)
            return []
        with table.open() as file:
            row = next(csv.DictReader(file), None)
    return [] if row is None else _figures(f"{protocol}, {load.name}", row)


def _figures(name: str, row: dict[str, str]) -> list[Figure]:
    return [
        Figure(f"{name}: throughput", float(row["Inferences/Second"]), "r/s"),
        Figure(f"{name}: median", float(row["p50 latency"]) / 1e3, "ms"),
        Figure(f"{name}: p99", float(row["p99 latency"]) / 1e3, "ms"),
    ]


def _without_blanks(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip())


def main(
    window_ms: Annotated[int, typer.Option(help="Length of perf_analyzer's windows.")] = 1_000,
    protocol: Annotated[str, typer.Option(help="grpc, http or both.")] = "both",
    output: Annotated[Path, typer.Option(help="Folder for perf-analyzer.json.")] = OUTPUT,
) -> None:
    """Measure every load over every protocol."""
    try:
        program = tool()
    except Unavailable as why:
        typer.echo(f"skipped: {why}")
        return
    ports = dict(zip(("http", "grpc"), free_ports(2), strict=True))
    addresses = {f"{name}_address": f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        profiles = write_profile(
            Path(folder) / "profiles.csv", input_kb=4, output_kb=4, execute_ms=EXECUTE_MS
        )
        with cluster_of(Path(folder) / "run", profiles, {"gateway": addresses}):
            for name in ("grpc", "http") if protocol == "both" else (protocol,):
                for load in LOADS:
                    if name in load.protocols:
                        figures += measure(program, name, f"127.0.0.1:{ports[name]}", load, window_ms)
    publish("perf-analyzer", f"perf_analyzer against a model of {EXECUTE_MS:g} ms a row", figures, output)


if __name__ == "__main__":
    typer.run(main)
