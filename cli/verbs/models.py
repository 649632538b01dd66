"""``mainspring models``: which models are served, and changes to that, live."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainspring.cli.options import (
    DEFAULT_GATEWAY,
    DEFAULT_STORE,
    STORE,
    AsJson,
    GatewayAddress,
    Interval,
    ModelStore,
    Token,
    Watch,
    seconds,
)
from mainspring.cli.verbs.compile import UnverifiedOption

if TYPE_CHECKING:
    from mainspring.client.repository import RepositoryClient
    from mainspring.messages.model import ModelSpec, Profile
    from mainspring.messages.repository import IndexEntry
    from mainspring.messages.status import ModelStatus

Http = Annotated[
    str | None, typer.Option(help="Where the gateway serves HTTP. Default: the gateway is asked.")
]

_INDEX_S = 10.0
"""Longest wait for a repository's index, for a list of models."""

app = typer.Typer()


@app.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
    watch: Watch = False,
    interval: Interval = "2s",
    as_json: AsJson = False,
) -> None:
    """Show the served models: pages, where they are, profile, and share of the goodput.

    Goodput is what was executed by its deadline. It is counted since the controller started or the model was
    added, and with --watch since the last look.
    """
    from mainspring.cli.views.models_view import print_once, watch_models
    from mainspring.client.client import Client

    if context.invoked_subcommand is not None:
        return
    interval_s = seconds(interval, "--interval", least_s=0.1)
    with Client(address, token=token) as client:
        if watch:
            watch_models(client, interval_s, as_json=as_json)
        else:
            print_once(client, as_json=as_json)


@app.command("list")
def list_models(
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
    store: Annotated[Path | None, STORE] = None,
    as_json: AsJson = False,
) -> None:
    """Show the models: what they take and give, their size, and where they are."""
    from mainspring.cli.views.models_view import state_of
    from mainspring.client.client import Client

    states: dict[str, ModelStatus] = {}
    moving: dict[str, list[IndexEntry]] = {}
    if store is not None:
        from mainspring.compiler.artifact.profiles import grouped
        from mainspring.compiler.artifact.store import Store
        from mainspring.compiler.rows.proving import proved_specs

        opened = Store(store)
        specs: Sequence[ModelSpec]
        specs, left_out = grouped(proved_specs(opened, opened.manifests()))
        for why in left_out.values():
            print(why, file=sys.stderr)
    else:
        with Client(address, token=token) as client:
            specs = client.models()
            states = {state.name: state for state in client.status().models}
        moving = _moving(address, token)
    if as_json:
        shown = [_summary(spec, state_of(spec, states), moving.get(spec.name, [])) for spec in specs]
        print(json.dumps(shown, indent=2))
    else:
        print_list(specs, states, moving)


@app.command("add")
def add(
    names: Annotated[
        list[str],
        typer.Argument(help="Models of the store; or .onnx files, which are sent to the model repository."),
    ],
    store: ModelStore = DEFAULT_STORE,
    unverified: UnverifiedOption = False,
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
) -> None:
    """Add models to those that are served: from the store, or files under their own names."""
    for path in (Path(name) for name in names):
        if path.suffix == ".onnx":
            _send(path, address, token, unverified=unverified)
    names = [name for name in names if not name.endswith(".onnx")]
    if names:
        _add(names, store, address, token)


def _send(path: Path, address: str, token: str | None, *, unverified: bool) -> None:
    """Have a file served by the cluster's model repository, under the file's name."""
    data = path.read_bytes()
    _repository(address, None, token).load(
        path.stem, {"1/model.onnx": data}, {"unverified": "true"} if unverified else None
    )
    print(f"added {path.stem}")


def _add(names: Sequence[str], store: Path, address: str, token: str | None) -> None:
    """Have models of the store served."""
    from mainspring.client.client import Client
    from mainspring.compiler.artifact.profiles import beside, grouped
    from mainspring.compiler.artifact.store import Store
    from mainspring.compiler.rows.proving import proved_specs

    opened = Store(store)
    stored = [beside(opened, name) or [opened.manifest(name)] for name in names]
    specs, left_out = grouped(proved_specs(opened, [each for some in stored for each in some]))
    for why in left_out.values():
        print(why, file=sys.stderr)
    with Client(address, token=token) as client:
        served = {spec.name: spec for spec in client.models()}
        for spec in specs:
            client.add_model(spec)
            same = served.get(spec.name) == spec
            print(f"{spec.name} is served already" if same else f"added {spec.name}")


