"""A plan as files: the spec with its counts, to be simulated and run; what was found; and pictures of it."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mainspring.planner.estimate import Estimate
from mainspring.planner.plan import Plan
from mainspring.planner.problem import Pool
from mainspring.simulator.spec import SimulationSpec
from mainspring.simulator.spec_file import Table, move_paths

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def planned(table: Table, kinds: Sequence[str], pool: Pool) -> Table:
    """Return a spec's table with a pool's counts, 0 for kinds that it has not, and paths that lead from
    anywhere."""
    found = copy.deepcopy(table)
    counts = dict(zip(kinds, pool, strict=True))
    for group in found["devices"]:
        group["count"] = counts.get(group["kind"], 0)
    move_paths(found, Path.cwd())
    return found


def planned_steps(table: Table, kinds: Sequence[str], stations: Sequence[tuple[str, int, int, int]]) -> Table:
    """Return a spec's table with a group of devices for each model of a graph's steps, its own.

    ``stations`` are (model, place of its kind, largest batch, replicas) of the steps. Steps of one model
    share its devices, in batches as large as the largest of theirs; raises ValueError if these are of two
    kinds.
    """
    found = copy.deepcopy(table)
    groups = {group["kind"]: group for group in found["devices"]}
    made: dict[str, dict[str, Any]] = {}
    for model, kind, batch, replicas in stations:
        mine = made.setdefault(
            model, {**groups[kinds[kind]], "count": 0, "serves": model, "max_batch": batch}
        )
        if mine["kind"] != kinds[kind]:
            raise ValueError(f"steps of {model} are planned on {mine['kind']} and {kinds[kind]}")
        mine["count"] += replicas
        mine["max_batch"] = max(mine["max_batch"], batch)
    found["devices"] = list(made.values())
    move_paths(found, Path.cwd())
    return found


def toml(table: Mapping[str, Any]) -> str:
    """Return a table as TOML: numbers and texts first, then tables, then lists of tables."""
    plain = [f"{_key(name)} = {_value(value)}" for name, value in table.items() if not _is_part(value)]
    parts = ["\n".join(plain)] if plain else []
    for name, value in table.items():
        if isinstance(value, Mapping):
            parts.append(_table(f"[{_key(name)}]", value))
        elif _is_part(value):
            parts += [_table(f"[[{_key(name)}]]", each) for each in value]
    return "\n\n".join(parts) + "\n"


def digest(spec: SimulationSpec, *more: object) -> str:
    """Return a short digest of a spec and whatever else decides what estimates say."""
    data = msgspec.json.encode([spec, *more])
    return hashlib.sha256(data).hexdigest()[:12]


def _is_part(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _table(heading: str, table: Mapping[str, Any]) -> str:
    return "\n".join([heading, *[f"{_key(name)} = {_value(value)}" for name, value in table.items()]])


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(str(name))} = {_value(each)}" for name, each in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


HOLDS, VIOLATES, BEST = "#1b9e77", "#d95f02", "#7570b3"


def plot_plan(plan: Plan, folder: Path) -> list[Path]:
    """Write ``pools.png`` and ``evaluations.png`` into a folder; return what was written.

    A plan without evaluations has no pictures.
    """
    if not plan.evaluations:
        return []
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    found = []
    for name, draw in (("pools.png", _pools), ("evaluations.png", _evaluations)):
        figure = draw(pyplot, plan)
        figure.savefig(folder / name, dpi=120)
        pyplot.close(figure)
        found.append(folder / name)
    return found


def _pools(pyplot: Any, plan: Plan) -> Any:
    """Draw what each pool costs and what it does."""
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for label, mine, style in _outcomes(plan):
        axes.scatter(
            [each.price for each in mine],
            [100 * each.attainment for each in mine],
            s=18,
            alpha=0.7,
            label=f"{label} ({len(mine)})",
            **style,
        )
    marked = (plan.best, "the plan", "*"), (plan.one_kind, "best of one kind", "P")
    for estimate, text, marker in marked:
        if estimate is not None:
            where = estimate.price, 100 * estimate.attainment
            label = f"{text}: {named(plan, estimate)}"
            axes.scatter(*where, s=90, marker=marker, color=BEST, zorder=3, label=label)
    if plan.floor_price is not None:
        axes.axvline(plan.floor_price, color="grey", linestyle=":", label="below it no scheduler could")
    axes.axhline(100 * plan.objective, color="black", linewidth=0.8)
    axes.set_xlabel("price an hour")
    axes.set_ylabel("requests in time, %")
    axes.set_ylim(_lowest(plan.evaluations, plan.objective), 100.3)
    axes.set_title(f"{len(plan.evaluations)} pools tried by {plan.search}, evaluated by {plan.evaluate}")
    axes.legend(loc="lower right")
    return figure


def _outcomes(plan: Plan) -> list[tuple[str, list[Estimate], dict[str, str]]]:
    """Return how evaluations ended: the name, those that did, and their marks.

    A hollow mark is the share of the requests until the pool was given up.
    """
    whole = [each for each in plan.evaluations if each.complete]
    return [
        ("holds", [each for each in whole if each.holds(plan.objective)], {"color": HOLDS}),
        ("violates", [each for each in whole if not each.holds(plan.objective)], {"color": VIOLATES}),
        (
            "given up, share until then",
            [each for each in plan.evaluations if not each.complete],
            {"facecolors": "none", "edgecolors": VIOLATES},
        ),
    ]


def _evaluations(pyplot: Any, plan: Plan) -> Any:
    """Draw price and attainment, one evaluation after the other."""
    figure, (prices, shares) = pyplot.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    numbers = range(1, len(plan.evaluations) + 1)
    prices.step(numbers, [each.price for each in plan.evaluations], where="mid", color="grey", linewidth=0.8)
    best: list[float] = []
    for each in plan.evaluations:
        held = each.price if each.holds(plan.objective) else float("inf")
        best.append(min(held, best[-1] if best else float("inf")))
    prices.step(numbers, best, where="post", color=BEST, label="best so far")
    colours = [HOLDS if each.holds(plan.objective) else VIOLATES for each in plan.evaluations]
    prices.scatter(numbers, [each.price for each in plan.evaluations], s=16, color=colours, zorder=3)
    prices.set_ylabel("price an hour")
    prices.legend(loc="upper right")
    at = {id(each): number for number, each in zip(numbers, plan.evaluations, strict=True)}
    for _, mine, style in _outcomes(plan):
        shares.scatter(
            [at[id(each)] for each in mine], [100 * each.attainment for each in mine], s=16, **style
        )
    shares.axhline(100 * plan.objective, color="black", linewidth=0.8)
    shares.set_ylim(_lowest(plan.evaluations, plan.objective), 100.3)
    shares.set_ylabel("requests in time, %")
    shares.set_xlabel("evaluation")
    prices.set_title(f"{plan.search}: green holds, orange violates, hollow was given up")
    return figure


def named(plan: Plan, estimate: Estimate) -> str:
    """Return a pool for a person."""
    parts = [f"{count} {kind}" for kind, count in zip(plan.kinds, estimate.pool, strict=True) if count]
    return " + ".join(parts)


def _lowest(evaluations: Sequence[Estimate], objective: float) -> float:
    """Return where the scale of shares begins: near enough to the promise to tell what misses it."""
    least = min(each.attainment for each in evaluations)
    return 100 * max(least - 0.01, objective - 0.3)
