"""Ribbon's figures: ``python -m mainspring.experiments.ribbon``, or ``make ribbon``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from mainspring.experiments.ribbon.data import GAUSSIAN, SETTINGS, SHARED, Arrivals, Setting, rates, spec_of
from mainspring.experiments.ribbon.optima import Fresh, Optimum, Served, fresh, optimum, served
from mainspring.planner.problem import Pool, read_problem
from mainspring.planner.queues import Queues
from mainspring.telemetry.report import write_json

NEAR = 0.005
"""Pools whose rate in the artifact is this near to 99 % are near it."""
WORST = 3


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Difference between two tables of rates."""

    model: str
    arrivals: str
    target_ms: float
    seeds: int
    pools: int
    within_point: float
    """The share of pools whose rates differ by one point at most."""
    near: int
    """Pools within half a point of 99 %."""
    near_within: float
    """The share of these whose rates differ by 0.3 points at most."""
    near_most: float
    """The greatest difference of these, in points."""
    near_mean: float
    worst: list[tuple[Pool, float, float]]
    """Pools with the artifact's rate and ours, the greatest differences first."""


def agreement(
    setting: Setting, seeds: int, arrivals: Arrivals, target_ms: float, folder: Path, shared: Path = SHARED
) -> Agreement | None:
    """Evaluate every pool of the artifact's table, the mean over seeds; None without a table."""
    table = rates(setting, shared)
    if table is None:
        return None
    pools = list(table)
    found = np.zeros(len(pools))
    for seed in range(seeds):
        spec = spec_of(setting, folder, seed=seed, arrivals=arrivals, target_ms=target_ms, shared=shared)
        queues = Queues(read_problem(spec), confidence=0.0)
        found += [queues.evaluate(pool, whole=True).attainment for pool in pools]
    found /= seeds
    theirs = np.array(list(table.values()))
    apart = 100 * (found - theirs)
    near = np.abs(theirs - 0.99) <= NEAR + 1e-9
    worst = np.argsort(-np.abs(apart))[:WORST].tolist()
    return Agreement(
        model=setting.name,
        arrivals=arrivals,
        target_ms=target_ms,
        seeds=seeds,
        pools=len(pools),
        within_point=float((np.abs(apart) <= 1).mean()),
        near=int(near.sum()),
        near_within=float((np.abs(apart[near]) <= 0.3).mean()),
        near_most=float(np.abs(apart[near]).max()),
        near_mean=float(apart[near].mean()),
        worst=[(pools[place], float(theirs[place]), float(found[place])) for place in worst],
    )


class Report(msgspec.Struct, kw_only=True):
    """Results; empty where a part was not asked for."""

    agreement: list[Agreement] = []
    optima: list[Optimum] = []
    served: list[Served] = []
    fresh: list[Fresh] = []


PARTS = ("agreement", "optima", "served")
LONG = "served"
"""The part that takes minutes."""
RESULTS, SPECS = "ribbon.json", "specs"

Parts = Annotated[
    list[str] | None,
    typer.Argument(help=f"Of {', '.join(PARTS)}; by default all but {LONG}, which takes minutes."),
]
Seeds = Annotated[
    int,
    typer.Option(min=1, help="Streams of queries: for the mean of rates, and fresh ones of the part served."),
]
Only = Annotated[str, typer.Option(help="Models, with commas between.")]
Pools = Annotated[
    list[str] | None,
    typer.Option("--pool", help="Of the part served: KEY=2,0,9 has that pool simulated instead of a search."),
]
Shared = Annotated[Path, typer.Option(help="Folder of the artifact's files.")]
Output = Annotated[Path, typer.Option(help="Folder for ribbon.json and the specs' files.")]


def main(
    parts: Parts = None,
    seeds: Seeds = 5,
    only: Only = "",
    pools: Pools = None,
    shared: Shared = SHARED,
    output: Output = Path("out/ribbon"),
) -> None:
    """Compare estimates with the artifact's tables, and the cheapest pools with the paper's."""
    names = only.split(",") if only else [each.key for each in SETTINGS]
    chosen = [each for each in SETTINGS if each.key in names or each.name in names]
    wrong = [part for part in parts or () if part not in PARTS]
    if wrong or not chosen:
        raise typer.BadParameter(
            f"choose of {', '.join(PARTS)}, and of {', '.join(each.key for each in SETTINGS)}"
        )
    if not (shared / "ribbon" / "price.csv").is_file():
        raise typer.BadParameter(f"{shared} has no ribbon/price.csv: name the folder of the artifact's files")
    output.mkdir(parents=True, exist_ok=True)
    given = {key: tuple(map(int, pool.split(","))) for key, pool in (each.split("=") for each in pools or ())}
    report, specs = Report(), output / SPECS
    for part in [each for each in PARTS if (each in parts if parts else each != LONG)]:
        match part:
            case "agreement":
                report.agreement = _agreements(chosen, seeds, specs, shared)
                _show_agreement(report.agreement)
            case "optima":
                report.optima = _optima(chosen, specs, shared)
                _show_optima(report.optima)
            case _:
                _serve(report, chosen, given, seeds, output, shared)
        write_json(output / RESULTS, report)
    typer.echo(output / RESULTS)


