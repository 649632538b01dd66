"""Moves models and workers from one controller to another while both serve.

A model is added where it goes, prepared and loaded there, the map is switched, and it is retired where it was
once no gateway has a request for it in flight there: no request is refused for it. A worker is drained, with
copies elsewhere of what only it holds, and then greets the other controller. The session with each controller
is as the model repository keeps one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from mainspring.cli.balancing.choosing import ModelMove, WorkerMove
from mainspring.messages.codes import Reason
from mainspring.messages.metrics import ClusterMetrics
from mainspring.messages.model import ModelSpec
from mainspring.messages.operating import MoveWorker
from mainspring.messages.peers import ModelDown, ModelUp
from mainspring.messages.sharding import ShardMap
from mainspring.messages.status import ClusterStatus, ModelStatus
from mainspring.repository.controller_link import ControllerLink, Refusal, ToldMessage
from mainspring.transport.greeting import Pass

NAME = "balancer"
CONNECT_S = 10.0
"""Time in which a controller must welcome the balancer and send its models and shard map."""
SESSION_POLL_S = 0.05
TIMEOUT_MS = 1_000.0


class Told:
    """The models and shard map of one controller, as it sent them."""

    def __init__(self) -> None:
        self.known = False
        self.models: dict[str, ModelSpec] = {}
        """Models by name, with those that are being drained."""
        self.shard_map: ShardMap | None = None

    def heard(self, message: ToldMessage) -> None:
        """Take note of it."""
        match message:
            case ModelUp(model=spec):
                self.models[spec.name] = spec
            case ModelDown(name=name, drain=False):
                self.models.pop(name, None)
            case ShardMap():
                self.shard_map = message

    def complete(self) -> None:
        """Note that it has sent all."""
        self.known = True

    def welcomed(self) -> None:
        """Forget what it sent, because it begins again."""
        self.known = False
        self.models.clear()

    def lost(self) -> None:
        """Note that the controller is gone."""
        self.known = False


class Controller:
    """One controller of the cluster."""

    def __init__(self, number: int, address: str, shows: Pass) -> None:
        """Begin to connect; raise ValueError if the address can't be one."""
        self.number = number
        self.address = address
        self.told = Told()
        self.link = ControllerLink(address, TIMEOUT_MS, self.told, lambda: None, shows, NAME)

    async def status(self) -> ClusterStatus:
        """Return its status; raise `Refusal`."""
        status = (await self.link.ask(status=True)).status
        assert status is not None, "a controller answered without a status"
        return status

    async def metrics(self) -> ClusterMetrics:
        """Return what it counts; raise `Refusal`."""
        metrics = (await self.link.ask(metrics=True)).metrics
        assert metrics is not None, "a controller answered without metrics"
        return metrics


@contextlib.asynccontextmanager
async def sessions(addresses: Sequence[str], shows: Pass) -> AsyncIterator[list[Controller]]:
    """Keep a session with each controller, by shard; raise `Refusal` if one can't be reached."""
    controllers = [Controller(number, address, shows) for number, address in enumerate(addresses)]
    tasks = [asyncio.create_task(each.link.run()) for each in controllers]
    try:
        for each in controllers:
            if not await until(lambda each=each: each.told.known, CONNECT_S):  # type: ignore[misc]
                raise Refusal(
                    Reason.CONTROLLER_UNREACHABLE,
                    f"no controller answers at {each.address} (shard {each.number}): "
                    "is `mainspring up` running?",
                )
        yield controllers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait until a condition holds, at most so long; return whether it does."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + limit_s
    while not condition():
        if loop.time() >= give_up_s:
            return False
        await asyncio.sleep(SESSION_POLL_S)
    return True


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
