"""The store in a real Redis: compare and set, passwords, and a server that is killed under load."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.gateway.stores.keeper import Keeper
from mainspring.gateway.stores.opening import make_store
from mainspring.gateway.stores.redis import RedisStore
from mainspring.selection.application import Application, Bounds
from mainspring.selection.stores.records import NOTHING, Erase, Job, Read, StoreAway, Stored, Write
from tests.gateway.stores.test_keeper import SPEC, ask, learn, until

SERVER = shutil.which("redis-server")
pytestmark = pytest.mark.skipif(SERVER is None, reason="there is no redis-server")
PASSWORD = "its-own"
WRITE = Write("app", "context:u", 0, 7, b"one")


class Server:
    """A Redis of the test's own, which writes each change to its file at once."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/2"
        self._folder = folder
        self.start()

    def start(self) -> None:
        assert SERVER is not None
        options = {
            "port": self.port, "bind": "127.0.0.1", "dir": self._folder, "requirepass": PASSWORD, "save": "",
            "appendonly": "yes", "appendfsync": "always",
        }  # fmt: skip
        given = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        self.process = subprocess.Popen([SERVER, *given], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                RedisStore(self.url).perform(Job())
                return
            except StoreAway:
                time.sleep(0.02)
        raise AssertionError("redis-server does not answer")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


def test_a_record_is_written_if_its_version_is_the_expected_one(server: Server) -> None:
    store = make_store(server.url)
    assert isinstance(store, RedisStore)
    outcome = store.perform(Job(reads=(Read("app", "context:u"),), writes=(WRITE, WRITE)))
    assert (outcome.read, outcome.conflicts) == ((NOTHING,), (None, Stored(7, b"one")))
    changed = WRITE._replace(expected=7, token=8, record=b"\r\n$")
    again = RedisStore(server.url)
    assert again.perform(Job(writes=(changed, changed))).conflicts == (None, Stored(8, b"\r\n$"))
    erased = store.perform(Job((Erase("app", "context:u"),), (Read("app", "context:u"),)))
    assert erased == (outcome.epoch, (Stored(8, b"\r\n$"),), (NOTHING,), ())


def test_a_wrong_password_and_a_server_that_hangs_are_said(server: Server) -> None:
    with pytest.raises(StoreAway, match="WRONGPASS") as error:
        RedisStore(server.url.replace(PASSWORD, "wrong")).perform(Job())
    assert "wrong@" not in str(error.value)
    store = RedisStore(server.url)
    store.perform(Job())
    server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(StoreAway, match="timed out") as slow:
        store.perform(Job(writes=(WRITE,)))
    assert slow.value.doubtful, "it may still do it"
    with pytest.raises(StoreAway) as slow:
        store.perform(Job(writes=(WRITE,)))
    assert not slow.value.doubtful
    server.process.send_signal(signal.SIGCONT)
    assert store.perform(Job(writes=(WRITE,))).conflicts == (Stored(7, b"one"),)


def test_redis_killed_under_load_fails_nothing_and_is_used_again_soon(server: Server) -> None:
    """Two gateways learn all the while; in the end both, and a third one, know all of it."""

    async def play() -> None:
        loop = asyncio.get_running_loop()
        keepers = [Keeper(RedisStore(server.url), loop) for _ in range(2)]
        both = [Application(SPEC, Bounds(first_id=1 << 32 + at)) for at in range(2)]
        for keeper, application in zip(keepers, both, strict=True):
            keeper.attach(application)
        asked = 0

        async def load() -> None:
            nonlocal asked
            while True:
                learn(both[asked % 2], f"user-{asked % 7}")
                asked += 1
                await asyncio.sleep(0.002)

        loading = loop.create_task(load())
        await until(lambda: all(each.journal is not None and each.journal.counts["written"] for each in both))
        server.kill()
        await until(lambda: all(keeper.away for keeper in keepers))
        before = asked
        await until(lambda: asked > before + 100)
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(1):
            await until(lambda: not any(keeper.away for keeper in keepers))
        loading.cancel()
        for keeper in keepers:
            keeper.close(10)
        assert sum(each.counts["joined"] for each in both) == asked
        keeper, third = Keeper(RedisStore(server.url), loop), Application(SPEC, Bounds())
        keeper.attach(third)
        journal = third.journal
        assert journal is not None
        for number in range(7):
            ask(third, f"user-{number}")
        await until(lambda: all(third.contexts.version(f"user-{number}") for number in range(7)))
        assert third.contexts.count == 7
        keeper.close(10)

    asyncio.run(play())
