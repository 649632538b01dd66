"""Where the configuration says that what applications learn is kept, a keeper of it."""

from __future__ import annotations

import asyncio

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.graphs.applications import Applications
from mainspring.gateway.stores.keeper import Keeper, Store
from mainspring.gateway.stores.redis import RedisStore
from mainspring.gateway.stores.sqlite import SqliteStore

SQLITE = "sqlite:"


def open_store(
    config: GatewayConfig, applications: Applications, loop: asyncio.AbstractEventLoop
) -> Keeper | None:
    """Have a store keep what applications learn; None if memory does. Nothing is opened before it is used."""
    store = make_store(config.application_store)
    if store is None:
        return None
    keeper = Keeper(store, loop)
    applications.served = keeper.attach
    return keeper


def make_store(where: str) -> Store | None:
    """Return the store that a configuration names; None for memory."""
    if where in ("", "memory"):
        return None
    return SqliteStore(where.removeprefix(SQLITE)) if where.startswith(SQLITE) else RedisStore(where)
