"""``mainspring scale``: a running cluster gets more workers, or fewer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.options import DEFAULT_GATEWAY, WAIT, AsJson, GatewayAddress, Token, duration_ns

if TYPE_CHECKING:
    from mainspring.client.client import Client
    from mainspring.messages.scaling import KindStatus
    from mainspring.messages.status import ClusterStatus

LOOK_S = 0.2
_MOST_DIGITS = 9
"""Most digits of a count that is worth asking for."""

Wanted = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KIND=N",
        help="How many workers of a kind; without any, the kinds and their workers are shown.",
    ),
]
Shard = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="With several controllers, the one to have N workers. Default: N in all, new ones where "
        "there are fewest for the shard's weight.",
    ),
]


def scale(
    wanted: Wanted = None,
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
    shard: Shard = None,
    wait: Annotated[str, WAIT] = "60s",
    as_json: AsJson = False,
) -> None:
    """Set the number of workers of each KIND; without KIND=N, show the kinds and their workers.

    New workers prepare and load models before they get requests. Before a worker is stopped, others load the
    models that it alone holds, and it finishes its actions. The number holds until the next command for the
    same kind. Exit code 1: it was set, but the workers were not there or gone within --wait.
    """
    from mainspring.client.client import Client

    counts = dict(parse(text) for text in wanted or [])
    patience_ns = duration_ns(wait, "--wait", least_ns=0)
    with Client(address, token=token) as client:
        for kind, count in counts.items():
            client.scale_workers(kind, count, shard=shard)
        done = not counts or not patience_ns or _wait(client, counts, patience_ns, quiet=as_json)
        found = client.status()
    _show(found, as_json=as_json)
    if not done:
        raise typer.Exit(1)


def parse(text: str) -> tuple[str, int]:
    """Return the kind and the count of ``KIND=N``; raise `typer.BadParameter`."""
    kind, equals, count = text.rpartition("=")
    if not equals or not kind or not count.strip().isdecimal():
        raise typer.BadParameter(f"{text!r} is not like emulated=4: a kind of worker, =, and how many")
    if len(count) > _MOST_DIGITS:
        raise typer.BadParameter(f"{kind}={count[:_MOST_DIGITS]}... is more than any provider runs")
    return kind, int(count)


def line(kind: KindStatus) -> str:
    """Return how a kind stands, for a person."""
    parts = [f"{kind.kind}: {kind.running} of {kind.wanted} workers"]
    if kind.leaving:
        parts.append(f"{', '.join(kind.leaving)} about to leave")
    if kind.worth:
        parts.append(kind.worth)
    if kind.fault:
        parts.append(kind.fault)
    return "; ".join(parts)


def _wait(client: Client, counts: dict[str, int], patience_ns: int, *, quiet: bool) -> bool:
    """Wait until all of it is so, telling what changes; return whether it is."""
    import sys
    import time

    until_ns = time.monotonic_ns() + patience_ns
    told: dict[str, str] = {}
    while True:
        found = [each for each in client.status().kinds if each.kind in counts]
        for each in found:
            text = line(each)
            if not quiet and told.get(each.kind) != text and not each.settled:
                told[each.kind] = text
                print(text, file=sys.stderr, flush=True)
        if found and all(each.settled for each in found):
            return True
        if time.monotonic_ns() >= until_ns:
            return False
        time.sleep(LOOK_S)


def _show(found: ClusterStatus, *, as_json: bool) -> None:
    import msgspec

    kinds = found.kinds
    if as_json:
        print(json.dumps(msgspec.to_builtins(kinds), indent=2))
        return
    for kind in kinds:
        by = f"by {kind.provider}, at most {kind.most}" if kind.provider else "by nobody now"
        print(f"{line(kind)} ({by})")
    for shard in found.shards:
        for kind in shard.kinds:
            print(f"shard {shard.number}: {line(kind)}")
    if not kinds:
        print("nothing is connected that starts and stops workers: `mainspring up` does")
