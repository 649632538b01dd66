"""The verb ``mainspring plan``: search, write, report, and with a cluster watch its load and plan again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import typer
from rich.console import Console

from mainspring.cli.configuration.policies import check_policy
from mainspring.cli.configuration.tables import ConfigError
from mainspring.cli.views.plans import plan_fields, progress, told
from mainspring.client.client import Client
from mainspring.planner.estimate import Estimate, Estimator
from mainspring.planner.live import Counts, Live
from mainspring.planner.load import LoadWatch
from mainspring.planner.plan import Plan
from mainspring.planner.plan import plan as find
from mainspring.planner.plots import plot_plan
from mainspring.planner.pools.search import Before
from mainspring.planner.pools.trials import Trials, read_record
from mainspring.planner.problem import Pool, Problem
from mainspring.planner.windows import Replayed, Served
from mainspring.planner.writing import digest, planned, toml
from mainspring.simulator.spec_file import parse_spec, read_table
from mainspring.telemetry.report import write_json

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
