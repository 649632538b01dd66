"""A workload by name and numbers, as a command line or an experiment gives it, and how to build it.

A trace file's header says which workload it holds, so that users need not name it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from mainspring.traces import azure, listed
from mainspring.traces.arrival import FROM_FILE, SECOND_NS, Kind, WorkloadError
from mainspring.traces.azure import read_azure2019, read_azure2021
from mainspring.traces.generators import Gamma, Poisson, azure_like, closed_loop, zipf_rates
from mainspring.traces.listed import read_listed
from mainspring.traces.source import Playable
from mainspring.traces.tracefile import TraceError, read_header
from mainspring.traces.workload import Workload, at_rate

DEFAULT_RATE = 100.0


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The workload to build; a number that a kind does not use is ignored, a file is refused."""

    kind: Kind = Kind.SYNTHETIC
    duration_ns: int = 60 * SECOND_NS
    slo_ns: int | None = 100_000_000
    slos_ns: tuple[int, ...] = ()
    """SLOs that the models take in turn, in the place of ``slo_ns``."""
    rows: int = 1
    seed: int = 0
    trace: Path | None = None
    """The file of an Azure workload, or of listed arrivals (`listed`)."""
    rate: float | None = None
    """Requests per second on average over the duration; None for the trace's own, or 100 for generators."""
    scale: float = 1.0
    """Factor on the number of requests, on top of ``rate``."""
    time_scale: float = 1.0
    """Factor on the trace's time: 0.1 plays ten minutes of it in one."""
    start_ns: int = 0
    """Instant of the trace to begin at, in the trace's own time."""
    cv: float = 4.0
    """Coefficient of variation of gamma's gaps."""
    zipf_exponent: float = 0.0
    """Skew of poisson's and gamma's rates over models; 0 for none."""
    concurrency: int = 4
    """Requests that each model's closed-loop client keeps in flight."""
    shapes: dict[str, str] = {}
    """Distributions of the sizes of open dimensions, by symbol (`shapes`); of others the limit is taken."""
    think_ns: int = 0
    """Time that such a client pauses between an answer and its next request."""

    def title(self, models: int) -> str:
        """Return what is played, for a heading."""
        what = self.kind.value
        if self.trace is not None and self.kind in FROM_FILE:
            what += f" ({self.trace.name})"
        slo = "no SLO" if self.slo_ns is None else f"SLO {self.slo_ns / 1e6:g} ms"
        if self.kind is Kind.CSV and self.trace is not None:
            slo = listed.slo_title(self.trace, self.slo_ns)
        elif self.slos_ns:
            slo = f"SLOs {', '.join(f'{each / 1e6:g}' for each in self.slos_ns)} ms"
        if self.kind is Kind.CLOSED:
            load = f"{self.concurrency} in flight each"
            if self.think_ns:
                load += f" {self.think_ns / 1e6:g} ms after an answer"
        elif self.rate is None and self.kind in FROM_FILE:
            load = f"scale {self.scale:g}"
        else:
            load = f"{(self.rate or DEFAULT_RATE) * self.scale:g} requests/s"
        return f"{what}: {models} model{'s' * (models != 1)}, {load}, {slo}"


def build(recipe: Recipe, models: Sequence[str]) -> Playable:
    """Build the workload for these models.

    Raises `WorkloadError` (`tracefile.TraceError` for a bad file) saying what would be right.
    """
    if recipe.duration_ns <= 0:
        raise WorkloadError(f"a workload of {recipe.duration_ns} ns has no time; give a positive duration")
    check_trace(recipe.kind, recipe.trace)
    slos_ns = _slos_ns(recipe, models)
    if recipe.kind is Kind.CLOSED:
        return closed_loop(
            models,
            concurrency=recipe.concurrency,
            duration_ns=recipe.duration_ns,
            slo_ns=recipe.slo_ns,
            rows=recipe.rows,
            think_ns=recipe.think_ns,
            slos_ns=slos_ns,
        )
    workload = _uncut(recipe, models).cut(0, recipe.duration_ns)
    if recipe.kind is Kind.CSV:
        return workload
    return workload.with_requests(slo_ns=recipe.slo_ns, rows=recipe.rows, slos_ns=slos_ns)


def mean_rates(recipe: Recipe, models: Sequence[str], rng: np.random.Generator) -> dict[str, float]:
    """Return how many requests per second of the duration each model has on average.

    Those of an open loop: by its formula, or counted in what ``rng`` would have it play. Raises as `build`,
    and `WorkloadError` for closed loops, where it depends on the answers.
    """
    check_trace(recipe.kind, recipe.trace)
    if recipe.kind is Kind.CLOSED:
        raise WorkloadError("closed-loop clients have no rate: when they send depends on the answers")
    return _uncut(recipe, models).mean_rates(recipe.duration_ns, rng)


