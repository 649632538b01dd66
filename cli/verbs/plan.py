"""``mainspring plan``: the cheapest pool of devices that keeps a promise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.options import (
    DEFAULT_GATEWAY,
    AsJson,
    GatewayAddress,
    ReportFolder,
    Seed,
    Settings,
    Token,
    Watch,
    duration_ns,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.planner.problem import Pool

LIVE = "live"
REPLAY = "replay"

Spec = Annotated[
    Path, typer.Argument(metavar="SPEC", help="TOML or JSON, its counts of devices open; see docs/pools.md.")
]
Search = Annotated[
    str | None,
    typer.Option(
        help="How pools are chosen: exact, exhaustive, ribbon, informed; for the steps of a graph, or one "
        "model, inferline; for graphs also exact. By default informed with --evaluate live, else exact; "
        "inferline with graphs."
    ),
]
Evaluate = Annotated[str, typer.Option(help="How a pool is evaluated: queues, simulate, live.")]
Prior = Annotated[
    str | None,
    typer.Option(help="The quick estimator that informed is guided by: queues (its default), simulate."),
]
Window = Annotated[
    str,
    typer.Option(
        metavar="replay|DURATION",
        help="With --evaluate live: replay sends the spec's requests; a duration, such as 60s, watches the "
        "cluster's own for so long.",
    ),
]
Confidence = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Confidence level of the interval whose lower end decides; 0: the share in time alone decides.",
    ),
]
Evaluations = Annotated[int | None, typer.Option(min=1, help="Try at most this many pools.")]
Kinds = Annotated[
    int,
    typer.Option(min=1, help="Plan with at most this many kinds: those that serve most for their price."),
]
Start = Annotated[
    list[str] | None,
    typer.Option(metavar="COUNTS", help="A pool that the search begins with, such as 5,0,0; repeatable."),
]
Shared = Annotated[
    bool, typer.Option("--shared", help="The steps of a graph share the devices; found by simulations.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a search that was interrupted.")]


def plan(
    spec: Spec,
    search: Search = None,
    evaluate: Evaluate = "queues",
    prior: Prior = None,
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
    window: Window = REPLAY,
    watch: Watch = False,
    confidence: Confidence = 0.95,
    evaluations: Evaluations = None,
    seed: Seed = 0,
    kinds: Kinds = 3,
    start: Start = None,
    settings: Settings = None,
    resume: Resume = False,
    shared: Shared = False,
    output: ReportFolder = Path("out/plan"),
    as_json: AsJson = False,
) -> None:
    """Find the cheapest pool of unlike devices that ends enough requests in time.

    With --evaluate live a running cluster is moved through the search, and left as the plan has it.
    """
    from mainspring.cli.launcher.run_dir import OUTPUT_REMEDY, claimed
    from mainspring.cli.pools import Cluster, Options, Planning

    wanted = search, evaluations, confidence
    if _plans_graphs(spec, settings or [], output, evaluate, wanted, shared=shared, as_json=as_json):
        return
    live = evaluate == LIVE
    cluster = Cluster(address, token, _seconds(window)) if live else None
    if watch and (cluster is None or cluster.window_s is None):
        raise typer.BadParameter(
            "it follows a cluster's own requests: give --evaluate live, and --window a duration",
            param_hint="--watch",
        )
    chosen = search or ("informed" if live else "exact")
    guide = prior or ("queues" if chosen == "informed" else None)
    options = Options(chosen, evaluate, guide, confidence, evaluations, seed, kinds, _pools(start or []))
    with claimed(output, "another plan", OUTPUT_REMEDY):
        planning = Planning(spec, settings or [], options, cluster, output, as_json=as_json)
        found = planning.run(resume=resume)
        if watch:
            planning.watch()
    if found.best is None:
        raise typer.Exit(1)


def _plans_graphs(
    path: Path,
    settings: Sequence[str],
    output: Path,
    evaluate: str,
    wanted: tuple[str | None, int | None, float],
    *,
    shared: bool,
    as_json: bool,
) -> bool:
    """Plan devices for the steps of a spec's graph, or of one model where InferLine's search is asked for.

    Returns False if neither is so. ``wanted`` are search, evaluations and confidence.
    """
    from mainspring.cli.graph_plans import plan_graphs
    from mainspring.cli.launcher.run_dir import OUTPUT_REMEDY, claimed
    from mainspring.simulator.spec_file import parse_spec, read_table

    table = read_table(path, settings)
    spec = parse_spec(table, path.name, planned=True)
    search, evaluations, confidence = wanted
    if not spec.graphs and search != "inferline":
        if shared:
            raise typer.BadParameter("it is for the steps of a graph", param_hint="--shared")
        return False
    if evaluate != "queues":
        raise typer.BadParameter("graphs are planned by queues", param_hint="--evaluate")
    with claimed(output, "another plan", OUTPUT_REMEDY):
        chosen = search or "inferline"
        if not plan_graphs(
            table, spec, output, chosen, evaluations, confidence, shared=shared, as_json=as_json
        ):
            raise typer.Exit(1)
    return True


def _seconds(window: str) -> float | None:
    """Return how long a cluster's own requests are watched; None if the spec's are replayed."""
    return None if window == REPLAY else duration_ns(window, "--window") / 1e9


def _pools(texts: Sequence[str]) -> tuple[Pool, ...]:
    """Return pools from texts such as ``5,0,0``."""
    try:
        return tuple(tuple(int(count) for count in text.split(",")) for text in texts)
    except ValueError:
        raise typer.BadParameter(
            "a start is a number of devices of each kind, such as 5,0,0", param_hint="--start"
        ) from None
