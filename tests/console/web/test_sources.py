"""The whole console over a real controller on real sockets, and over a recorded log."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from mainspring.console.config import ConsoleConfig
from mainspring.console.server import run
from tests.console.web.served import said, say
from tests.controller.peers import FakeGateway, Stage, spec
from tests.patience import PATIENCE_S
from tests.telemetry.recordings import record

NAMES = ("m0", "m1", "m2")
MODELS = tuple(spec(name) for name in NAMES)


class Running:
    """A console as its own process has it, but in a thread."""

    def __init__(self, **keys: Any) -> None:
        self.config = ConsoleConfig(address="http://127.0.0.1:0", **keys)
        self.address = ""
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            run(self.config, self._stop, self._began)
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    def _began(self, address: str) -> None:
        self.address = address
        self._ready.set()

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def post(self, path: str, body: object) -> Any:
        return self.api(path, json.dumps(body))

    def api(self, path: str, body: str | None = None) -> Any:
        """Return what the API answers, errors too."""
        connection = http.client.HTTPConnection(self.address.removeprefix("http://"), timeout=PATIENCE_S)
        try:
            headers = {} if body is None else {"Content-Type": "application/json"}
            connection.request("GET" if body is None else "POST", f"/api/{path}", body, headers)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    @property
    def state(self) -> str:
        """What the head of a picture says."""
        return str(self.api("console")["head"]["state"])


@pytest.fixture
def console() -> Iterator[Callable[..., Running]]:
    """Return what starts a console."""
    with ExitStack() as running:
        yield lambda **keys: running.enter_context(Running(**keys))


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Controllers, and who connects to them."""
    found = Stage()
    try:
        yield found
    finally:
        found.close()


def serve(stage: Stage, gateway: FakeGateway, first: int, count: int) -> list[int]:
    """Send requests that are served; return their ids."""
    return [gateway.arrive(number, NAMES[number % len(NAMES)]) for number in range(first, first + count)]


def test_without_a_controller_it_says_so(console: Callable[..., Running]) -> None:
    running = console(controller_address="tcp://127.0.0.1:9")
    assert running.state == "connecting"
    assert running.api("models")["data"]["total"] == 0
    assert "no worker" in running.api("memory?worker=w0")["error"]["text"]


def test_what_the_controller_knows_is_shown(stage: Stage, console: Callable[..., Running]) -> None:
    stage.start(MODELS)
    gateway, _ = stage.cluster(*NAMES)
    running = console(controller_address=stage.address)
    stage.until(lambda: running.state == "live")
    assert [row["name"] for row in running.api("models")["data"]["rows"]] == list(NAMES)
    serve(stage, gateway, 1, 30)
    stage.until(lambda: running.api("cluster")["data"]["last_60s"]["offered_rps"] > 0)
    memory = running.api("memory?worker=w0")["data"]
    assert memory["pages"] == 8
    assert sum(extent[1] for extent in memory["extents"]) == 8
    refused = gateway.arrive(100, "m0", left_ms=0.001)
    stage.until(lambda: refused in _refused(running))
    assert running.api("recent?model=m1&outcomes=rejected")["data"] == []


def _refused(running: Running) -> list[int]:
    return [int(line["id"]) for line in running.api("recent")["data"]]


def test_a_page_follows_a_controller_that_restarts(stage: Stage, console: Callable[..., Running]) -> None:
    stage.start(MODELS)
    gateway, worker = stage.cluster(*NAMES)
    running = console(controller_address=stage.address)
    stage.until(lambda: running.state == "live")
    with connect(running.address.replace("http", "ws") + "/ws", proxy=None) as page:
        say(page, show="models")

        def shown(state: str, total: int) -> bool:
            picture = said(page)
            say(page, seen=picture["n"])
            total_shown.append(picture["data"]["total"] if "data" in picture else total_shown[-1])
            return bool(picture["head"]["state"] == state and total_shown[-1] == total)

        total_shown = [0]
        stage.until(lambda: shown("live", 3))
        address = stage.address
        stage.stop()
        stage.until(lambda: shown("connecting", 3), PATIENCE_S)
        stage.start((*MODELS, spec("m3")), address=address)
        for peer in (gateway, worker):
            peer.hello()
        stage.until(lambda: shown("live", 4), PATIENCE_S)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of three seconds."""
    return record(tmp_path_factory.mktemp("log"))


def _until(running: Running, **wanted: object) -> dict[str, Any]:
    """Wait until the replay is so, and what is shown with it; return its head."""
    with connect(running.address.replace("http", "ws") + "/ws", proxy=None) as page:
        say(page, show="cluster")
        while True:
            picture = said(page)
            say(page, seen=picture["n"])
            replay: dict[str, Any] = picture["replay"]
            settled = picture["head"]["state"] == "recorded"
            if settled and all(replay[key] == value for key, value in wanted.items()):
                return dict(picture["head"], replay=replay)


def test_a_recorded_run_is_played_to_its_end(log: Path, console: Callable[..., Running]) -> None:
    running = console(log_dir=str(log))
    found = running.api("console")["replay"]
    running.post("replay", {"speed": 100.0})
    head = _until(running, playing=False)
    assert head["now_ns"] == head["replay"]["at_ns"] == found["last_ns"]
    assert head["replay"]["speed"] == 100.0
    offered = running.api("cluster")["data"]["last_10s"]["offered_rps"]
    assert offered > 100


def test_any_instant_of_a_recorded_run_is_shown(log: Path, console: Callable[..., Running]) -> None:
    running = console(log_dir=str(log))
    running.post("replay", {"playing": False})
    replay = _until(running, playing=False)["replay"]
    first_ns, last_ns = replay["first_ns"], replay["last_ns"]
    for at_ns in (last_ns, first_ns + (last_ns - first_ns) // 3, first_ns, last_ns - 1):
        assert running.post("replay", {"at_ns": at_ns})["replay"]["at_ns"] == at_ns
        assert _until(running, at_ns=at_ns)["now_ns"] == at_ns
    assert running.post("replay", {"at_ns": last_ns + 10**9})["replay"]["at_ns"] == last_ns


def test_a_page_seeks_for_all(log: Path, console: Callable[..., Running]) -> None:
    running = console(log_dir=str(log))
    with connect(running.address.replace("http", "ws") + "/ws", proxy=None) as page:
        last_ns = running.api("console")["replay"]["last_ns"]
        say(page, seek={"at_ns": last_ns, "playing": False})
        say(page, seek={"speed": 0.0})
        assert "speed" in said(page)["error"]["text"]
        assert _until(running, playing=False)["now_ns"] == last_ns


def test_what_is_over_can_not_be_changed(log: Path, console: Callable[..., Running]) -> None:
    running = console(log_dir=str(log))
    assert "token_file" in running.post("operate", {"command": {}})["error"]["text"]
    assert running.api("console")["head"]["operable"] is False


def test_what_is_live_can_not_be_sought_in(console: Callable[..., Running]) -> None:
    running = console(controller_address="tcp://127.0.0.1:9")
    assert "--log" in running.post("replay", {"at_ns": 1})["error"]["text"]


def test_a_log_that_is_none_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises((ValueError, OSError), match=str(folder)), Running(log_dir=str(folder)):
            pass
