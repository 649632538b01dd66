"""The demonstration of applications that learn: serve, break the best sensor, mend it, report.

Each thing is asked for three times: by an application that learns, by one whose members all count the same,
and by one that always asks the member that is best while all is well. The truth comes `FEEDBACK_S` after the
answers, and only the first learns from it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.run_dir import OUTPUT_REMEDY, claimed, clear
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.learning_demo.sensors import (
    APPLICATIONS,
    BEST,
    BLUR,
    EQUAL,
    FIXED,
    LEARNT,
    Sensors,
    application,
    make_models,
)
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.client.result import InferResult
from mainspring.telemetry.report import write_json

PARTS: Final = ("healthy", f"{BEST} broken", f"{BEST} mended")
THINGS_S: Final = 25.0
"""Things a second, each of which is three requests."""
FEEDBACK_S: Final = 0.5
LINE_S: Final = 2.0
"""Time between two lines."""
HEADINGS = (LEARNT, "equal", f"only {BEST}")
"""Titles of the columns of wrong answers: with learnt weights, with equal ones, and of one model alone."""
WIDTH = max(map(len, HEADINGS))
"""Characters of such a column."""


class LearningDemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choices."""

    duration_s: float
    """Time for all three parts together."""
    slo_ms: float
    output: Path
    seed: int


class Row(msgspec.Struct):
    """A part of the demonstration, and how each application answered in it."""

    part: str
    things: int = 0
    wrong: dict[str, int] = {}
    """Answers in time that were wrong, by application."""
    in_time: dict[str, int] = {}
    weights: dict[str, float] = {}
    """The members' weights in `LEARNT` at the end of the part."""

    def error(self, name: str) -> float:
        """Return the share of an application's answers in time that were wrong; 0 without any."""
        answered = self.in_time.get(name, 0)
        return self.wrong.get(name, 0) / answered if answered else 0.0

    def count(self, name: str, right: bool) -> None:
        """Count an answer that came in time."""
        self.in_time[name] = self.in_time.get(name, 0) + 1
        self.wrong[name] = self.wrong.get(name, 0) + (not right)

    @property
    def kept(self) -> float:
        """The share of all requests that were answered in time."""
        return sum(self.in_time.values()) / (len(APPLICATIONS) * self.things) if self.things else 0.0


class LearningDemoReport(msgspec.Struct, frozen=True):
    """The outcome of the demonstration."""

    rows: list[Row]

    def table(self) -> Table:
        """Return the rows as people read them, for 80 columns."""
        table = Table(
            title="Wrong answers with and without learning", box=SIMPLE, padding=(0, 1), pad_edge=False
        )
        for heading in ("while", "asked", *HEADINGS, "in time", "weights"):
            table.add_column(heading, justify="left" if heading == "while" else "right", no_wrap=True)
        for row in self.rows:
            errors = [f"{row.error(name):.1%}" for name in (LEARNT, EQUAL, FIXED)]
            table.add_row(row.part, f"{row.things:,}", *errors, f"{row.kept:.1%}", _shown(row.weights))
        return table


class _Asked(NamedTuple):
    """A thing that all applications were asked for."""

    due_s: float
    """Instant at which its class is told."""
    row: Row
    truth: int
    answers: dict[str, Future[InferResult]]


def run_learning_demo(options: LearningDemoOptions, console: Console) -> LearningDemoReport:
    """Run the demonstration and write ``learning.json``; ``console`` shows how it goes.

    Raises `ConfigError` if another one is using the output folder, `CompileError` or `StoreError` if a model
    can't be made.
    """
    with claimed(options.output, "another demonstration", OUTPUT_REMEDY):
        console.print("[bold]Compiling[/] models that the store does not hold yet")
        store, run_dir = options.output / "learning-store", options.output / "run"
        make_models(store, lambda text: console.print(f"  {text}", highlight=False))
        clear(run_dir, OUTPUT_REMEDY)
        gateway, controller, page = free_ports(3)
        tables: dict[str, dict[str, Any]] = {
            "cluster": {"store": str(store), "run_dir": str(run_dir), "console": True},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
            "console": {"address": f"http://127.0.0.1:{page}"},
        }
        plan = make_plan(read_config(tables, "the demonstration of learning"))
        console.print(f"[bold]Starting[/] a cluster; its console is at http://127.0.0.1:{page}")
        with (
            LocalCluster(plan, lambda text: console.print(f"[yellow]{text}[/]", highlight=False)) as cluster,
            Client(cluster.address) as client,
        ):
            rows = play(client, options, console)
        report = LearningDemoReport(rows)
        write_json(options.output / "learning.json", msgspec.to_builtins(report))
    return report


def play(client: Client, options: LearningDemoOptions, console: Console) -> list[Row]:
    """Ask and tell what is true for all three parts; return a row for each."""
    for name in APPLICATIONS:
        client.add_graph(application(name, options.slo_ms))
    sensors, rows = Sensors(options.seed), []
    for number, part in enumerate(PARTS):
        headings = "  ".join([f"{heading:>{WIDTH}}" for heading in HEADINGS])
        console.print(f"[bold]{part}[/]: wrong answers, and the weights of {', '.join(BLUR)}\n  {headings}")
        row = Row(part)
        _play_part(
            client, sensors, row, BEST if number == 1 else "", options.duration_s / len(PARTS), console
        )
        rows.append(row)
    return rows


def _play_part(
    client: Client, sensors: Sensors, row: Row, broken: str, seconds: float, console: Console
) -> None:
    """Ask for things at a steady rate; tell each one's class when it is due, of all of them at the end."""
    waiting: deque[_Asked] = deque()
    begin_s = time.monotonic()
    line, line_s = Row(row.part), begin_s + LINE_S
    for number in range(max(1, round(seconds * THINGS_S))):
        time.sleep(max(0.0, begin_s + number / THINGS_S - time.monotonic()))
        readings, truth = sensors.thing(broken)
        answers = {name: client.submit(name, readings) for name in APPLICATIONS}
        waiting.append(_Asked(time.monotonic() + FEEDBACK_S, row, truth, answers))
        row.things += 1
        while waiting and time.monotonic() >= waiting[0].due_s:
            _tell(client, waiting.popleft(), line)
        if time.monotonic() >= line_s:
            _say(client, line, console)
            line, line_s = Row(row.part), line_s + LINE_S
    for asked in waiting:
        _tell(client, asked, line)
    row.weights = _say(client, line, console)


def _tell(client: Client, asked: _Asked, line: Row) -> None:
    """Count the answers of a thing, and tell its class to the application that learns."""
    for name, answer in asked.answers.items():
        try:
            found = answer.result()
        except MainspringError:
            continue
        right = int(found["prediction"][0]) == asked.truth
        for row in (asked.row, line) if not found.late else ():
            row.count(name, right)
        if name == LEARNT and found.timing.learnt is not None:
            client.observe(name, found.timing.learnt.query_id, [asked.truth])


def _say(client: Client, line: Row, console: Console) -> dict[str, float]:
    """Print what the last seconds were like; return the members' weights."""
    reports = {each.spec.name: each for each in client.applications()}
    weights = {each.member: each.weight for each in reports[LEARNT].members}
    errors = "  ".join([f"{line.error(name):{WIDTH}.1%}" for name in (LEARNT, EQUAL, FIXED)])
    console.print(f"  {errors}   {_shown(weights)}", highlight=False)
    return weights


def _shown(weights: Mapping[str, float]) -> str:
    return " ".join([f"{weight:.2f}" for weight in weights.values()])
