"""Ribbon's figures: ``python -m mainspring.experiments.ribbon``, or ``make ribbon``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from mainspring.experiments.ribbon.agreement import Agreement, agreement
from mainspring.experiments.ribbon.changed import LOAD, changed
from mainspring.experiments.ribbon.convergence import Convergence, convergence
from mainspring.experiments.ribbon.data import GAUSSIAN, SETTINGS, SHARED, Setting
from mainspring.experiments.ribbon.figures import draw_figures
from mainspring.experiments.ribbon.fresh import fresh
from mainspring.experiments.ribbon.guided import guided
from mainspring.experiments.ribbon.instances import instances
from mainspring.experiments.ribbon.live import live
from mainspring.experiments.ribbon.optima import Optimum, optimum
from mainspring.experiments.ribbon.report import Report
from mainspring.experiments.ribbon.served import served
from mainspring.experiments.ribbon.timings import timings
from mainspring.experiments.ribbon.watched import watched
from mainspring.planner.problem import Pool
from mainspring.telemetry.report import write_json

PARTS = (
    "agreement",
    "optima",
    "searches",
    "guided",
    "load",
    "instances",
    "timings",
    "served",
    "live",
    "watched",
)
ASKED_FOR = ("served", "live", "watched")
"""Parts that take long, or a machine to themselves."""

Parts = Annotated[
    list[str] | None,
    typer.Argument(help=f"Of {', '.join(PARTS)}; by default all but {', '.join(ASKED_FOR)}."),
]
Seeds = Annotated[
    int,
    typer.Option(min=1, help="Streams of queries: for the mean of rates, and fresh ones of the part served."),
]
Trials = Annotated[int, typer.Option(min=1, help="Seeds of each search.")]
Only = Annotated[str, typer.Option(help="Models, with commas between.")]
Pools = Annotated[
    list[str] | None,
    typer.Option("--pool", help="Of the part served: KEY=2,0,9 has that pool simulated instead of a search."),
]
Seconds = Annotated[
    float, typer.Option(min=15, help="Of the parts live and watched: how long a window of queries lasts.")
]
Shared = Annotated[Path, typer.Option(help="Folder of the artifact's files.")]
Output = Annotated[Path, typer.Option(help="Folder for ribbon.json, the figures and the specs' files.")]


def main(
    parts: Parts = None,
    seeds: Seeds = 5,
    trials: Trials = 20,
    only: Only = "",
    pools: Pools = None,
    seconds: Seconds = 60.0,
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
    report, specs = Report(), output / "specs"
    for part in PARTS if not parts else [each for each in PARTS if each in parts]:
        if parts or part not in ASKED_FOR:
            match part:
                case "served":
                    _serve(report, chosen, given, seeds, specs, shared)
                case "live":
                    report.live = [row for each in chosen for row in live(each, seconds, specs, shared)]
                    show("Pools on a running cluster", report.live)
                case "watched":
                    report.watched = [watched(each, seconds, specs, shared) for each in chosen]
                    show("A change of load on a running cluster", report.watched)
                case _:
                    _compute(part, report, chosen, (seeds, trials), specs, shared)
            write_json(output / "ribbon.json", report)
    for file in (output / "ribbon.json", *draw_figures(report, output)):
        typer.echo(file)


def _compute(
    part: str, report: Report, chosen: list[Setting], counts: tuple[int, int], specs: Path, shared: Path
) -> None:
    """Compute a part and show it; ``counts`` are streams and trials."""
    seeds, trials = counts
    match part:
        case "agreement":
            report.agreement = _agreements(chosen, seeds, specs, shared)
            _show_agreement(report.agreement)
        case "optima":
            report.optima = _optima(chosen, specs, shared)
            _show_optima(report.optima)
        case "searches":
            for each in chosen:
                found, pruned = convergence(each, trials, specs, shared=shared)
                report.searches.extend(found)
                report.pruning.append(pruned)
            _show_searches(report.searches)
            show("Pools that active pruning goes by", report.pruning)
        case "guided":
            report.guided = [guided(each, trials, specs, shared) for each in chosen]
            show("Searches guided by an estimator that is up to 10 % off", report.guided)
        case "load":
            report.load = [changed(each, trials, specs, shared) for each in chosen]
            show(f"Evaluations after the load became {LOAD:g} times as much", report.load)
        case "timings":
            report.timings = [timings(each, specs, shared) for each in chosen]
            show("Processor time of evaluations and searches", report.timings)
        case _:
            report.instances = instances(specs, shared)


def _serve(
    report: Report,
    chosen: list[Setting],
    given: Mapping[str, Pool],
    streams: int,
    specs: Path,
    shared: Path,
) -> None:
    """Search pools under another policy, or simulate those that are given, and play them on fresh streams."""
    report.served = [served(each, specs, pool=given.get(each.key), shared=shared) for each in chosen]
    show("Cheapest pools under another policy", report.served)
    played = [
        fresh(each, found, streams, specs, shared)
        for each, found in zip(chosen, report.served, strict=True)
        if each.key not in given
    ]
    report.fresh = [each for each in played if each is not None]
    show("The same pools on streams that were not searched on", report.fresh)


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
    """Return the optima under the artifact's arrivals, true Poisson arrivals, Gaussian rows, and for p98."""
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


def _show_searches(found: list[Convergence]) -> None:
    table = Table(title="Evaluations until the cheapest pool is found", title_justify="left")
    columns = (
        "model",
        "search",
        "found",
        "until",
        "most",
        "violating",
        "in all",
        "cost",
        "ruled out",
        "paper",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("model", "search") else "right")
    for each in found:
        table.add_row(
            each.model,
            each.search,
            f"{each.found} of {each.seeds}",
            f"{each.until_found:.1f}" if each.until_found is not None else "",
            str(each.most_until_found),
            f"{each.violating:.1f}" if each.violating is not None else "",
            f"{each.evaluations:.1f}",
            f"{each.explored:.1%}" if each.explored is not None else "",
            str(each.ruled_out),
            str(each.paper) if each.search == "ribbon" else "",
        )
    Console(width=160).print(table)


if __name__ == "__main__":
    typer.run(main)
