"""The endpoint for gateways, with the gateway's end of it, and the files for a new controller."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic

import msgspec
import pytest

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.controller_catalogs import Told
from mainspring.gateway.core.readiness import Readiness
from mainspring.gateway.memory import Budget
from mainspring.gateway.oip.datatypes import Withheld
from mainspring.gateway.repository import ModelRepository, RepositoryError, index_of, repository_of
from mainspring.messages.codes import Reason
from mainspring.messages.graphs import GraphSpec, StepSpec
from mainspring.messages.repository import (
    MAX_LOAD_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_QUESTION_BYTES,
    Changed,
    GetIndex,
    Index,
    IndexEntry,
    LoadModel,
    ModelState,
    NotChanged,
    Question,
    Reply,
    UnloadModel,
)
from mainspring.messages.served import ServedModel, Standing
from mainspring.repository.requests import MAX_QUESTIONS, OFF, Control
from mainspring.repository.served_files import ServedFiles, State
from mainspring.transport.channel import HEAD, head
from mainspring.transport.greeting import Greeting
from mainspring.transport.handshake import Accepting, Connecting, Identity
from tests.blocking import Client
from tests.gateway.test_versions import version_spec
from tests.patience import PATIENCE_S

INDEX, FILES = (
    msgspec.msgpack.encode(each) for each in (GetIndex(), LoadModel("net", files=("file:1/model.onnx",)))
)
READY = IndexEntry("net", "2", ModelState.READY)
FAILED = IndexEntry("bad", "1", ModelState.UNAVAILABLE, "broken")


async def answer(question: Question, parts: Sequence[object]) -> Reply:
    """Play the repository."""
    match question:
        case GetIndex():
            return Index((READY, FAILED))
        case LoadModel(name="net"):
            return Changed({2: "net@2-aa"})
        case LoadModel(name="files"):
            sizes = [len(bytes(part)) for part in parts]  # type: ignore[call-overload]
            return NotChanged(Reason.BAD_INPUT, f"{question.files} of {sizes}, {question.encoded}")
        case LoadModel(name="off"):
            return NotChanged(Reason.FORBIDDEN, OFF)
        case LoadModel(name="slow"):
            await asyncio.sleep(60)
        case LoadModel(name="fails"):
            raise OSError("the disk is full")
    return NotChanged(Reason.UNKNOWN_MODEL, f"no {question.name}")


async def stop(running: asyncio.Task[None]) -> None:
    """End the endpoint, and raise its error if it has one."""
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def using(what: Callable[[Control, ModelRepository, Catalog], Awaitable[None]], **config: float) -> None:
    async def run() -> None:
        control, catalog = Control(answer, f"unix://{tempfile.mkdtemp()}/repository.sock"), Catalog()
        running = asyncio.create_task(control.run())
        settings = GatewayConfig(repository_address=control.address, **config)  # type: ignore[arg-type]
        try:
            await what(control, ModelRepository(settings, catalog), catalog)
        finally:
            await stop(running)

    asyncio.run(run())


def test_the_index_has_what_else_is_served_too() -> None:
    async def steps(_: Control, repository: ModelRepository, catalog: Catalog) -> None:
        catalog.model_up(version_spec("net", 2))
        catalog.serve(ServedModel("net", {2: "net@2-aa"}))
        plain = version_spec("plain", 1)
        catalog.model_up(plain)
        catalog.serve(ServedModel("plain", {1: plain.name}))
        entries = [FAILED, READY, IndexEntry("plain", "1", ModelState.READY)]
        readiness = Readiness(Told(catalog, [""]), lambda _: "")
        catalog.complete = True
        assert await index_of(repository, catalog, readiness, ready=False) == entries
        assert await index_of(repository, catalog, readiness, ready=True) == entries[1:]
        readiness.heard(0, Standing({"net@2-aa": "no worker: none is connected"}))
        away = IndexEntry("net", "2", ModelState.UNAVAILABLE, "no worker: none is connected")
        assert await index_of(repository, catalog, readiness, ready=False) == [FAILED, away, entries[2]]

    using(steps)
    assert repository_of(GatewayConfig(), Catalog()) is None


def test_loading_that_is_off_is_forbidden_or_unavailable_as_triton_has_it() -> None:
    async def steps(_: Control, repository: ModelRepository, catalog: Catalog) -> None:
        with pytest.raises(RepositoryError, match="is off") as caught:
            await repository.load("off")
        assert caught.value.reason is Reason.FORBIDDEN
        catalog.triton = True
        with pytest.raises(Withheld, match=r"explicit model load / unload is not allowed: .* is off"):
            await repository.load("off")

    using(steps)


def test_what_can_not_be_loaded_is_said_in_tritons_words_if_so_configured() -> None:
    async def steps(_: Control, repository: ModelRepository, catalog: Catalog) -> None:
        catalog.triton = True
        with pytest.raises(
            RepositoryError, match=r"failed to load 'other', failed to poll from model rep.* no"
        ):
            await repository.load("other")
        await repository.unload("other")

    using(steps)


@pytest.mark.parametrize(
    ("name", "asked"),
    [("fast", ["cascade", "vote", "fast"]), ("cascade", ["cascade", "slow"]), ("slow", ["cascade", "slow"])],
)
def test_what_depends_on_one_another_is_unloaded_together_if_asked(name: str, asked: list[str]) -> None:
    unloaded: list[str] = []

    async def unload(question: Question, _parts: Sequence[object]) -> Reply:
        assert isinstance(question, UnloadModel)
        unloaded.append(question.name)
        # It is of a client, and not of the repository.
        return NotChanged(Reason.UNKNOWN_MODEL, "no") if question.name == "vote" else Changed({})

    async def run() -> None:
        control, catalog = Control(unload, f"unix://{tempfile.mkdtemp()}/repository.sock"), Catalog()
        for graph, models in (("cascade", ["fast", "slow:2"]), ("vote", ["fast"])):
            steps = [StepSpec(name=f"s{at}", model=each, inputs={}) for at, each in enumerate(models)]
            spec = GraphSpec(name=graph, inputs=(), steps=tuple(steps), outputs={"o": "s0.o"})
            catalog.set_graph(graph, spec)
        running = asyncio.create_task(control.run())
        repository = ModelRepository(GatewayConfig(repository_address=control.address), catalog)
        try:
            if name != "cascade":
                with pytest.raises(RepositoryError, match="graph 'cascade' has a step of model"):
                    await repository.unload(name)
                assert not unloaded
            await repository.unload(name, {"unload_dependents": True})
        finally:
            await stop(running)

    asyncio.run(run())
    assert unloaded == asked


def test_a_load_returns_once_this_gateway_knows_of_it() -> None:
    async def steps(_: Control, repository: ModelRepository, catalog: Catalog) -> None:
        loading = asyncio.create_task(repository.load("net"))
        await asyncio.sleep(0.05)
        assert not loading.done()
        catalog.serve(ServedModel("net", {2: "net@2-aa"}))
        await loading
        with pytest.raises(RepositoryError, match="no other") as caught:
            await repository.unload("other")
        assert caught.value.reason is Reason.UNKNOWN_MODEL

    using(steps)


def test_a_repository_that_is_away_or_stuck_says_so() -> None:
    async def steps(_: Control, __: ModelRepository, catalog: Catalog) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
            settings = GatewayConfig(repository_address=address, repository_timeout_ms=50.0)
            with pytest.raises(RepositoryError, match=r"did not answer within 0.05 s") as caught:
                await ModelRepository(settings, catalog).index()
            assert caught.value.reason is Reason.TIMED_OUT
        for nobody in (address, f"unix://{tempfile.mkdtemp()}/nobody.sock"):
            away = ModelRepository(GatewayConfig(repository_address=nobody), catalog)
            with pytest.raises(RepositoryError, match="is away") as caught:
                await away.index()
            assert caught.value.reason is Reason.CONTROLLER_UNREACHABLE

    using(steps)


def admitted(address: str) -> socket.socket:
    """Connect as a gateway of this user does."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(address.removeprefix("unix://"))
    sock.setblocking(False)
    greeting = Greeting(sock, Connecting(Identity("gateway"), True, None))
    while not greeting.advance():
        select.select([sock], [], [], PATIENCE_S)
    sock.settimeout(PATIENCE_S)
    return sock


