"""Moves models and workers from one controller to another while both serve.

A model is added where it goes, prepared and loaded there, the map is switched, and it is retired where it was
once no gateway has a request for it in flight there: no request is refused for it. A worker is drained, with
copies elsewhere of what only it holds, and then greets the other controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from mainspring.cli.balancing.choosing import ModelMove, WorkerMove
from mainspring.cli.balancing.session import Controller, until
from mainspring.messages.codes import Reason
from mainspring.messages.operating import MoveWorker
from mainspring.messages.sharding import ShardMap
from mainspring.messages.status import ModelStatus
from mainspring.repository.controller_link import Refusal

BATCH = 25
"""Models that are moved at one time."""
PREPARED_S = 120.0
"""Time in which workers must prepare models that come; what none has prepared then stays where it was."""
LOADED_S = 5.0
"""Longest wait until a worker has time to load a model that is in use."""
DRAINED_S = 90.0
"""Time that requests in flight may take; best-effort requests wait longest."""
WORKER_S = 60.0
POLL_S = 0.1

Say = Callable[[str], None]


async def move_models(controllers: Sequence[Controller], moves: Sequence[ModelMove], say: Say) -> list[str]:
    """Move models; return those that have moved. Raises `Refusal` if a controller is lost meanwhile."""
    moved: list[str] = []
    for start in range(0, len(moves), BATCH):
        batch = moves[start : start + BATCH]
        for pair in dict.fromkeys((move.source, move.target) for move in batch):
            names = [move.model for move in batch if (move.source, move.target) == pair]
            source, target = controllers[pair[0]], controllers[pair[1]]
            moved += await _move(controllers[0], source, target, names, say)
            say(f"{len(moved)} of {len(moves)} models moved")
    return moved


async def _move(
    first: Controller, source: Controller, target: Controller, names: Sequence[str], say: Say
) -> list[str]:
    ready = await _copied(source, target, names, say)
    if not ready:
        return []
    await switch(first, dict.fromkeys(ready, target.number))
    for name in ready:
        await source.link.ask(remove=name, drain=True, moves=True)
    if not await until(lambda: not any(name in source.told.models for name in ready), DRAINED_S):
        say(f"requests for some models are still in flight in shard {source.number}; they go once those end")
    return ready


async def _copied(source: Controller, target: Controller, names: Sequence[str], say: Say) -> list[str]:
    """Have models prepared and loaded at ``target``, too; return those that are.

    If that is refused, none of them stays there, and the `Refusal` is raised.
    """
    added: list[str] = []
    try:
        for name in names:
            spec = source.told.models.get(name)
            if spec is None:
                say(f"{name} was removed from shard {source.number} meanwhile")
                continue
            await target.link.ask(add=spec)
            added.append(name)
        ready = await _prepared(target, added)
        for name in [name for name in added if name not in ready]:
            say(f"{name} stays in shard {source.number}: no worker of shard {target.number} has prepared it")
            added.remove(name)
            await target.link.ask(remove=name)
        await _load(source, target, ready)
    except Refusal:
        for name in added:
            with suppress(Refusal):
                await target.link.ask(remove=name)
        raise
    return ready


async def switch(first: Controller, models: dict[str, int]) -> None:
    """Have gateways route these models to other shards; raise `Refusal`."""
    changed = newest_map(first).moved(models)
    await first.link.ask(shard_map=changed)
    # The controller tells the balancer, too, for which it is a gateway.
    await until(lambda: newest_map(first).version >= changed.version, 1.0)


def newest_map(first: Controller) -> ShardMap:
    """Return the map of the first controller; raise `Refusal` if it has none."""
    found = first.told.shard_map
    if found is None:
        raise Refusal(
            Reason.BAD_MESSAGE,
            f"the controller at {first.address} keeps no map: it is not the first of several",
        )
    return found


async def _states(controller: Controller, names: Sequence[str]) -> dict[str, ModelStatus]:
    wanted = set(names)
    return {each.name: each for each in (await controller.status()).models if each.name in wanted}


async def _prepared(target: Controller, names: Sequence[str]) -> list[str]:
    """Wait until every worker has prepared models, or can't; return those that one has prepared."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + PREPARED_S
    while True:
        status = await target.status()
        wanted, workers = set(names), len(status.workers)
        states = [each for each in status.models if each.name in wanted]
        done = [each for each in states if len(each.prepared_on) + len(each.failed_on) >= workers]
        if len(done) == len(wanted) or loop.time() >= give_up_s:
            return [each.name for each in states if each.prepared_on]
        await asyncio.sleep(POLL_S)


async def _load(source: Controller, target: Controller, names: Sequence[str]) -> None:
    """Have models loaded that are resident where they come from, while workers have time for that."""
    held = [each.name for each in (await _states(source, names)).values() if each.resident_on]
    for name in held:
        await target.link.ask(load=name)
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + LOADED_S
    while loop.time() < give_up_s:
        if all(each.resident_on for each in (await _states(target, held)).values()):
            return
        await asyncio.sleep(POLL_S)


async def move_worker(controllers: Sequence[Controller], move: WorkerMove) -> None:
    """Move a worker; return once it serves at its new controller. Raises `Refusal`."""
    source, target = controllers[move.source], controllers[move.target]
    await source.link.ask(move_worker=MoveWorker(move.worker, target.address))
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + WORKER_S
    while loop.time() < give_up_s:
        if any(each.worker == move.worker for each in (await target.status()).workers):
            return
        await asyncio.sleep(POLL_S)
    raise Refusal(
        Reason.TIMED_OUT,
        f"{move.worker} has not greeted the controller of shard {move.target} in {WORKER_S:g} s: see its log",
    )
