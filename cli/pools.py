"""The verb ``mainspring plan``: search, write, report, and with a cluster watch its load and plan again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import typer
from rich.console import Console

from mainspring.cli.configuration.policies import check_policy
from mainspring.client.client import Client
from mainspring.messages.tables import ConfigError
from mainspring.planner.estimate import Estimate, Estimator, told_ms
from mainspring.planner.live import Counts, Live, LoadWatch
from mainspring.planner.plan import Plan
from mainspring.planner.plan import plan as find
from mainspring.planner.problem import Pool, Problem
from mainspring.planner.search import Before, Trials, read_record
from mainspring.planner.windows import Replayed, Served
from mainspring.planner.writing import digest, planned, plot_plan, toml
from mainspring.simulator.spec_file import parse_spec, read_table
from mainspring.telemetry.report import write_json


def progress(last: Estimate, tried: int, best: Estimate | None) -> str:
    """Return one line about a search that goes on."""
    did = (
        f"{last.attainment:.2%} in time{'' if last.complete else ' so far'}"
        if last.queries
        else "does not get through what waited"
    )
    said = f"{tried} tried, last {last.pool} {did} at {last.price:g}"
    return said + (f"; best {best.pool} at {best.price:g}" if best is not None else "; none holds yet")


def plan_fields(found: Plan) -> dict[str, Any]:
    """Return what ``plan.json`` holds: a plan, in which the share of an evaluation that was given up stands
    apart, for it is not that of all requests."""
    fields: dict[str, Any] = msgspec.to_builtins(found)
    for estimate in _estimates(fields):
        if not estimate["complete"]:
            estimate["attainment_when_given_up"] = estimate["attainment"]
            estimate.update(dict.fromkeys(("attainment", "low", "high", "reached_ms")))
    return fields


def _estimates(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every estimate within what was made of a plan."""
    if isinstance(value, dict):
        if {"attainment", "complete"} <= value.keys():
            yield value
        for each in list(value.values()):
            yield from _estimates(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _estimates(each)


def told(found: Plan, output: Path) -> list[str]:
    """Return the lines for a person."""
    tried = len(found.evaluations)
    made = f"{tried} pools tried, {found.violating} of them violating; {found.ended}"
    best = found.best
    if best is None:
        return [*_failed(found), made, str(output / "plan.json")]
    lines = [_line(found, best)]
    one = found.one_kind
    if one is not None:
        alone = f"{_named(found, one.pool)}, the best of one kind, {one.price:g} an hour"
        saved = found.saved or 0.0
        lines.append(f"saves {saved:.1%} of {alone}" if saved >= 0 else f"costs more than {alone}")
    else:
        lines.append("no pool of one kind holds")
    if found.floor_price is not None:
        above = best.price / found.floor_price - 1
        lines.append(
            f"{above:.1%} more than {found.floor_price:g} an hour, for less than which no scheduler could "
            "keep the promise"
        )
    lines += [made + ("; it is the cheapest" if found.proven else "")]
    return [*lines, f"{output / 'plan.toml'}  {output / 'plan.json'}"]


def _failed(found: Plan) -> list[str]:
    """Say that no pool holds, and what would do."""
    share = f"{found.objective:.10g}"
    nearest = found.nearest
    which = "within the kinds' most" if found.proven else "that was tried"
    lines = [f"no pool {which} ends {share} of the requests in time"]
    if nearest is not None:
        lines.append(f"the nearest: {_line(found, nearest)}")
    if found.advice is None:
        return lines
    advice = found.advice
    for more in advice.more:
        pool = _named(found, more.pool)
        lines.append(f"{more.extra} more {more.kind} would do: {pool} holds, for {more.price:g} an hour")
    if advice.target_ms is not None:
        lines.append(f"or a target of {told_ms(advice.target_ms)}")
    if advice.load_share:
        lines.append(f"or {advice.load_share:.1%} of the load, on {_named(found, advice.load_pool)}")
    return lines


def _line(found: Plan, estimate: Estimate) -> str:
    """Return what a pool does, as far as it is known: a cluster's own requests are counted, not timed."""
    used = ", ".join(f"{kind} {share:.0%}" for kind, share in estimate.utilisation.items())
    timed = f", p50 {told_ms(estimate.p50_ms)}, p99 {told_ms(estimate.p99_ms)}" if estimate.p99_ms else ""
    so_far = "" if estimate.complete else " when it was given up"
    return (
        f"{_named(found, estimate.pool)}: {estimate.price:g} an hour, {estimate.attainment:.2%} in "
        f"time{so_far} ({estimate.low:.2%} to {estimate.high:.2%}){timed}"
        + (f"; busy: {used}" if used else "")
    )


def _named(found: Plan, pool: Pool) -> str:
    parts = [f"{count} {kind}" for kind, count in zip(found.kinds, pool, strict=True) if count]
    return " + ".join(parts)


LOOK_S = 1.0


class Cluster(NamedTuple):
    """The cluster that pools are evaluated on."""

    address: str
    token: str | None
    window_s: float | None
    """Time for which its own requests are watched; None if the spec's are replayed."""


class Options(NamedTuple):
    """Options of the search."""

    search: str
    evaluate: str
    prior: str | None
    confidence: float
    evaluations: int | None
    seed: int
    kinds: int
    starts: tuple[Pool, ...]


class Planning:
    """Plans of one spec."""

    def __init__(
        self,
        path: Path,
        settings: Sequence[str],
        options: Options,
        cluster: Cluster | None,
        output: Path,
        *,
        as_json: bool,
    ) -> None:
        """Read the spec; raise `ConfigError`."""
        self._table = read_table(path, settings)
        self._spec = parse_spec(self._table, path.name, planned=True)
        check_policy(self._spec.scheduler.policy, self._spec.scheduler.policy_options)
        self._options = options
        self._cluster = cluster
        self._output = output
        self._as_json = as_json
        self._before: Plan | None = None
        self._load = 1.0

    def run(self, *, resume: bool = False) -> Plan:
        """Search, write the plan and report it; raise `PlanError` and as the estimator."""
        options, cluster = self._options, self._cluster
        if cluster is None:
            found = self._found(options.evaluate, resume=resume)
        else:
            with Client(cluster.address, token=cluster.token) as client:
                found = self._found(partial(self._live, client), resume=resume)
        self._write(found)
        return found

    def watch(self) -> None:
        """Watch the cluster's load until Ctrl-C, and plan again whenever it has changed."""
        assert self._cluster is not None
        while True:
            before = self._before
            assert before is not None
            with Client(self._cluster.address, token=self._cluster.token) as client:
                rate = changed(client, LoadWatch(before.rate, before.slo_ms / 1e3))
            typer.echo(f"the load has changed: {rate:.4g} requests a second; planning again")
            self._load = before.load * rate / before.rate
            self.run()

    def _live(self, client: Client, problem: Problem, confidence: float) -> Estimator:
        """Return the estimator on the cluster."""
        assert self._cluster is not None
        address, token, window_s = self._cluster
        own = None if window_s is None else Served(problem, client, window_s)
        window = own or Replayed(problem, address, token)
        say: Callable[[str], None] = partial(typer.echo, err=True)
        return Live(problem, confidence, client=client, window=window, say=say)

    def _found(self, evaluate: str | Callable[[Problem, float], Estimator], *, resume: bool) -> Plan:
        """Search, with a line about how it goes."""
        options = self._options
        name = digest(self._spec, options.evaluate, options.confidence, self._load)
        record = self._output / f"evaluations-{name}.jsonl"
        with Console(stderr=True).status("reading") as status:

            def tell(trials: Trials) -> None:
                status.update(progress(trials.tried[-1], len(trials.tried), trials.best))

            try:
                return find(
                    self._spec,
                    **{**options._asdict(), "evaluate": evaluate},
                    load=self._load,
                    before=self._followed(),
                    record=record,
                    known=known(record, resume),
                    told=tell,
                )
            except KeyboardInterrupt:
                if record.is_file():
                    typer.echo(f"{record} has what was evaluated: go on with --resume", err=True)
                raise

    def _followed(self) -> Before | None:
        before = self._before
        if before is None or before.best is None:
            return None
        return Before(before.evaluations, before.best, self._load / before.load)

    def _write(self, found: Plan) -> None:
        self._before = found
        write_json(self._output / "plan.json", plan_fields(found))
        if found.best is not None:
            text = toml(planned(self._table, found.kinds, found.best.pool))
            (self._output / "plan.toml").write_text(text, encoding="utf-8")
        else:
            (self._output / "plan.toml").unlink(missing_ok=True)
        plot_plan(found, self._output)
        for warning in found.warnings:
            typer.echo(f"mind: {warning}", err=True)
        lines = told(found, self._output)
        typer.echo(msgspec.json.encode(plan_fields(found)).decode() if self._as_json else "\n".join(lines))


def changed(client: Client, watch: LoadWatch) -> float:
    """Wait for a change of load; return the rate that there is now, in requests a second."""
    while True:
        rate = watch.take(time.monotonic(), Counts.of(client.status()))
        if rate is not None:
            return rate
        time.sleep(LOOK_S)


def known(record: Path, resume: bool) -> list[Estimate]:
    """Return what an interrupted search had; a search that begins again forgets it. Raises `ConfigError`."""
    if not resume:
        record.unlink(missing_ok=True)
        return []
    if not record.is_file():
        raise ConfigError(
            f"there is nothing to resume: {record.parent} has no record of a search with this spec, "
            "--evaluate and --confidence"
        )
    return read_record(record)