def at_load(
    recipe: Recipe,
    models: Sequence[str],
    load: float,
    device_s: Mapping[str, float],
    rng: np.random.Generator,
) -> Recipe:
    """Return the recipe scaled so that its requests ask for ``load`` times what the devices can do.

    ``device_s`` says for each model which part of all devices' time a request takes, in seconds (`capacity`).
    Raises as `mean_rates`, and `WorkloadError` for a workload without any request.
    """
    rates = mean_rates(recipe, models, rng)
    asked = sum(rate * device_s[model] for model, rate in rates.items())
    if not asked:
        raise WorkloadError(
            f"the workload has no request in its first {recipe.duration_ns / SECOND_NS:g} s, so no scale"
            f" gives a load of {load:g}; start later in the trace or take a longer part of it"
        )
    return msgspec.structs.replace(recipe, scale=recipe.scale * load / asked)


def _slos_ns(recipe: Recipe, models: Sequence[str]) -> dict[str, int]:
    """Return the SLO of each model where they take several in turn."""
    slos_ns = recipe.slos_ns
    return {model: slos_ns[place % len(slos_ns)] for place, model in enumerate(models)} if slos_ns else {}


def _uncut(recipe: Recipe, models: Sequence[str]) -> Workload:
    """Return the arrivals of an open loop, which may go on beyond the duration."""
    return _from_file(recipe, models) if recipe.kind in FROM_FILE else _generated(recipe, models)


def _from_file(recipe: Recipe, models: Sequence[str]) -> Workload:
    assert recipe.trace is not None
    workload: Workload
    if recipe.kind is Kind.CSV:
        slos_ns = _slos_ns(recipe, models)
        workload = read_listed(recipe.trace, models, rows=recipe.rows, slo_ns=recipe.slo_ns, slos_ns=slos_ns)
    elif recipe.kind is Kind.AZURE2019:
        workload = read_azure2019(recipe.trace, models, np.random.default_rng(recipe.seed))
    else:
        workload = read_azure2021(recipe.trace, models)
    end_ns = recipe.start_ns + int(recipe.duration_ns / recipe.time_scale) + 1
    workload = workload.cut(recipe.start_ns, end_ns).stretched(recipe.time_scale)
    if recipe.rate is not None:
        rng = np.random.default_rng(recipe.seed)
        workload = at_rate(workload, recipe.rate, recipe.duration_ns, rng)
    return workload if recipe.scale == 1.0 else workload.scaled(recipe.scale)


def _generated(recipe: Recipe, models: Sequence[str]) -> Workload:
    rate = (recipe.rate or DEFAULT_RATE) * recipe.scale
    if recipe.kind is Kind.SYNTHETIC:
        return azure_like(models, rate)
    order = np.random.default_rng(recipe.seed).permutation(len(models)).tolist()
    rates = zipf_rates([models[index] for index in order], rate, recipe.zipf_exponent)
    return Poisson(rates) if recipe.kind is Kind.POISSON else Gamma(rates, recipe.cv)


def chosen_kind(kind: Kind | None, trace: Path | None) -> Kind:
    """Return ``kind``; where none was chosen, what ``trace`` holds, or else the synthetic mix.

    Raises as `kind_of_file`.
    """
    if kind is not None:
        return kind
    return Kind.SYNTHETIC if trace is None else kind_of_file(trace)


def check_trace(kind: Kind, trace: Path | None) -> None:
    """Raise `WorkloadError` unless there is a file for a workload that reads one, and none for others."""
    if kind in FROM_FILE and trace is None:
        raise WorkloadError(f"the workload {kind.value} is read from a file; name it with --trace FILE")
    if kind not in FROM_FILE and trace is not None:
        raise WorkloadError(
            f"the workload {kind.value} is generated and would not read {trace.name}; leave one of them out"
        )


def kind_of_file(trace: Path) -> Kind:
    """Return the workload whose schema the file's header has; raise `TraceError` if it has no one's."""
    header = read_header(trace)
    if azure.is_of_minutes(header):
        return Kind.AZURE2019
    if set(azure.COLUMNS_2021[1:]) <= set(header):
        return Kind.AZURE2021
    if set(listed.COLUMNS) <= set(header):
        return Kind.CSV
    raise TraceError(
        f"{trace}:1: no trace of Azure Functions: the header must have {','.join(azure.COLUMNS)} and the"
        f" numbers of minutes (2019) or {','.join(azure.COLUMNS_2021)} (2021), not"
        f" {','.join(header[:4]) or 'nothing'};"
        f" and no list of arrivals, whose columns are {', '.join(listed.COLUMNS)}"
    )
