"""A task of an event loop waits for a hub's sockets and for its ports' instants."""

from __future__ import annotations

import asyncio
import os
import select
from time import monotonic_ns

from mainspring.transport.hub import Hub
from mainspring.transport.loop import ready
from tests.patience import PATIENCE_S


def test_it_waits_for_a_socket_and_leaves_other_tasks_their_turns() -> None:
    async def steps() -> None:
        hub, (reads, writes) = Hub(), os.pipe()
        hub.watch(reads, "token")
        hub.wait(0)
        waiting = asyncio.create_task(ready(hub))
        await asyncio.sleep(0)
        assert not waiting.done()
        os.write(writes, b"x")
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert hub.wait(0) == ["token"]
        hub.close()
        os.close(reads)
        os.close(writes)

    asyncio.run(steps())


def test_it_returns_when_a_port_is_due_and_gives_the_descriptor_back() -> None:
    async def steps() -> None:
        hub = Hub()
        hub.wait(0)
        due_ns = monotonic_ns() + 20_000_000
        hub.due(due_ns)
        await asyncio.wait_for(ready(hub), PATIENCE_S)
        assert monotonic_ns() >= due_ns
        assert not asyncio.get_running_loop().remove_reader(hub.epoll.fileno())
        hub.close()

    asyncio.run(steps())


class Holding:
    """A port that has read a message."""

    def pending(self) -> bool:
        return True

    def event(self, fd: int, mask: int) -> bool:
        return True

    def tick(self, now_ns: int) -> int:
        return now_ns + 1_000_000_000

    def close(self, until_ns: int) -> None:
        pass


def test_a_message_that_has_been_read_is_not_waited_for() -> None:
    async def steps() -> None:
        hub, port, bell = Hub(), Holding(), os.eventfd(1)
        hub.own(bell, port)
        hub.epoll.register(bell, select.EPOLLIN)
        assert hub.wait(0) == [port]
        hub.epoll.unregister(bell)
        await asyncio.wait_for(ready(hub), PATIENCE_S)
        hub.close()
        os.close(bell)

    asyncio.run(steps())