@app.command("remove")
def remove(
    names: Annotated[list[str], typer.Argument(help="Models that are served.")],
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
) -> None:
    """Stop serving models; requests that are queued for them are rejected."""
    from mainspring.client.client import Client

    with Client(address, token=token) as client:
        for name in names:
            client.remove_model(name)
            print(f"removed {name}")


@app.command("set")
def set_(
    names: Annotated[list[str], typer.Argument(help="Models that are served, as clients call them.")],
    max_queue_size: Annotated[
        int | None,
        typer.Option(min=0, help="How many requests may wait for each; 0: as configured."),
    ] = None,
    goodput_weight: Annotated[
        float | None,
        typer.Option(
            min=0, help="How many answers of other models one of these counts as; 0: as configured."
        ),
    ] = None,
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
) -> None:
    """Limit how many requests may wait for models, or weight their answers against those of others."""
    from mainspring.client.client import Client

    if max_queue_size is None and goodput_weight is None:
        raise typer.BadParameter("give --max-queue-size or --goodput-weight")
    with Client(address, token=token) as client:
        for name in names:
            if max_queue_size is not None:
                client.set_max_queue_size(name, max_queue_size or None)
                said = f"at most {max_queue_size:,} requests wait for" if max_queue_size else "as configured:"
                print(f"{said} {name}")
            if goodput_weight is not None:
                client.set_goodput_weight(name, goodput_weight or None)
                print(
                    f"an answer counts as {goodput_weight:g}: {name}"
                    if goodput_weight
                    else f"as configured: {name}"
                )


@app.command("assign")
def assign(
    name: Annotated[str, typer.Argument(help="Model that is served.")],
    workers: Annotated[
        int, typer.Argument(min=0, help="Workers that run it alone; 0: it runs wherever others do again.")
    ],
    kind: Annotated[str, typer.Option(help="Kind of their device; any by default.")] = "",
    max_batch: Annotated[
        int, typer.Option(min=0, help="Most of its rows that run together; 0: as many as its largest batch.")
    ] = 0,
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
) -> None:
    """Give a model workers of its own: those that are there, and more as they come."""
    from mainspring.client.client import Client

    with Client(address, token=token) as client:
        client.assign_model(name, workers, max_batch, kind)
    print(f"{workers:,} of {name}'s own" if workers else f"{name} runs wherever others do")