def message_of(sock: socket.socket) -> bytes:
    """Return the message proper of the next message; nothing if the connection ends before."""
    with sock.makefile("rb") as file:
        start = file.read(HEAD.size)
        return file.read(HEAD.unpack(start)[0]) if start else b""


@pytest.mark.parametrize(
    "data",
    [
        head([3]) + b"abc",
        head([1]) + b"\x80",
        head([0]),
        head([MAX_QUESTION_BYTES]) + bytes(MAX_QUESTION_BYTES),
        head([6]) + b"\x81\xa4type\xff"[:6],
        head([MAX_QUESTION_BYTES + 1]) + bytes(MAX_QUESTION_BYTES + 1),
        head([len(INDEX), 3]) + INDEX + b"abc",
        head([len(FILES)]) + FILES,
    ],
)
def test_garbage_is_answered_and_harms_no_other_connection(data: bytes) -> None:
    async def steps(control: Control, repository: ModelRepository, _: Catalog) -> None:
        with await asyncio.to_thread(admitted, control.address) as sock:
            sock.sendall(data)
            refused = msgspec.msgpack.decode(await asyncio.to_thread(message_of, sock), type=Reply)
            assert isinstance(refused, NotChanged)
            assert refused.reason is Reason.BAD_MESSAGE
            assert "can't be read" in refused.detail
            half_open = (await asyncio.open_unix_connection(control.address.removeprefix("unix://")))[1]
            half_open.write(b"\x05")
            half_open.close()
            assert len(await repository.index()) == 2

    using(steps)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            HEAD.pack((1 << 32) - 1, 0),
            f"of 4294967295 bytes came; at most {MAX_LOAD_BYTES} are allowed",
        ),
        (HEAD.pack(1, 65), "a message of it has 65 tensors; 64 are allowed"),
    ],
)
def test_what_exceeds_the_bounds_ends_its_connection(
    data: bytes, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps(control: Control, repository: ModelRepository, _: Catalog) -> None:
        with caplog.at_level("INFO"), await asyncio.to_thread(admitted, control.address) as sock:
            sock.sendall(data)
            assert not await asyncio.to_thread(message_of, sock)
        assert says in caplog.text
        assert len(await repository.index()) == 2

    using(steps)


def test_a_question_that_fails_ends_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def steps(_: Control, repository: ModelRepository, __: Catalog) -> None:
        with pytest.raises(RepositoryError, match="is away"):
            await repository.load("fails")
        assert "the disk is full" in caplog.text
        assert len(await repository.index()) == 2

    using(steps)


def test_files_follow_their_question_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(_: Control, repository: ModelRepository, __: Catalog) -> None:
        large = bytes(9 << 20)
        with pytest.raises(RepositoryError, match=r"\('file:a', 'file:b'\) of \[9437184, 3\], False"):
            await repository.load("files", {"file:a": large, "config": "{}", "file:b": b"abc"})
        with pytest.raises(RepositoryError, match=r"\(\) of \[9437184\], True"):
            await repository.load_as_told("files", memoryview(large))
        with pytest.raises(RepositoryError, match="at most 64"):
            await repository.load("files", {f"file:{index}": b"" for index in range(65)})
        repository = ModelRepository(GatewayConfig(repository_address=_.address), Catalog())
        monkeypatch.setattr(repository, "_sent", Budget(100))
        with pytest.raises(RepositoryError, match="at most 100 are handed on at one time") as caught:
            await repository.load("files", {"file:a": b"x" * 101})
        assert caught.value.reason is Reason.OVERLOADED

    using(steps)


def test_a_name_beyond_the_bounds_is_refused_before_it_is_sent() -> None:
    async def steps(_: Control, repository: ModelRepository, __: Catalog) -> None:
        with pytest.raises(RepositoryError, match="at most 65536 are allowed") as caught:
            await repository.load("x" * MAX_QUESTION_BYTES)
        assert caught.value.reason is Reason.BAD_MESSAGE

    using(steps)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (HEAD.pack(MAX_MESSAGE_BYTES + 1, 0), "at most 67108864 are allowed"),
        (HEAD.pack(4, 255), "255 tensors; 0 are allowed"),
        (head([3]) + b"abc", "is away"),
        (head([300]) + b"abc", "is away"),
        (b"", "is away"),
    ],
)
def test_a_gateway_reads_no_answer_beyond_its_bounds(answer: bytes, says: str) -> None:
    """Nor does it wait for the rest of one: it says at once that the repository can't be asked."""

    def serve(listening: socket.socket) -> None:
        with listening.accept()[0] as sock:
            sock.setblocking(False)
            handshake = Accepting(Identity("repository"), True, ("gateway",))
            greeting = Greeting(sock, handshake)
            while not greeting.advance():
                select.select([sock], [], [], PATIENCE_S)
            sock.settimeout(PATIENCE_S)
            assert message_of(sock)
            sock.sendall(answer)

    async def steps(_: Control, __: ModelRepository, catalog: Catalog) -> None:
        path = f"{tempfile.mkdtemp()}/fake.sock"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen()
            served = asyncio.create_task(asyncio.to_thread(serve, listening))
            asked = ModelRepository(GatewayConfig(repository_address=f"unix://{path}"), catalog)
            with pytest.raises(RepositoryError, match=says) as caught:
                await asked.index()
            assert caught.value.reason is Reason.CONTROLLER_UNREACHABLE
            await served

    using(steps)


