"""An application's states in a real store, around a real loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mainspring.gateway.stores.keeper import Keeper
from mainspring.gateway.stores.sqlite import SqliteStore
from mainspring.messages.applications import ApplicationSpec
from mainspring.selection.application import Application, Bounds
from mainspring.selection.policy import State

SPEC = ApplicationSpec(name="app", members=("a", "b"), output="label", kind="label", context=True)
GENERATOR = np.random.default_rng(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


def ask(application: Application, context: str | None = None) -> int:
    """Ask, and have `a` be wrong; return the id of the answer."""
    chosen = application.select(0, {}, GENERATOR, context)
    outputs = {name: np.array([name]) for name in chosen}
    return application.combine(0, {}, chosen, outputs, context).query_id


def learn(application: Application, context: str | None = None) -> State:
    application.observe(0, ask(application, context), np.array(["b"]))
    return application.contexts.state(0, context)


async def served(path: Path) -> tuple[Application, Keeper]:
    """Return an application as a gateway that has just started serves it."""
    keeper = Keeper(SqliteStore(str(path)), asyncio.get_running_loop())
    application = Application(SPEC, Bounds())
    keeper.attach(application)
    assert application.journal is not None
    await until(lambda: application.journal is not None and application.journal.known(None))
    return application, keeper


def test_a_gateway_that_stops_leaves_what_it_learnt(tmp_path: Path) -> None:
    async def play() -> None:
        application, keeper = await served(tmp_path / "s")
        shared, own = learn(application), learn(application, "ann")
        keeper.close(5)
        application, keeper = await served(tmp_path / "s")
        assert application.contexts.state(0, None) == shared
        assert application.contexts.state(0, "ann") == own, "the mean, which is the only context's"
        assert application.journal is not None
        await until(lambda: application.contexts.version("ann") > 0)
        application.forget("ann")
        keeper.close(5)
        assert sqlite3.connect(tmp_path / "s").execute("SELECT key FROM states ORDER BY key").fetchall() == [
            ("shared",), ("total",)
        ]  # fmt: skip

    asyncio.run(play())


def test_what_is_learnt_is_written_within_moments(tmp_path: Path) -> None:
    async def play() -> None:
        application, keeper = await served(tmp_path / "s")
        learn(application, "ann")
        assert application.journal is not None
        counts = application.journal.counts
        await until(lambda: counts["written"] == 2)
        learn(application, "ann")
        await until(lambda: counts["written"] == 4)
        keeper.close(5)

    asyncio.run(play())


def test_without_the_store_memory_serves_and_updates_wait(tmp_path: Path) -> None:
    async def play() -> None:
        application, keeper = await served(tmp_path / "s")
        holder = sqlite3.connect(tmp_path / "s", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        learnt = learn(application, "ann")
        await until(lambda: "locked" in keeper.away)
        for _ in range(10):
            learnt = learn(application, "ann")
        assert application.counts["joined"] == 11
        holder.execute("ROLLBACK")
        assert application.journal is not None
        counts = application.journal.counts
        async with asyncio.timeout(1):
            await until(lambda: counts["written"] == 2)
        assert not keeper.away
        keeper.close(5)
        holder.close()
        again, keeper = await served(tmp_path / "s")
        ask(again, "ann")
        assert again.counts["shared"] == 1, "the first answer was made before the store told ann's state"
        await until(lambda: again.contexts.version("ann") > 0)
        ask(again, "ann")
        assert (again.counts["shared"], again.contexts.state(0, "ann")) == (1, learnt)
        keeper.close(5)

    asyncio.run(play())
