"""A console on a real socket, which shows what a test feeds it."""

from __future__ import annotations

import asyncio
import http.client
import json
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from websockets.sync.client import ClientConnection, connect

from mainspring.console.config import ConsoleConfig
from mainspring.console.payloads import Head, Overview
from mainspring.console.server import listen, serve
from mainspring.console.view.view import View
from mainspring.console.web.source import Granted, Replay, Seek, Unanswered
from mainspring.messages.operating import OperatorCommand
from mainspring.transport.tokens import TokenFile
from tests.patience import PATIENCE_S

Record = tuple[int, msgspec.Struct]


class FedSource:
    """A view that a test feeds."""

    def __init__(self, view: View, operable: bool) -> None:
        self.view = view
        self.epoch = 0
        self.operable = operable
        self.fed: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.commands: list[tuple[OperatorCommand, str]] = []
        self.grant: Granted | Unanswered = Granted(True, "done")
        self.answers = threading.Event()
        """Cleared: what is asked for waits."""
        self.answers.set()
        self.sought: list[Seek] = []

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(0.005)
            while not self.fed.empty():
                self.fed.get()()

    def close(self) -> None:
        self.epoch = -1

    def head(self) -> Head:
        return Head(self.view.now_ns, 0, "live", operable=self.operable)

    def replay(self) -> Replay | None:
        return None

    def overview(self) -> Overview | None:
        return None

    def seek(self, to: Seek) -> None:
        if to.speed == 0:
            raise ValueError("speed is 0; it must be greater")
        self.sought.append(to)

    async def operate(self, command: OperatorCommand, who: str) -> Granted:
        self.commands.append((command, who))
        while not self.answers.is_set():
            await asyncio.sleep(0.01)
        if isinstance(self.grant, Unanswered):
            raise self.grant
        return self.grant


Start = Callable[..., "Console"]
"""Starts a console, of a view and keys of its configuration."""


class Console:
    """A running console, as its browsers and scripts see it."""

    def __init__(self, config: ConsoleConfig, source: FedSource) -> None:
        self.config = config
        self.source = source
        self.address = ""
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            tokens = TokenFile(self.config)
            listener, self.address = listen(self.config.address)
            with listener:
                asyncio.run(serve(self.config, self.source, tokens, listener, self._stop, self._ready.set))
        except BaseException as error:
            self.failure = error
        finally:
            self._ready.set()

    def __enter__(self) -> Console:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, and raise what went wrong."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the console did not stop"
        if self.failure is not None:
            raise self.failure

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def ask(
        self, path: str, body: object = None, *, method: str = "", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers in lower case and body of an answer; underscores are hyphens in headers."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            named.setdefault("content-type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, data, named)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read()
        finally:
            connection.close()

    def json(self, path: str, **headers: str) -> Any:
        """Return what a path answers, which must be well."""
        status, _, body = self.ask(path, **headers)
        assert status == 200, body
        return json.loads(body)

    def feed(self, *records: Record) -> None:
        """Have the view take records in, and wait until it has."""
        took = threading.Event()

        def take() -> None:
            for now_ns, entry in records:
                self.source.view.take(now_ns, entry)
            took.set()

        self.source.fed.put(take)
        assert took.wait(PATIENCE_S)

    def page(
        self, path: str = "/ws", *, host: str = "", **options: Any
    ) -> AbstractContextManager[ClientConnection]:
        """Return a page's connection, to be closed; ``host`` is what it calls the console."""
        page: AbstractContextManager[ClientConnection] = connect(
            f"ws://{host or '127.0.0.1'}:{self.port}{path}",
            sock=socket.create_connection(("127.0.0.1", self.port), PATIENCE_S),
            proxy=None,
            open_timeout=PATIENCE_S,
            compression=None,
            **options,
        )
        return page


def said(page: ClientConnection) -> dict[str, Any]:
    """Return the next message of a page's connection."""
    found = json.loads(page.recv(timeout=PATIENCE_S))
    assert isinstance(found, dict)
    return found


def say(page: ClientConnection, **message: Any) -> None:
    """Send a page's message."""
    page.send(json.dumps(message))
