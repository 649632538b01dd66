"""``mainspring status``: the cluster's workers, and what could not be used or delivered, with what to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mainspring.cli.options import DEFAULT_GATEWAY, AsJson, GatewayAddress, Token

if TYPE_CHECKING:
    from rich.table import Table

    from mainspring.messages.metrics import TenantStatus
    from mainspring.messages.status import ClusterStatus

MOST_UNREADY = 20
"""Models that are not ready and are shown."""


def status(
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show the workers, what each lacks, and the cluster's counters with what to do about them."""
    import msgspec
    from rich.console import Console

    from mainspring.cli.launcher.readiness import faults
    from mainspring.cli.verbs import scale
    from mainspring.client.client import Client

    with Client(address, token=token) as client:
        found = client.status()
    if as_json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    console = Console(markup=False, highlight=False)
    console.print(f"not ready: {found.not_ready}" if found.not_ready else "ready", soft_wrap=True)
    models = sum(1 for model in found.models if model.prepared_on)
    console.print(
        f"policy {found.policy}: {found.requests_queued:,} requests queued, "
        f"{models:,} of {len(found.models):,} models prepared"
    )
    console.print()
    if found.shards:
        console.print(_shards(found))
        console.print()
    console.print(_workers(found) if found.workers else "no worker is connected: start one")
    for kind in found.kinds:
        console.print(scale.line(kind), soft_wrap=True)
    for shard in found.shards:
        for kind in shard.kinds:
            console.print(f"shard {shard.number}: {scale.line(kind)}", soft_wrap=True)
    for tenant in found.tenants:
        console.print(_tenant(tenant), soft_wrap=True)
    for note, workers in _notes(found).items():
        console.print(f"{some(workers)}: {note}", soft_wrap=True)
    if unverified := [model.name for model in found.models if not model.verified]:
        console.print(f"served unverified: {some(unverified)}", soft_wrap=True)
    told = {name: f"model {name} is not ready: {why}" for name, why in found.unready.items()}
    for line in (*list(told.values())[:MOST_UNREADY], *faults(found, but=found.unready)):
        console.print(line, soft_wrap=True)
    if len(told) > MOST_UNREADY:
        console.print(f"{len(told) - MOST_UNREADY:,} more models are not ready; --json has them")
    if found.dropped_messages:
        console.print()
        console.print(_counters(found))


def _tenant(tenant: TenantStatus) -> str:
    """Return one tenant's line."""
    share = f", held to {tenant.share:.2f} devices" if tenant.share else ""
    return (
        f"tenant {tenant.tenant or '(none)'}, weight {tenant.weight:g}: {tenant.requests:,} requests, "
        f"{tenant.executed:,} executed in {tenant.device_ns / 1e9:.1f} s of devices, "
        f"{tenant.dropped:,} dropped, {tenant.over_share:,} over its share{share}"
    )


SHOWN_WORKERS = 4
"""Workers that are named with what they all say; more are counted."""


def _notes(found: ClusterStatus) -> dict[str, list[str]]:
    """Return what workers say of themselves, each with those that say it."""
    notes: dict[str, list[str]] = {}
    for worker in found.workers:
        for note in worker.notes:
            notes.setdefault(note, []).append(worker.worker)
    return notes


def some(workers: list[str]) -> str:
    """Return the names of workers, of many the first ones."""
    more = len(workers) - SHOWN_WORKERS
    return ", ".join(workers[:SHOWN_WORKERS]) + (f" and {more} more" if more > 0 else "")


def _shards(found: ClusterStatus) -> Table:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, title=f"map of version {found.map_version}", title_justify="left")
    made.add_column("shard", justify="right")
    made.add_column("controller", overflow="fold")
    for name in ("weight", "workers", "models", "queued", "arrived", "rejected"):
        made.add_column(name, justify="right")
    for shard in found.shards:
        numbers = (shard.workers, shard.models, shard.queued, shard.arrived, shard.rejected)
        told = [f"{each:,}" for each in numbers] if shard.up else ["no answer", *[""] * 4]
        made.add_row(str(shard.number), shard.address, f"{shard.pages:,}", *told)
    return made


def _workers(found: ClusterStatus) -> Table:
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    made.add_column("worker", no_wrap=True)
    made.add_column("device")
    for name in ("pages used", "prepared", "resident", "outstanding", "clock ms", "± us", "ppm"):
        made.add_column(name, justify="right")
    kinds = list(dict.fromkeys([worker.device_kind for worker in found.workers]))
    for worker in sorted(found.workers, key=lambda each: kinds.index(each.device_kind)):
        made.add_row(
            worker.worker,
            worker.device_kind,
            f"{worker.pages - worker.pages_free} of {worker.pages}",
            str(worker.prepared),
            str(worker.resident),
            str(worker.outstanding),
            f"{worker.clock_offset_ns / 1e6:+.3f}",
            f"{worker.clock_error_ns / 1e3:,.0f}",
            f"{worker.clock_rate_ppm:+.1f}",
        )
    return made


def _counters(found: ClusterStatus) -> Table:
    from rich.table import Table

    from mainspring.cli.views.counters import NOTHING, explain

    made = Table(box=None, pad_edge=False)
    made.add_column("counter", overflow="fold")
    made.add_column("count", justify="right", no_wrap=True)
    made.add_column("what it counts, and what to do", overflow="fold")
    for name, count in found.dropped_messages.items():
        meaning, remedy = explain(name)
        done = "" if remedy in (NOTHING, "") else f"; {remedy}"
        made.add_row(name, f"{count:,}", meaning + done)
    return made