@app.command("index")
def index(
    address: GatewayAddress = DEFAULT_GATEWAY,
    http: Http = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model repository holds: each version, whether it is served, and if not, why."""
    import msgspec

    from mainspring.cli.views.models_view import print_index

    entries = _repository(address, http, token).index()
    if as_json:
        print(json.dumps(msgspec.to_builtins(entries), indent=2))
    else:
        print_index(entries)


@app.command("load")
def load(
    names: Annotated[list[str], typer.Argument(help="Models of the repository.")],
    address: GatewayAddress = DEFAULT_GATEWAY,
    http: Http = None,
    token: Token = None,
) -> None:
    """Load models of a repository, or what changed of them, where --model-control-mode is explicit."""
    client = _repository(address, http, token)
    for name in names:
        client.load(name)
        print(f"loaded {name}")


@app.command("unload")
def unload(
    names: Annotated[list[str], typer.Argument(help="Models of the repository that are loaded.")],
    address: GatewayAddress = DEFAULT_GATEWAY,
    http: Http = None,
    token: Token = None,
) -> None:
    """Unload models of a repository, where --model-control-mode is explicit."""
    client = _repository(address, http, token)
    for name in names:
        client.unload(name)
        print(f"unloaded {name}")


def _repository(address: str, http: str | None, token: str | None) -> RepositoryClient:
    """Return a client of the gateway's HTTP, which has the requests about a repository."""
    from mainspring.cli.places import HTTP, place
    from mainspring.client.repository import RepositoryClient

    return RepositoryClient(http or place(HTTP, address, token), token=token)


def _moving(address: str, token: str | None) -> dict[str, list[IndexEntry]]:
    """Return what a repository says of its versions beside being served, by model; nothing without one."""
    from mainspring.cli.places import HTTP, asked
    from mainspring.client.errors import MainspringError
    from mainspring.client.repository import RepositoryClient

    found: dict[str, list[IndexEntry]] = {}
    http = (asked(address, token) or {}).get(HTTP)
    if not http:
        return found
    try:
        entries = RepositoryClient(http, token=token, timeout_s=_INDEX_S).index()
    except (MainspringError, ValueError):
        return found
    for entry in entries:
        if entry.reason:
            found.setdefault(entry.name, []).append(entry)
    return found


def _summary(spec: ModelSpec, state: ModelStatus | None, moving: Sequence[IndexEntry] = ()) -> dict[str, Any]:
    import msgspec

    from mainspring.messages.targets import targets_of

    summary: dict[str, Any] = {
        "name": spec.name,
        "inputs": msgspec.to_builtins(spec.inputs),
        "outputs": msgspec.to_builtins(spec.outputs),
        "batch_sizes": list(spec.batch_sizes),
        "weights_bytes": spec.weights_bytes,
        "pages": spec.pages,
        "executable": spec.executable,
        "targets": targets_of(spec),
        "unshared": spec.unshared,
        "verified": spec.verified,
        "profiles": msgspec.to_builtins(spec.profiles, str_keys=True),
    }
    if moving:
        summary["repository"] = msgspec.to_builtins(moving)
    if state is not None:
        summary |= {
            "prepared_on": list(state.prepared_on),
            "resident_on": list(state.resident_on),
            "failed_on": list(state.failed_on),
            "queued": state.queued,
            "max_queue_size": state.max_queue_size,
        }
    return summary


SHOWN_BUCKETS = 8
"""Buckets whose durations are shown: the smallest ones and the largest; all with --json."""


def _curve(spec: ModelSpec, profile: Profile) -> str:
    """Return the durations of the smallest batch by bucket, the smallest first."""
    from mainspring.messages.model import bucket_name

    rows = spec.batch_sizes[0]
    known = [
        (name, profile.shaped[name]) for name in map(bucket_name, spec.buckets) if name in profile.shaped
    ]
    told = [f"{name}: {seeds[rows] / 1e6:.3g}" for name, seeds in known if rows in seeds]
    if len(told) > SHOWN_BUCKETS:
        told = [*told[: SHOWN_BUCKETS - 1], f"... {len(told) - SHOWN_BUCKETS} more ...", told[-1]]
    times = ", ".join(told)
    names = " x ".join(symbol.name for symbol in spec.symbols)
    return f"by {names}, batch of {rows}: {times} ms"


def _print_limits(spec: ModelSpec) -> None:
    if spec.unshared:
        print(f"  one row at a time: {spec.unshared}")
    if not spec.verified:
        print("  unverified: served on the operator's word, compared with nothing")


def print_list(
    specs: Sequence[ModelSpec],
    states: dict[str, ModelStatus],
    moving: Mapping[str, Sequence[IndexEntry]] = MappingProxyType({}),
) -> None:
    """Print a paragraph for each model: signatures are too long for the columns of a table.

    ``moving`` is what a repository says of its versions, by model.
    """
    from mainspring.cli.views.models_view import state_of
    from mainspring.messages.targets import targets_of

    for spec in specs:
        sizes = " ".join(map(str, spec.batch_sizes))
        pages = "1 page" if spec.pages == 1 else f"{spec.pages} pages"
        print(f"{spec.name}: {spec.weights_bytes / 1e6:.1f} MB in {pages}, batches of {sizes}")
        if spec.symbols:
            padded = ", requests padded to the next of the sizes below" if spec.at_ceilings else ""
            print(f"  open {', '.join(map(str, spec.symbols))}{padded} (times are for the largest)")
        for word, tensors in (("in", spec.inputs), ("out", spec.outputs)):
            for tensor in tensors:
                shape = ", ".join(tensor.dims if spec.whole else tensor.dims_with_rows)
                print(f"  {word:<4} {tensor.name}: {tensor.dtype}[{shape}]")
        if spec.target:
            print(f"  for  {', '.join(targets_of(spec))}")
        for kind, profile in spec.profiles.items():
            sizes_ms = ", ".join(f"{size}: {ns / 1e6:.3g}" for size, ns in sorted(profile.infer_ns.items()))
            spread = f" (99th percentile {profile.spread:.1f} times the median)" if profile.spread else ""
            load_ms = profile.load_ns / 1e6
            print(f"  time {kind}: LOAD {load_ms:.3g} ms, INFER {sizes_ms or 'unknown'} ms{spread}")
            if profile.shaped:
                print(f"       {_curve(spec, profile)}")
            if profile.packing:
                print(f"       {profile.packing}")
        _print_limits(spec)
        state = state_of(spec, states)
        if state is not None:
            resident, prepared = ", ".join(state.resident_on), ", ".join(state.prepared_on)
            most = f" of at most {state.max_queue_size:,}" if state.max_queue_size is not None else ""
            erratic = "; erratic: no estimate holds" if state.erratic else ""
            print(
                f"  on   {resident or 'no worker'} (prepared on {prepared or 'none'}); {state.queued} queued"
                f"{most}{erratic}"
            )
            for failure in state.failed_on:
                print(f"  fail {failure}")
        for each in moving.get(spec.name, ()):
            print(f"  repo version {each.version or '-'} is {each.state.lower()}: {each.reason}")
