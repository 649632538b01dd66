"""Waiting for a `Hub` in an event loop (asyncio), for processes that have other tasks."""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic_ns

from mainspring.transport.hub import Hub


async def ready(hub: Hub) -> None:
    """Return when the hub's sockets have something, or a port of it is due; `Hub.wait` serves them then.

    One task at a time may wait for a hub.
    """
    if hub.pending():
        await asyncio.sleep(0)
        return
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    descriptor = hub.epoll.fileno()
    loop.add_reader(descriptor, readable.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0, hub.due_ns - monotonic_ns()) / 1e9):
                await readable.wait()
    finally:
        loop.remove_reader(descriptor)
