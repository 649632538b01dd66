"""``mainspring plan``: the cheapest pool of devices that keeps a promise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.planner.estimate import Estimate
    from mainspring.planner.plan import Plan
    from mainspring.planner.problem import Pool

Spec = Annotated[
    Path, typer.Argument(metavar="SPEC", help="TOML or JSON, its counts of devices open; see docs/pools.md.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Such as workload.rate=500; repeatable."),
]
Search = Annotated[
    str, typer.Option(help="How pools are chosen: exact, exhaustive, ribbon, random, hill-climb, rsm.")
]
Evaluate = Annotated[str, typer.Option(help="How a pool is evaluated: queues, simulate.")]
Confidence = Annotated[
    float,
    typer.Option(
        min=0, max=1, help="Of the interval whose lower end decides; 0: the share in time decides by itself."
    ),
]
Evaluations = Annotated[int | None, typer.Option(min=1, help="Try so many pools at most.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the search. The spec has that of arrivals and draws.")]
Start = Annotated[
    list[str] | None,
    typer.Option(metavar="COUNTS", help="A pool that the search begins with, such as 5,0,0; repeatable."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a search that was interrupted.")]


def plan(
    spec: Spec,
    search: Search = "exact",
    evaluate: Evaluate = "queues",
    confidence: Confidence = 0.95,
    evaluations: Evaluations = None,
    seed: Seed = 0,
    start: Start = None,
    settings: Settings = None,
    resume: Resume = False,
    output: Annotated[
        Path, typer.Option(readable=False, help="Folder for plan.toml, plan.json and the record.")
    ] = Path("out/plan"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Find the cheapest pool of unlike devices that ends enough requests in time."""
    import msgspec

    from mainspring.cli.launcher.run_dir import OUTPUT_REMEDY, claimed

    with claimed(output, "another plan", OUTPUT_REMEDY):
        options = _Options(search, evaluate, confidence, evaluations, seed, _pools(start or []))
        found = _found(spec, settings or [], options, resume, output)
    for warning in found.warnings:
        typer.echo(f"mind: {warning}", err=True)
    typer.echo(msgspec.json.encode(found).decode() if as_json else "\n".join(_told(found, output)))
    if found.best is None:
        raise typer.Exit(1)


class _Options(NamedTuple):
    """What is said of the search."""

    search: str
    evaluate: str
    confidence: float
    evaluations: int | None
    seed: int
    starts: tuple[Pool, ...]


def _pools(texts: Sequence[str]) -> tuple[Pool, ...]:
    """Return pools from texts such as ``5,0,0``."""
    try:
        return tuple(tuple(int(count) for count in text.split(",")) for text in texts)
    except ValueError:
        raise typer.BadParameter(
            "a start is a number of devices of each kind, such as 5,0,0", param_hint="--start"
        ) from None


def _found(path: Path, settings: Sequence[str], options: _Options, resume: bool, output: Path) -> Plan:
    """Search, with a line about how it goes, and write the plan."""
    from rich.console import Console

    from mainspring.cli.configuration.policies import check_policy
    from mainspring.planner.plan import plan as find
    from mainspring.planner.pools.trials import Trials
    from mainspring.planner.writing import digest, planned, toml
    from mainspring.simulator.spec_file import parse_spec, read_table
    from mainspring.telemetry.report import write_json

    table = read_table(path, settings)
    spec = parse_spec(table, path.name, planned=True)
    check_policy(spec.scheduler.policy, spec.scheduler.policy_options)
    record = output / f"evaluations-{digest(spec, options.evaluate, options.confidence)}.jsonl"
    with Console(stderr=True).status("reading") as status:

        def told(trials: Trials) -> None:
            status.update(_progress(trials.tried[-1], len(trials.tried), trials.best))

        known = _known(record, resume)
        found = find(spec, **options._asdict(), record=record, known=known, told=told)
    write_json(output / "plan.json", found)
    if found.best is not None:
        (output / "plan.toml").write_text(toml(planned(table, found.best.pool)), encoding="utf-8")
    else:
        (output / "plan.toml").unlink(missing_ok=True)
    return found


def _known(record: Path, resume: bool) -> list[Estimate]:
    """Return what an interrupted search had; a search that begins again forgets it."""
    from mainspring.cli.configuration.tables import ConfigError
    from mainspring.planner.pools.trials import read_record

    if not resume:
        record.unlink(missing_ok=True)
        return []
    if not record.is_file():
        raise ConfigError(
            f"there is nothing to resume: {record.parent} has no record of a search with this spec, "
            "--evaluate and --confidence"
        )
    return read_record(record)


def _progress(last: Estimate, tried: int, best: Estimate | None) -> str:
    said = f"{tried} tried, last {last.pool} {last.attainment:.2%} in time at {last.price:g}"
    return said + (f"; best {best.pool} at {best.price:g}" if best is not None else "; none holds yet")


def _told(found: Plan, output: Path) -> list[str]:
    """Return what a person is told."""
    tried = len(found.evaluations)
    made = f"{tried} pools tried, {found.violating} of them violating; {found.ended}"
    best = found.best
    if best is None:
        return [*_failed(found), made, str(output / "plan.json")]
    lines = [_line(found, best)]
    one = found.one_kind
    if one is not None:
        lines.append(
            f"saves {found.saved:.1%} of {_named(found, one.pool)}, the best of one kind, {one.price:g} an "
            "hour"
        )
    else:
        lines.append("no pool of one kind holds")
    if found.floor_price is not None:
        above = best.price / found.floor_price - 1
        lines.append(
            f"{above:.1%} above {found.floor_price:g} an hour, below which no scheduler could keep it"
        )
    lines += [made + ("; it is the cheapest" if found.proven else "")]
    return [*lines, f"{output / 'plan.toml'}  {output / 'plan.json'}"]


def _failed(found: Plan) -> list[str]:
    """Say that no pool holds, and what would do."""
    share = f"{found.objective:.4g}"
    nearest = found.nearest
    lines = [f"no pool that was tried ends {share} of the requests in time"]
    if nearest is not None:
        lines.append(f"the nearest: {_line(found, nearest)}")
    if found.advice is None:
        return lines
    advice = found.advice
    for more in advice.more:
        pool = _named(found, more.pool)
        lines.append(f"{more.extra} more {more.kind} would do: {pool} holds, for {more.price:g} an hour")
    if advice.target_ms is not None:
        lines.append(f"or a target of {advice.target_ms:.4g} ms")
    if advice.load_share:
        lines.append(f"or {advice.load_share:.1%} of the load, on {_named(found, advice.load_pool)}")
    return lines


def _line(found: Plan, estimate: Estimate) -> str:
    used = ", ".join(f"{kind} {share:.0%}" for kind, share in estimate.utilisation.items())
    return (
        f"{_named(found, estimate.pool)}: {estimate.price:g} an hour, {estimate.attainment:.2%} in time "
        f"({estimate.low:.2%} to {estimate.high:.2%}), p50 {estimate.p50_ms:.4g} ms, p99 "
        f"{estimate.p99_ms:.4g} ms; busy: {used}"
    )


def _named(found: Plan, pool: Pool) -> str:
    parts = [f"{count} {kind}" for kind, count in zip(found.kinds, pool, strict=True) if count]
    return " + ".join(parts)