def _serve(
    report: Report,
    chosen: list[Setting],
    given: Mapping[str, Pool],
    streams: int,
    output: Path,
    shared: Path,
) -> None:
    """Search and confirm one model's pool after the other; print and write each when it is there."""
    specs = output / SPECS
    for each in chosen:
        began = monotonic()
        found = served(each, specs, pool=given.get(each.key), shared=shared)
        report.served.append(found)
        show(f"{each.name}: the cheapest pool under another policy", [found])
        played = None if each.key in given else fresh(each, found, streams, specs, shared)
        if played is not None:
            report.fresh.append(played)
            show("The same pool on streams that were not searched on", [played])
        write_json(output / RESULTS, report)
        typer.echo(f"{each.name} took {monotonic() - began:.0f} s")


def show(title: str, found: Sequence[msgspec.Struct]) -> None:
    """Print results as a table, a column for each field."""
    table = Table(title=title, title_justify="left")
    for column in found[0].__struct_fields__ if found else ():
        table.add_column(column.replace("_", " "), justify="right")
    for each in found:
        table.add_row(*[_cell(value) for value in msgspec.structs.astuple(each)])
    Console(width=180).print(table)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, list):
        return f"{len(value)} values"
    return "" if value is None else str(value)


def _agreements(chosen: list[Setting], seeds: int, folder: Path, shared: Path) -> list[Agreement]:
    found = [agreement(each, seeds, "artifact", each.artifact_ms, folder, shared) for each in chosen]
    return [each for each in found if each is not None]


def _optima(chosen: list[Setting], folder: Path, shared: Path) -> list[Optimum]:
    found = []
    for each in chosen:
        found.append(optimum(each, folder, shared=shared))
        if each.artifact_ms != each.target_ms:
            found.append(optimum(each, folder, target_ms=each.artifact_ms, shared=shared))
        found.append(optimum(each, folder, arrivals="poisson", shared=shared))
        found.append(optimum(each, folder, rows=GAUSSIAN, shared=shared))
        found.append(optimum(each, folder, attainment=0.98, shared=shared))
    return found


def _show_agreement(found: list[Agreement]) -> None:
    table = Table(title="Rates of pools, the artifact's and ours", title_justify="left")
    for column in ("model", "target", "pools", "within 1 point", "near 99 %", "within 0.3", "most", "mean"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for each in found:
        table.add_row(
            each.model,
            f"{each.target_ms:g} ms",
            str(each.pools),
            f"{each.within_point:.1%}",
            str(each.near),
            f"{each.near_within:.1%}",
            f"{each.near_most:.2f}",
            f"{each.near_mean:+.2f}",
        )
    Console().print(table)


def _show_optima(found: list[Optimum]) -> None:
    table = Table(title="Cheapest pools", title_justify="left")
    columns = (
        "model",
        "arrivals",
        "rows",
        "share",
        "target",
        "pool",
        "an hour",
        "one kind",
        "saved",
        "paper",
    )
    for column in (*columns, "floor", "tried"):
        table.add_column(column)
    for each in found:
        table.add_row(
            each.model,
            each.arrivals,
            each.rows,
            f"{each.percentile:.0%}",
            f"{each.target_ms:g} ms",
            " ".join(map(str, each.pool)) if each.pool else "none",
            f"{each.price:.3f}" if each.price else "",
            " ".join(map(str, each.one_kind)) if each.one_kind else "none",
            f"{each.saved:.1%}" if each.saved is not None else "",
            f"{each.paper_saved:.0%}",
            f"{each.floor_price:.2f}" if each.floor_price else "",
            f"{each.evaluations} of {each.pools}",
        )
    Console(width=160).print(table)


if __name__ == "__main__":
    typer.run(main)
