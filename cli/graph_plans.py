"""The verb ``mainspring plan`` for a spec with graphs: search, write and report devices for each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import typer

from mainspring.planner.graph_picture import draw_plan
from mainspring.planner.graph_queues import GraphProblem, GraphQueues, read_graph_problem
from mainspring.planner.inferline import GraphPlan, plan_graph
from mainspring.planner.shared import SharedPlan, SharedPools, share_devices
from mainspring.planner.writing import planned, planned_steps, toml
from mainspring.simulator.spec import SimulationSpec
from mainspring.simulator.spec_file import Table
from mainspring.telemetry.report import write_json


def plan_graphs(
    table: Table,
    spec: SimulationSpec,
    output: Path,
    search: str,
    evaluations: int | None,
    confidence: float,
    *,
    shared: bool,
    as_json: bool,
) -> bool:
    """Search, write ``plan.toml`` and ``plan.json`` and report; return whether the plan is within the kinds'
    bounds. With ``shared`` its steps share the devices. Raises `PlanError`."""
    problem = read_graph_problem(spec)
    (output / "plan.toml").unlink(missing_ok=True)
    estimator = GraphQueues(problem, confidence)
    found = plan_graph(estimator, search, evaluations)
    draw_plan(found, estimator, output / "plan.png")
    together = _shared(found, problem, confidence) if shared and found.feasible else None
    write_json(output / "plan.json", plan_fields(found, together))
    lines = told(found, problem) + _told_shared(found, problem, together, shared=shared)
    if found.feasible:
        heading = "".join(f"# {line}\n" for line in steps_table(found, problem))
        if together is not None:
            heading = f"# {problem.name}, whose steps share the devices\n"
        own = _spec_of(table, found, problem)
        text = toml(own if together is None else planned(table, found.kinds, together.pool))
        (output / "plan.toml").write_text(heading + "\n" + text, encoding="utf-8")
        lines.append(f"{output / 'plan.toml'}  {output / 'plan.json'}  {output / 'plan.png'}")
    typer.echo(msgspec.json.encode(plan_fields(found, together)).decode() if as_json else "\n".join(lines))
    return found.feasible


def _spec_of(table: Table, found: GraphPlan, problem: GraphProblem) -> Table:
    """Return the plan as a spec: devices of each model's own, unless its steps are of several kinds."""
    stations = [
        (step.model, each.kind, each.batch, each.replicas)
        for step, each in zip(problem.steps, found.best.stations, strict=True)
    ]
    try:
        return planned_steps(table, found.kinds, stations)
    except ValueError as error:
        typer.echo(f"{error}: all steps share the devices", err=True)
        return planned(table, found.kinds, problem.pool(found.best.stations))


def _shared(found: GraphPlan, problem: GraphProblem, confidence: float) -> SharedPlan | None:
    return share_devices(SharedPools(problem, confidence), problem.pool(found.best.stations))


def _told_shared(
    found: GraphPlan, problem: GraphProblem, together: SharedPlan | None, *, shared: bool
) -> list[str]:
    """Return what sharing saves, for a person."""
    if not shared or not found.feasible:
        return []
    if together is None:
        return [
            "shared, these devices do not keep the promise under the spec's policy: each step owns its own"
        ]
    counts = zip(together.pool, problem.kinds, strict=True)
    pool = " + ".join(f"{count} {kind.name}" for count, kind in counts if count)
    return [
        f"shared: {pool}, {together.price:.4g} an hour, {1 - together.price / found.best.price:.1%} less; "
        f"{together.attainment:.2%} in time, {together.simulated} simulated"
    ]


def plan_fields(found: GraphPlan, together: SharedPlan | None = None) -> dict[str, Any]:
    """Return what ``plan.json`` holds: the plan, its stations with the names of steps and kinds."""
    fields: dict[str, Any] = msgspec.to_builtins(found)
    for step, station in zip(found.steps, fields["best"]["stations"], strict=True):
        station.update(step=step, kind=found.kinds[station["kind"]])
    return {**fields, "gap": found.gap, "shared": msgspec.to_builtins(together)}


def steps_table(found: GraphPlan, problem: GraphProblem) -> list[str]:
    """Return a line for each step, below a heading."""
    lines = [f"{'step':<24} {'kind':<18} {'replicas':>8} {'batch':>5} {'busy':>5} {'price':>9}"]
    rows = zip(problem.steps, found.best.stations, problem.rates, strict=True)
    for step, station, rate in rows:
        kind = problem.kinds[station.kind]
        busy = rate / (station.replicas * step.throughput(station.kind, station.batch))
        lines.append(
            f"{step.name[:24]:<24} {kind.name[:18]:<18} {station.replicas:>8} {station.batch:>5} "
            f"{busy:>5.0%} {station.replicas * kind.price:>9.4g}"
        )
    return lines


def told(found: GraphPlan, problem: GraphProblem) -> list[str]:
    """Return the lines for a person."""
    best = found.best
    lines = [
        *steps_table(found, problem),
        f"{best.price:.4g} an hour, {best.attainment:.2%} in time ({best.low:.2%} to {best.high:.2%})",
        f"p50 {best.p50_ms:.4g} ms, p99 {best.p99_ms:.4g} ms at {found.rate:.4g} queries a second; "
        f"{found.evaluations} tried",
    ]
    if found.gap is not None:
        proof = "the cheapest" if found.proven else "maybe not the cheapest: --evaluations ended the search"
        lines.append(f"the greedy plan costs {found.gap:.1%} more than this; {proof}")
    if found.feasible:
        return lines
    rate = f"carry up to {found.most_rate:.4g} queries a second" if found.most_rate else "carry no such load"
    needs = ", ".join(f"{count} more {kind}" for kind, count in found.beyond.items())
    return [
        f"no plan within the kinds' most; it would take {needs}:",
        *lines,
        f"within most, plans {rate}",
    ]
