"""``mainspring balance``: move models and workers between the controllers of a cluster."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.configuration.single import ConfigFile
from mainspring.cli.options import Controller, Interval, KeysFolder, Watch, duration_ns

if TYPE_CHECKING:
    from mainspring.cli.balancing.choosing import Plan
    from mainspring.cli.balancing.moving import Controller as Session
    from mainspring.transport.greeting import Pass

Models = Annotated[
    int | None,
    typer.Option(min=1, help="Move this many models, the busiest first, --from one shard --to another."),
]
Model = Annotated[
    list[str] | None, typer.Option("--model", help="Move this model --to a shard. May be repeated.")
]
Worker = Annotated[
    list[str] | None, typer.Option("--worker", help="Move this worker --to a shard. May be repeated.")
]


def balance(
    config: ConfigFile = None,
    controller: Controller = None,
    keys: KeysFolder = None,
    model: Model = None,
    models: Models = None,
    worker: Worker = None,
    source: Annotated[int | None, typer.Option("--from", min=0, help="The shard to move from.")] = None,
    target: Annotated[int | None, typer.Option("--to", min=0, help="The shard to move to.")] = None,
    watch: Watch = False,
    interval: Interval = "10s",
    dry_run: Annotated[bool, typer.Option(help="Say what would be moved, and move nothing.")] = False,
) -> None:
    """Move models off controllers that refuse requests, or move what is named. No move refuses a request."""
    from mainspring.messages.tables import ConfigError
    from mainspring.repository.controller_link import Refusal

    named = bool(model or models or worker)
    if named != (target is not None) or (models is not None and source is None):
        raise typer.BadParameter(
            "what is named goes --to a shard, and --models come --from one; else name none"
        )
    interval_s = duration_ns(interval, "--interval") / 1e9
    addresses, shows = _cluster(config, controller, keys)
    wanted = _Wanted(tuple(model or ()), models or 0, tuple(worker or ()), source, target)
    try:
        asyncio.run(_run(addresses, shows, wanted if named else None, interval_s, watch=watch, dry=dry_run))
    except Refusal as error:
        raise ConfigError(f"{error.detail}") from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


class _Wanted:
    """The models and workers that were named on the command line."""

    def __init__(
        self,
        models: Sequence[str],
        count: int,
        workers: Sequence[str],
        source: int | None,
        target: int | None,
    ) -> None:
        self.models = models
        self.count = count
        self.workers = workers
        self.source = source
        self.target = target


def _cluster(config: Path | None, controller: str | None, keys: Path | None) -> tuple[tuple[str, ...], Pass]:
    """Return where a cluster's controllers are, and what is shown to them; raise `ConfigError`."""
    from mainspring.cli.configuration.single import configured, keys_of
    from mainspring.cli.launcher.addresses import connectable
    from mainspring.cli.places import find
    from mainspring.messages.roles import Role
    from mainspring.messages.tables import ConfigError
    from mainspring.transport.greeting import present

    whole = configured(config)
    listed = tuple(map(connectable, whole.shards.controllers))
    door = find(
        controller or (listed[0] if listed else None),
        keys_of(whole, keys, "balancer"),
    )
    try:
        return listed or (door.address,), present(Role.REPOSITORY, door.folder)
    except OSError as error:
        raise ConfigError(error.strerror or str(error)) from None


async def _run(
    addresses: tuple[str, ...],
    shows: Pass,
    wanted: _Wanted | None,
    interval_s: float,
    *,
    watch: bool,
    dry: bool,
) -> None:
    from mainspring.cli.balancing.moving import newest_map, sessions

    if len(addresses) == 1:
        # The first controller's map says where all are.
        async with sessions(addresses, shows) as (first,):
            addresses = newest_map(first).addresses
    async with sessions(addresses, shows) as controllers:
        if wanted is not None:
            await _carry_out(controllers, await _named(controllers, wanted), dry=dry)
            return
        while True:
            found = await _look(controllers, interval_s)
            await _carry_out(controllers, found, dry=dry)
            if not watch:
                return


async def _look(controllers: Sequence[Session], interval_s: float) -> Plan:
    """Watch all controllers for a while; return what should be moved."""
    from mainspring.cli.balancing.choosing import observed, plan

    before = [(await each.status(), await each.metrics()) for each in controllers]
    await asyncio.sleep(interval_s)
    after = [(await each.status(), await each.metrics()) for each in controllers]
    found = [
        observed(each.number, before[each.number], after[each.number], interval_s, each.told.models)
        for each in controllers
    ]
    for shard in found:
        _say(
            f"shard {shard.number}: load {shard.load:.2f} on {len(shard.workers)} workers, "
            f"{shard.requests:,} requests, {shard.rejected:,} rejected"
        )
    return plan(found)


async def _named(controllers: Sequence[Session], wanted: _Wanted) -> Plan:
    """Return what the command line names as a plan; raise `ConfigError` for what is not there."""
    from mainspring.cli.balancing.choosing import ModelMove, Plan, WorkerMove, busiest
    from mainspring.cli.balancing.moving import newest_map
    from mainspring.messages.tables import ConfigError

    target = wanted.target or 0
    if max(target, wanted.source or 0) >= len(controllers):
        raise ConfigError(f"there are shards 0 to {len(controllers) - 1}")
    shard_map = newest_map(controllers[0])
    owner = {name: each.number for each in controllers for name in each.told.models}
    for name in owner:
        if name in controllers[shard_map.place(name)].told.models:
            owner[name] = shard_map.place(name)
    names = list(wanted.models)
    if wanted.count:
        source = controllers[wanted.source or 0]
        status = await source.status()
        arrived = {each.name: each.arrived for each in status.models}
        names += busiest(arrived, list(arrived), wanted.count)
    unknown = [name for name in names if name not in owner]
    if unknown:
        raise ConfigError(f"no shard has a model {unknown[0]!r}; `mainspring models list` shows them")
    of_repository = [name for name in names if controllers[owner[name]].told.models[name].served_as]
    if of_repository:
        raise ConfigError(
            f"{of_repository[0]!r} is of a model repository, whose models stay where hashing puts them: move "
            "a worker there instead"
        )
    of_worker = {w.worker: each.number for each in controllers for w in (await each.status()).workers}
    missing = [name for name in wanted.workers if name not in of_worker]
    if missing:
        raise ConfigError(f"no shard has a worker {missing[0]!r}; `mainspring status` shows them")
    return Plan(
        tuple(ModelMove(name, owner[name], target) for name in names if owner[name] != target),
        tuple(
            WorkerMove(each, of_worker[each], target) for each in wanted.workers if of_worker[each] != target
        ),
        "it is there already",
    )


async def _carry_out(controllers: Sequence[Session], found: Plan, *, dry: bool) -> None:
    from mainspring.cli.balancing.moving import move_models, move_worker

    if not found.models and not found.workers:
        _say(f"nothing to move: {found.why}")
    if dry:
        for each in found.models:
            typer.echo(f"{each.model}: from shard {each.source} to shard {each.target}")
        for move in found.workers:
            typer.echo(f"{move.worker}: from shard {move.source} to shard {move.target}")
        return
    moved = await move_models(controllers, found.models, _say) if found.models else []
    for move in found.workers:
        await move_worker(controllers, move)
    if found.models or found.workers:
        typer.echo(f"moved {_counted(len(moved), 'model')} and {_counted(len(found.workers), 'worker')}")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _say(text: str) -> None:
    print(f"mainspring: {text}", file=sys.stderr, flush=True)
