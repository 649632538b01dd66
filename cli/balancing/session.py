"""A session with each controller of a cluster, as the model repository keeps one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from mainspring.messages.codes import Reason
from mainspring.messages.metrics import ClusterMetrics
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import ModelDown, ModelUp
from mainspring.messages.sharding import ShardMap
from mainspring.messages.status import ClusterStatus
from mainspring.repository.controller_link import ControllerLink, Refusal, ToldMessage
from mainspring.transport.greeting import Pass

NAME = "balancer"
CONNECT_S = 10.0
"""Time in which a controller must welcome the balancer and send its models and shard map."""
POLL_S = 0.05
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
                    f"no controller answers at {each.address} (shard {each.number})",
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
        await asyncio.sleep(POLL_S)
    return True