def test_only_a_gateway_is_answered() -> None:
    async def steps(control: Control, _: ModelRepository, __: Catalog) -> None:
        with contextlib.closing(Client(control.address, role="worker")) as client:
            give_up_s = monotonic() + PATIENCE_S
            while not client.link.refusal and monotonic() < give_up_s:
                client.poll()
                await asyncio.sleep(0.001)
            assert "refuses this process" in client.link.refusal

    using(steps)


def test_questions_at_one_time_are_bounded() -> None:
    async def steps(control: Control, repository: ModelRepository, catalog: Catalog) -> None:
        waiting = [asyncio.create_task(repository.load("slow")) for _ in range(MAX_QUESTIONS + 1)]
        done = (await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=30))[0]
        (refused,) = [task.exception() for task in done]
        assert isinstance(refused, RepositoryError)
        assert refused.reason is Reason.OVERLOADED
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    using(steps)


def test_an_address_that_can_not_be_had_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        for each in (address, "tcp://127.0.0.1:x", "tcp://127.0.0.1:99999"):
            with pytest.raises(OSError, match=rf"can't listen at {each}: .*\[repository\] address"):
                Control(answer, each)


def test_a_controller_that_starts_anew_reads_what_gateways_were_told(tmp_path: Path) -> None:
    files = ServedFiles(tmp_path / "state")
    assert files.read() == ([], [])
    assert files.state() == State()
    assert not files.begun()
    old, new = version_spec("net", 1), version_spec("net", 2)
    model = ServedModel("net", {2: new.name}, slo_ns=3, config="{}")
    files.write(model, [old, new])
    files.write(ServedModel("gone", {1: old.name}), [old])
    files.remove("gone")
    files.remove("gone")
    files.write(ServedModel("lacks", {1: old.name}), [])
    (tmp_path / "state" / "served" / "damaged.json").write_bytes(b"{")
    assert files.read() == ([old, new], [model])
    files.write_state(State(settled=True, models=1))
    assert files.state() == State(settled=True, models=1)
    assert files.begun()
    files.clear()
    assert files.read() == ([], [])
    assert not files.begun()
    files.clear()
